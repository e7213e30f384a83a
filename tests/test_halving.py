"""A rate that follows scores: agreed upon by all ranks, saved, and found again."""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import pairwise

import pytest
from helpers import Quadratic, built, layers_for, play, play_from, small_run
from real import light_fuse, plan

from regatta import checkpoint, choices, folders, runs
from regatta.choices import Replayer
from regatta.cluster import Cluster
from regatta.config import Checkpointing, Evaluation, Stop
from regatta.events import Checkpointed, Evaluated, read
from regatta.learn.optimisers import Sgd
from regatta.learn.schedules import Halving
from regatta.pace import Pace
from regatta.runs import Plan, simulate
from regatta.worlds.launch import RankFailed

SPECS = ["all-reduce", "averaging:period=4", "elastic", "elastic:mode=async", "gossip",
         "parameter-server", "parameter-server:servers=2", "parameter-server:mode=sync",
         "ring", "ring:chunks=3", "pipeline"]  # fmt: skip


def halving_run(spec, workers=3, **changes):
    """Its rate is halved at some evaluations, not at all."""
    strategy = built(spec)
    run = small_run(
        strategy, workers, task=Quadratic(layers=layers_for(strategy), train=120),
        optimiser=Sgd(lr=0.02, momentum=0.5), schedule=Halving(theta=1.0), stop=Stop(epochs=6),
        cluster=Cluster(jitter=0.3),
    )  # fmt: skip
    return replace(run, **changes)


@pytest.fixture
def found(monkeypatch):
    """By rank, what evaluations had found whenever a step was made: the distinct ones."""
    seen = {}
    ask = Pace.__call__

    def noted(pace, part):
        factors = seen.setdefault(part.comm.rank, [])
        if not factors or factors[-1] != pace.found:
            factors.append(pace.found)
        return ask(pace, part)

    monkeypatch.setattr(Pace, "__call__", noted)
    return seen


def factors_of(losses, theta=1.0):
    """What evaluations find, by hand: the distinct ones, as long as they still matter."""
    factors = [1.0]
    for before, after in pairwise(losses[:-1]):
        if before - after < theta:
            factors.append(factors[-1] / 2)
    return factors


@pytest.mark.parametrize("spec", SPECS)
def test_all_ranks_halve_together_by_the_scores(spec, found):
    played = play(halving_run(spec))
    assert len(played.losses) == 6
    wanted = factors_of(played.losses)
    assert 1 < len(wanted) < 6, played.losses
    assert found
    assert all(factors == wanted for factors in found.values())
    assert len(set(played.digests)) == 1


@pytest.mark.parametrize("spec", SPECS)
def test_resuming_is_exact(spec, tmp_path):
    run = halving_run(
        spec, checkpointing=Checkpointing(every=0.75, keep=100), early_minibatches=(2, 10)
    )
    ended, _ = simulate(run, Plan("teacher", run, tmp_path))
    events = read(tmp_path / "events.jsonl")
    undisturbed = [(e.digest, e.samples) for e in ended]
    saved = [tmp_path / "checkpoints" / e.path for e in events if isinstance(e, Checkpointed)]
    assert len(saved) == 8
    recorded = choices.read(tmp_path / "choices.jsonl")
    factors = set()
    for path in saved:
        states = [checkpoint.load_rank(path, rank)[1]["pace"] for rank in range(run.num_ranks)]
        assert len({state["found"] for state in states}) == 1
        factors.add(states[0]["found"])
    assert len(factors) > 1
    for path in (None, saved[0], saved[2], saved[5]):  # as a whole, too: that is a replay
        chance = None if built(spec).deterministic else lambda rank: Replayer(recorded, rank)
        again = play_from(run, chance, resume_from=path)
        assert [(e.digest, e.samples) for e in again.ranks] == undisturbed


@pytest.mark.parametrize("end", [2, 3, 3.4])
@pytest.mark.parametrize("spec", ["single", "all-reduce", "parameter-server:mode=sync"])
def test_a_run_that_goes_on_after_its_end_is_one_that_never_ended(spec, end, tmp_path):
    """Also where its end added an evaluation that an undisturbed run does not make."""
    run = halving_run(spec, workers=1 if spec == "single" else 2)
    play_from(replace(run, stop=Stop(epochs=end)), folder=tmp_path)
    resumed = play_from(run, resume_from=checkpoint.newest(tmp_path / "checkpoints"))
    assert resumed.digests == play(run).digests


