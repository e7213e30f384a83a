"""Other minibatches in the first epochs: what the clock charges, what events say, what is saved."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from helpers import Quadratic, Sized, built, every_spec, layers_for, permits, play, small_run
from typer.testing import CliRunner

from regatta.cli import app
from regatta.cluster import Cluster
from regatta.config import Evaluation, Stop
from regatta.events import Ended, Evaluated, Progress, Started, read
from regatta.metrics import summarise

EARLY = (3, 24)  # then 4: 80, 10 and 60 batches of one worker an epoch
COSTLY = Cluster(  # a minibatch takes a second and one for each sample; nothing else takes time
    sample_seconds=1.0, batch_seconds=1.0, merge_bandwidth=1e30, latency=0.0, bandwidth=1e30
)


@pytest.mark.parametrize("timing_only", [False, True])
@pytest.mark.parametrize(
    ("spec", "workers"),
    [("single", 1), ("all-reduce", 2), ("averaging", 2), ("averaging:jobs=2", 2)],
)
def test_the_clock_charges_the_minibatch_of_the_turn(spec, workers, timing_only):
    run = small_run(
        spec, workers, early_minibatches=EARLY, cluster=COSTLY, stop=Stop(epochs=3),
        task=Sized(train=240) if timing_only else Quadratic(),
    )  # fmt: skip
    ranks = play(run, timing_only).ranks
    batches = [80 // workers, 10 // workers, 60 // workers]
    samples = 3 * 240 // workers
    assert {r.turns for r in ranks} == {sum(batches)}
    assert {r.samples for r in ranks} == {samples}
    assert {r.time for r in ranks} == {sum(batches) + samples}


@pytest.mark.parametrize("timing_only", [False, True])
def test_every_stage_of_a_pipeline_charges_it(timing_only):
    run = small_run("pipeline", 2, early_minibatches=EARLY, stop=Stop(epochs=3))
    cluster = replace(COSTLY, batch_seconds=0.0)
    ranks = play(replace(run, cluster=cluster), timing_only).ranks
    # Stages share the work on the minibatches of all workers.
    assert sum(r.computing for r in ranks) == pytest.approx(3 * 240)


@pytest.mark.parametrize(
    "spec", [spec for spec in every_spec() if spec != "single" and permits(built(spec), 3)]
)
def test_samples_are_counted_alike_by_workers_and_by_the_holder(spec):
    strategy = built(spec)
    task = Quadratic(layers=layers_for(strategy), train=120)
    run = small_run(spec, 3, task=task, early_minibatches=(2, 10), stop=Stop(epochs=3))
    played = play(run)
    workers = [r for r in played.ranks if r.role == "worker"]
    ended = next(e for e in played.events if isinstance(e, Ended))
    assert sum(r.samples for r in workers) == 3 * 120
    assert summarise(played.events).samples == 3 * 120
    if not any(r.dropped for r in played.ranks):
        assert ended.samples == 3 * 120


def test_one_gradient_of_three_workers_counts_all_its_samples():
    """An asynchronous server is scored between the turns of its workers."""
    run = small_run("parameter-server", 3, evaluation=Evaluation(every=1 / 30), stop=Stop(epochs=1))
    samples = [e.samples for e in play(run).events if isinstance(e, Evaluated)]
    assert samples == [8 * number for number in range(1, 31)]  # every second gradient


@pytest.mark.parametrize("spec", ["single", "averaging", "all-reduce"])
def test_half_epochs_of_different_length_are_evaluated_at_their_ends(spec):
    workers = 1 if spec == "single" else 2
    run = small_run(
        spec, workers, early_minibatches=(3, 24, 12), evaluation=Evaluation(every=0.5),
        task=Quadratic(train=288), stop=Stop(epochs=4), cluster=COSTLY,
    )  # fmt: skip
    scores = [e for e in play(run).events if isinstance(e, Evaluated)]
    assert [e.samples for e in scores] == [144 * number for number in range(1, 9)]
    assert [e.epoch for e in scores] == [0.5 * number for number in range(1, 9)]
    seconds = [0.0]
    for minibatch in (3, 24, 12, 4):
        batches = 288 // minibatch // workers // 2
        seconds += [seconds[-1] + (1 + minibatch) * batches * half for half in (1, 2)]
    assert [e.training for e in scores] == seconds[1:]


@pytest.mark.parametrize(("spec", "workers"), [("single", 1), ("pipeline", 2)])
def test_progress_tells_the_samples_of_the_turns_that_are_over(spec, workers):
    run = small_run(spec, workers, early_minibatches=EARLY, cluster=COSTLY, stop=Stop(epochs=3))
    told = [e for e in play(run).events if isinstance(e, Progress)]
    assert len(told) > 100
    first, second = 80 // workers, 10 // workers
    for e in told:
        in_second, later = max(0, e.turns - first), max(0, e.turns - first - second)
        samples = 3 * min(e.turns, first) + 24 * min(in_second, second) + 4 * later
        assert e.samples == samples


def test_a_limit_of_samples_ends_in_the_middle_of_an_early_epoch():
    run = small_run("single", early_minibatches=EARLY, stop=Stop(epochs=9, samples=288))
    played = play(run)
    assert played.ranks[0].turns == 80 + 2
    assert played.ranks[0].samples == 288
    assert [e.samples for e in played.events if isinstance(e, Evaluated)] == [240, 288]


def test_an_early_minibatch_that_is_too_large_is_refused_before_anything_runs(tmp_path):
    words = ["simulate", "teacher", "--set", "train=512", "--set", "early_minibatches=1024"]
    done = CliRunner().invoke(app, [*words, "-o", str(tmp_path / "run")])
    assert done.exit_code != 0
    assert "minibatch 1024 need more than the 512" in done.output + str(done.exception)
    assert not (tmp_path / "run").exists()


def test_a_race_over_minibatches_keeps_the_early_ones(tmp_path):
    words = ["race", "teacher", "--simulate", "--strategies", "single", "--minibatch", "64,128"]
    settings = ["train=512", "dev=128", "hidden=16", "stop.epochs=2", "stop.target=none",
                "early_minibatches=32"]  # fmt: skip
    for setting in settings:
        words += ["--set", setting]
    done = CliRunner().invoke(app, [*words, "--seeds", "1", "-o", str(tmp_path / "race"), "--json"])
    assert done.exit_code == 0, done.output
    folders = sorted(path.parent for path in (tmp_path / "race").rglob("events.jsonl"))
    turns = {}
    for folder in folders:
        events = read(folder / "events.jsonl")
        started = next(e for e in events if isinstance(e, Started))
        turns[started.minibatch] = (
            summarise(events).samples,
            max(e.turns for e in events if hasattr(e, "turns")),
        )
        assert json.loads((folder / "run.json").read_text())["run"]["early_minibatches"] == [32]
    assert turns == {64: (1024, 16 + 8), 128: (1024, 16 + 4)}
