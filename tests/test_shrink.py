"""A rank dies, and the others begin again without it: in both worlds, and replayed as a whole."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from helpers import Quadratic, built, every_spec, permits, play, small_run
from real import RECIPE, command, light_fuse, plan
from torch import nn

import regatta.engine
from regatta import folders, runs
from regatta.cluster import Cluster
from regatta.config import Checkpointing, Stop
from regatta.death import Death
from regatta.events import Died, Ended, RankEnded, Resumed, read
from regatta.folders import Crew, Plan
from regatta.learn.schedules import Decay
from regatta.pace import Pace
from regatta.resuming import Resume
from regatta.strategies.fate import SHRINK

SHRINKING = [spec for spec in every_spec() if SHRINK in built(spec).fates["worker"].choices]
EVERY_SECOND = Cluster(sample_seconds=0.25, latency=1e-3, bandwidth=1e9, merge_bandwidth=1e9)
OFTEN = ("checkpointing.every=0.25", "stop.epochs=1.5")


def only(kind, events):
    return [event for event in events if isinstance(event, kind)]


# -- virtual ---------------------------------------------------------------------------------


def crashing(spec: str, *crashes: tuple[int, float], workers: int = 4, **changes):
    """15 turns of a second an epoch, for four workers."""
    faults = tuple(f"crash rank={rank} at={at}" for rank, at in crashes)
    cluster = replace(EVERY_SECOND, faults=faults)
    return small_run(spec, workers, cluster=cluster, death=Death("shrink"), **changes)


@pytest.mark.parametrize("spec", SHRINKING)
def test_fewer_go_on_and_learn(spec):
    if not permits(built(spec), 3):
        pytest.skip("needs more workers")
    run = crashing(spec, (1, 33.3), stop=Stop(epochs=6), checkpointing=Checkpointing(every=0.5))
    played = play(run)
    (death,) = only(Died, played.events)
    assert (death.rank, death.then) == (1, "shrink")
    assert len(played.ranks) == run.num_ranks - 1
    assert len(set(played.digests)) == 1
    assert played.losses[-1] < Quadratic().open().evaluate(nn.Linear(4, 1))["loss"] / 100


@pytest.mark.parametrize(
    "wrong",
    [
        {"members": [0, 0, 3]},
        {"members": [0, 2]},
        {"members": [0, 2, 1_000_000]},
        {"members": [0, 2, -3]},
        {"members": []},
        {"members": [0, 2], "hosts": [0, 0]},
    ],
)
def test_crews_that_cannot_be_are_refused(wrong, tmp_path, monkeypatch):
    run = crashing("all-reduce", (1, 9.3), checkpointing=Checkpointing(every=0.5))
    runs.simulate(run, Plan("teacher", run, tmp_path / "run"))
    monkeypatch.setattr(folders.recipes, "load", lambda recipe: run)
    assert folders.open_plan(tmp_path / "run")[0].members == (0, 2, 3)
    values = folders.read_stored(tmp_path / "run")
    values["crews"][-1] |= wrong
    del values["sha256"]
    (tmp_path / "run" / "run.json").write_text(json.dumps(values))
    with pytest.raises(ValueError, match=r"run\.json cannot be read: .*member"):
        folders.open_plan(tmp_path / "run")


@pytest.mark.parametrize("spec", ["all-reduce", "averaging:period=4,outer=bmuf", "ring"])
def test_from_the_beginning_it_is_a_smaller_run(spec):
    played = play(crashing(spec, (1, 3.3), stop=Stop(epochs=4)))
    smaller = play(small_run(spec, 3, stop=Stop(epochs=4)))
    assert played.digests == smaller.digests


def test_the_first_worker_may_be_the_one():
    """Who evaluates after it knows what it has found."""
    stop = Stop(epochs=6, patience=100)
    run = crashing("all-reduce", (0, 47.3), stop=stop, checkpointing=Checkpointing(every=1.0))
    played = play(run)
    (ended,) = only(Ended, played.events)
    assert ended.results["loss"] == min(played.losses)
    assert len(played.losses) == 6


def test_turns_are_those_of_fewer():
    run = crashing("all-reduce", (2, 17.3), checkpointing=Checkpointing(every=1.0))
    played = play(run)
    assert {rank.turns for rank in played.ranks} == {2 * 20}, "20 an epoch, for three workers"


def test_a_schedule_goes_by_epochs_not_by_steps(monkeypatch):
    rates = []

    class Watched(Pace):
        def __call__(self, part):
            rates.append(super().__call__(part))
            return rates[-1]

    monkeypatch.setattr(regatta.engine, "Pace", Watched)
    run = crashing(
        "averaging", (2, 17.3), checkpointing=Checkpointing(every=1.0), schedule=Decay(by=0.01)
    )
    play(run)
    assert rates[-1] == pytest.approx(1 / (1 + 0.01 * 39)), "its own steps are 15 and 20"


@pytest.mark.parametrize("spec", SHRINKING)
def test_a_simulation_that_has_shrunk_twice_replays(spec, tmp_path, monkeypatch):
    if not permits(built(spec), 2):
        pytest.skip("needs more workers")
    # Where the first worker alone can evaluate, it is brought back.
    second = 3 if "holder" in built(spec).fates else 0
    run = crashing(spec, (1, 30.3), (second, 60.3), checkpointing=Checkpointing(every=0.5))
    run = replace(run, stop=Stop(epochs=4), cluster=replace(run.cluster, jitter=0.3))
    runs.simulate(run, Plan("teacher", run, tmp_path / "run"))
    monkeypatch.setattr(folders.recipes, "load", lambda recipe: run)
    crews = folders.open_plan(tmp_path / "run")[0].crews
    names = [crew.members[: len(crew.members) - run.strategy.num_servers] for crew in crews]
    assert names == [(0, 1, 2, 3), (0, 2, 3), tuple({0, 2, 3} - {second})]
    again = runs.replay(tmp_path / "run")
    assert again.identical
    assert len(again.recorded) == 2 + run.strategy.num_servers


def test_who_cannot_be_fewer_is_brought_back():
    run = crashing("averaging:jobs=4,period=4", (1, 17.3))
    assert [death.then for death in only(Died, play(run).events)] == ["restart"]


def test_layers_cannot_be_done_without():
    with pytest.raises(ValueError, match="pipeline cannot go on with fewer workers"):
        replace(small_run("pipeline", 3), death=Death("shrink"))


def test_who_has_died_returns_when_all_begin_again():
    """A worker is dead at the last checkpoint, and then the server dies."""
    run = crashing("parameter-server", (1, 4.3), (4, 20.3), checkpointing=Checkpointing(every=0.5))
    played = play(replace(run, death=Death()))
    assert [death.then for death in only(Died, played.events)] == ["go on", "restart"]
    assert [rank.rank for rank in played.ranks] == [0, 1, 2, 3, 4]
    assert len(set(played.digests)) == 1
    first, second = (played.ranks[rank] for rank in (0, 1))
    assert second.turns == first.turns, "as if it had never been away"
    assert second.samples < first.samples


FREE = ["parameter-server", "parameter-server:compress=one-bit", "gossip", "elastic:mode=async",
        "parameter-server:mode=sync,backup=1"]  # fmt: skip


@pytest.mark.parametrize("spec", FREE)
def test_a_return_replays(spec, tmp_path, monkeypatch):
    """Everybody dies, one after another; then all begin again, but for two thirds of them anew."""
    run = crashing(
        spec, (2, 9.3), (0, 20.3), (1, 30.3), workers=3, stop=Stop(epochs=3),
        checkpointing=Checkpointing(every=0.5),
    )  # fmt: skip
    run = replace(run, death=Death(), cluster=replace(run.cluster, jitter=0.3))
    runs.simulate(run, Plan("teacher", run, tmp_path / "run"))
    events = read(tmp_path / "run" / "events.jsonl")
    assert [death.then for death in only(Died, events)] == ["go on", "go on", "restart"]
    assert len(only(RankEnded, events)) == run.num_ranks
    monkeypatch.setattr(folders.recipes, "load", lambda recipe: run)
    crews = folders.open_plan(tmp_path / "run")[0].crews
    assert [len(crew.members) for crew in crews] == [run.num_ranks] * 2
    assert runs.replay(tmp_path / "run").identical


# -- real ------------------------------------------------------------------------------------

REAL = ["all-reduce", "averaging:period=4,outer=diloco", "ring", "elastic", "gossip",
        "parameter-server:mode=sync", "parameter-server"]  # fmt: skip


@pytest.mark.real
@pytest.mark.parametrize("spec", REAL)
def test_real_ranks_go_on_fewer_and_replay(spec, tmp_path):
    settings = (*OFTEN, "death.then=shrink", *light_fuse(tmp_path, 1, 15))
    made = plan(tmp_path / "run", spec, 3, settings)
    ended = runs.train(made)
    (death,) = only(Died, read(made.events))
    assert (death.rank, death.then) == (1, "shrink")
    assert len({e.digest for e in ended}) == 1
    servers = made.run.strategy.num_servers
    after, _ = folders.open_plan(made.folder)
    assert after.run.workers == 2
    everybody = tuple(range(3 + servers))
    assert [crew.members for crew in after.crews] == [everybody, (0, *everybody[2:])]
    assert len(ended) == 2 + servers
    assert runs.replay(made.folder).identical
    # And goes on from there.
    more = replace(after, run=replace(after.run, stop=Stop(epochs=2)))
    assert len(runs.train(more, resume=True)) == 2 + servers
    assert runs.replay(made.folder).identical


@pytest.mark.real
def test_a_real_run_that_begins_anew_is_a_smaller_run(tmp_path):
    settings = ("stop.epochs=1", "death.then=shrink", *light_fuse(tmp_path, 0, 15))
    made = plan(tmp_path / "run", "all-reduce", 3, settings)
    smaller = plan(tmp_path / "smaller", "all-reduce", 2, ("stop.epochs=1",))
    digests = {e.digest for e in runs.train(smaller)}
    assert {e.digest for e in runs.train(made)} == digests
    assert folders.open_plan(made.folder)[0].crews == (Crew(0, (1, 2), (0, 0)),)
    assert runs.replay(made.folder).identical


@pytest.mark.real
def test_the_same_command_goes_on_with_those_who_are_left(tmp_path):
    settings = (*OFTEN, "death.then=shrink", *light_fuse(tmp_path, 1, 15))
    made = plan(tmp_path / "run", "all-reduce", 3, settings)
    assert len(runs.train(made, Resume.IF_ANY)) == 2
    longer = replace(made, run=replace(made.run, stop=Stop(epochs=2)))
    assert len(runs.train(longer, Resume.IF_ANY)) == 2
    assert runs.replay(made.folder).identical
    for workers in (1, 2):
        with pytest.raises(ValueError, match="it began with 3 ranks"):
            runs.train(replace(longer, run=replace(made.run, workers=workers)), Resume.IF_ANY)


@pytest.mark.real
def test_who_has_died_is_back_when_the_run_is_resumed(tmp_path):
    settings = (*OFTEN, *light_fuse(tmp_path, 1, 15))
    made = plan(tmp_path / "run", "parameter-server", 3, settings)
    assert len(runs.train(made)) == 3
    assert runs.replay(made.folder).identical
    done = command("train", RECIPE, "-o", made.folder, "--resume", "--set", "stop.epochs=2")
    assert done.returncode == 0, done.stderr
    assert "with 3 workers" in done.stdout
    events = read(made.events)
    assert only(Resumed, events)[0].workers == 3
    assert {e.rank for e in only(RankEnded, events)} == {0, 1, 2, 3}
    assert runs.replay(made.folder).identical


@pytest.mark.real
def test_another_number_of_workers_is_refused(tmp_path):
    made = plan(tmp_path / "run", "all-reduce", 2, ("stop.epochs=0.5",))
    runs.train(made)
    done = command("train", RECIPE, "-o", made.folder, "--resume", "--set", "workers=3")
    assert done.returncode == 2
    assert "has 2 workers" in done.stderr


@pytest.mark.real
def test_a_checkpoint_names_who_is_in_it(tmp_path):
    settings = ("checkpointing.every=0.25", *light_fuse(tmp_path, 1, 15))
    made = plan(tmp_path / "run", "parameter-server", 3, settings)
    runs.train(made)
    newest = sorted(made.checkpoints.glob("0*"))[-1]
    about = json.loads((newest / "checkpoint.json").read_text())
    assert about["ranks"] == 4
    assert about["members"] == [[0, 0], [2, 2], [3, 3]]
    assert not list(newest.glob("rank-1.*"))