@pytest.mark.parametrize("every", [1.0, 0.3])
@pytest.mark.parametrize("turn", [40, 59, 60, 61])
def test_a_run_that_was_stopped_by_chance_goes_on_as_if_it_had_not(turn, every, tmp_path):
    run = halving_run("single", workers=1, evaluation=Evaluation(every))
    undisturbed = play(run)
    per_segment = every * 30  # turns
    segment = int(turn // per_segment)
    recorded = {(segment, 0, "stop"): [turn]}
    stopped = play_from(run, lambda rank: Replayer(recorded, rank), folder=tmp_path)
    assert stopped.ranks[0].turns == turn
    resumed = play_from(run, resume_from=checkpoint.newest(tmp_path / "checkpoints"))
    assert resumed.digests == undisturbed.digests


def test_a_target_reached_at_an_evaluation_leaves_that_evaluation_behind(tmp_path):
    """A rounded turn must not bring it back when the run goes on."""
    run = halving_run("single", workers=1, evaluation=Evaluation(0.35))
    undisturbed = play(run)
    first = replace(run, stop=Stop(epochs=6, target=undisturbed.losses[2]))
    stopped = play_from(first, folder=tmp_path)
    assert len(stopped.losses) == 3
    resumed = play_from(run, resume_from=checkpoint.newest(tmp_path / "checkpoints"))
    assert stopped.losses + resumed.losses == undisturbed.losses
    assert resumed.digests == undisturbed.digests


@pytest.mark.parametrize("spec", SPECS)
def test_timing_only_takes_the_same_time_messages_and_bytes(spec):
    # A segment of 2.5 epochs, so that the minibatch also changes within one.
    early, every = (2, 10), Evaluation(every=2.5)
    run = halving_run(spec, early_minibatches=early, evaluation=every, stop=Stop(epochs=3))
    played = [play(run, timing_only=timing_only).ranks for timing_only in (False, True)]
    computed, timed = (
        [(r.messages, r.bytes, r.turns, r.samples) for r in ranks] for ranks in played
    )
    assert timed == computed
    ends = [[r.time for r in ranks] for ranks in played]
    assert ends[1] == pytest.approx(ends[0], rel=1e-6)


# -- real processes -------------------------------------------------------------------------

REAL = ("schedule=halving:theta=0.05", "early_minibatches=8,32", "stop.epochs=3",
        "checkpointing.every=0.75")  # fmt: skip


@pytest.mark.real
def test_a_real_run_halves_dies_and_ends_as_if_undisturbed(tmp_path):
    whole = plan(tmp_path / "whole", "all-reduce", 2, REAL)
    undisturbed = [e.digest for e in runs.train(whole)]
    broken = plan(tmp_path / "broken", "all-reduce", 2, REAL + light_fuse(tmp_path, 1, turn=85))
    with pytest.raises(RankFailed, match="SIGKILL"):
        runs.train(broken)
    assert [e.digest for e in runs.train(broken, resume=True)] == undisturbed
    assert runs.replay(broken.folder).identical
    scores = [e for e in read(whole.events) if isinstance(e, Evaluated)]
    assert len(scores) == 6
    state = json.loads((checkpoint.newest(whole.checkpoints) / "rank-1.json").read_text())
    values = [e.results["accuracy"] for e in scores]
    halved = sum(b - a < 0.05 for a, b in pairwise(values))
    assert halved > 0
    assert state["pace"]["found"] == 0.5**halved


@pytest.mark.real
def test_an_asynchronous_real_run_halves_and_replays(tmp_path):
    made = plan(tmp_path / "run", "parameter-server", 2, (*REAL, "stop.seconds=0.5"))
    runs.train(made)
    assert runs.replay(made.folder).identical
    stops = folders.open_plan(made.folder)[0].stops
    more = plan(tmp_path / "run", "parameter-server", 2, (*REAL, "stop.epochs=4"))
    ended = runs.train(replace(more, stops=stops), resume=True)
    assert len({e.digest for e in ended}) == 1
    assert runs.replay(made.folder).identical
