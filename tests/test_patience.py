"""Patience: a run that gets no better ends, and hands over its best model."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from typing import ClassVar

import pytest
from helpers import Pairs, Quadratic, built, layers_for, play, play_from, small_run
from real import RECIPE, command, plan
from typer.testing import CliRunner

from regatta import checkpoint, choices, runs
from regatta.choices import Replayer
from regatta.cli import app
from regatta.config import Checkpointing, Evaluation, Stop
from regatta.events import Ended, Evaluated, RankEnded, read
from regatta.folders import open_plan
from regatta.metrics import summarise
from regatta.runs import Plan, simulate
from regatta.scores import Scores
from regatta.tasks import Metric

SPECS = ["single", "all-reduce", "averaging", "elastic", "gossip", "parameter-server",
         "parameter-server:servers=2", "ring", "pipeline"]  # fmt: skip
SCRIPT = (5.0, 3.0, 4.0, 2.0, 2.0, 2.5, 3.0, 1.0, 1.5, 1.5, 1.5, 1.5)


class ScriptedPairs(Pairs):
    """Data whose evaluations are known beforehand."""

    def __init__(self, data: Pairs, script: tuple[float, ...]) -> None:
        super().__init__(data.inputs, data.targets)
        self._script = iter(script)

    def evaluate(self, model):
        return {"loss": next(self._script), "true": super().evaluate(model)["loss"]}


@dataclass(frozen=True)
class Scripted(Quadratic):
    name: ClassVar[str] = "scripted"

    script: tuple[float, ...] = SCRIPT

    def open(self) -> ScriptedPairs:
        return ScriptedPairs(super().open(), self.script)


def scripted(spec, patience, workers=2, **changes):
    strategy = built(spec)
    task = Scripted(layers=layers_for(strategy), train=48)
    workers = 1 if spec == "single" else workers
    stop = Stop(epochs=12, patience=patience)
    return small_run(strategy, workers, task=task, stop=stop, **changes)


def ended(events):
    return next(e for e in events if isinstance(e, Ended))


# -- scores ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("patience", "stalls_after"), [(1, 3), (2, 6), (3, 7), (4, 12), (5, None), (0, None)]
)
def test_scores_stall_after_so_many_that_are_no_better(patience, stalls_after):
    scores, stop = Scores(Metric("loss", higher_is_better=False)), Stop(patience=patience)
    stalled = []
    for value in SCRIPT:
        scores.take({"loss": value})
        again = Scores(Metric("loss", higher_is_better=False))
        again.restore(json.loads(json.dumps(scores.state())))
        assert again.have_stalled(stop) == scores.have_stalled(stop)
        stalled.append(scores.have_stalled(stop))
    assert (stalled.index(True) + 1 if True in stalled else None) == stalls_after
    assert scores.handed_over(stop) == {"loss": 1.0 if patience else 1.5}


# -- runs -----------------------------------------------------------------------------------


@pytest.mark.parametrize("spec", SPECS)
def test_a_run_that_gets_no_better_ends_with_its_best(spec, tmp_path):
    played = play_from(scripted(spec, patience=2), folder=tmp_path)
    # A meeting or a drain may have to be scored once more after the evaluation that ends it all.
    assert tuple(played.losses[:6]) == SCRIPT[:6]
    assert len(played.losses) <= 7
    end = ended(played.events)
    assert end.reason == "patience"
    assert end.results["loss"] == 2.0
    scores = [e.results for e in played.events if isinstance(e, Evaluated)]
    assert end.results == scores[3]
    saved = checkpoint.newest(tmp_path / "checkpoints")
    best = tmp_path / "checkpoints" / checkpoint.BEST
    assert (saved / checkpoint.ANSWER).read_bytes() == best.read_bytes()
    about = checkpoint.load_answer(best)[1]
    assert about["results"] == end.results
    summary = summarise(played.events)
    assert (summary.reason, summary.final, summary.best) == ("patience", 2.0, 2.0)
    assert summary.samples < 12 * 48


def test_the_answer_is_the_model_that_was_scored_best(tmp_path):
    run = scripted("single", patience=2)
    play_from(run, folder=tmp_path / "patient")
    play_from(replace(run, stop=Stop(epochs=4)), folder=tmp_path / "short")
    answers = [
        checkpoint.load_answer(
            checkpoint.newest(tmp_path / name / "checkpoints") / "answer.safetensors"
        )
        for name in ("patient", "short")
    ]
    assert answers[0][1]["results"] == answers[1][1]["results"]
    assert all(answers[0][0][name].equal(answers[1][0][name]) for name in answers[1][0])


def test_without_patience_the_last_model_is_the_answer():
    played = play(scripted("single", patience=0))
    assert tuple(played.losses) == SCRIPT
    assert ended(played.events).results["loss"] == 1.5
    assert ended(played.events).reason == "budget"


def test_patience_that_does_not_run_out_also_hands_over_the_best(tmp_path):
    run = replace(scripted("single", patience=9), checkpointing=Checkpointing(every=1, keep=99))
    played = play_from(run, folder=tmp_path)
    assert ended(played.events).reason == "budget"
    assert ended(played.events).results["loss"] == 1.0
    saved = checkpoint.finished(tmp_path / "checkpoints")
    answers = [checkpoint.load_answer(path / checkpoint.ANSWER)[1]["results"] for path in saved]
    assert [a["loss"] for a in answers] == [*SCRIPT[:11], 1.0]  # on the way, the present one


@pytest.mark.parametrize("spec", ["single", "averaging", "parameter-server"])
def test_a_target_comes_first(spec):
    run = scripted(spec, patience=1)
    played = play(replace(run, stop=replace(run.stop, target=3.0)))
    assert ended(played.events).reason == "target"
    assert ended(played.events).results["loss"] == 3.0


def test_what_ended_otherwise_has_not_lost_patience():
    """The evaluation that a stop adds is one that is no better."""
    run = scripted("single", patience=1, evaluation=Evaluation(every=1.0))
    seconds = play(replace(run, stop=Stop(epochs=2))).ranks[0].time
    played = play(replace(run, stop=Stop(epochs=12, patience=1, seconds=1.1 * seconds)))
    assert tuple(played.losses) == (5.0, 3.0, 4.0)
    assert ended(played.events).reason == "seconds"


@pytest.mark.parametrize("spec", ["single", "all-reduce", "averaging"])
def test_more_patience_goes_on_where_less_had_ended(spec, tmp_path):
    run = small_run(spec, 1 if spec == "single" else 2, task=Hopeless(train=48))
    stopped = play_from(replace(run, stop=Stop(epochs=12, patience=3)), folder=tmp_path)
    assert ended(stopped.events).reason == "patience"
    assert len(stopped.losses) in (4, 5)  # a drain may have to be scored once more
    saved = checkpoint.newest(tmp_path / "checkpoints")
    more = play_from(replace(run, stop=Stop(epochs=12, patience=6)), resume_from=saved)
    assert ended(more.events).reason == "patience"
    assert len(stopped.losses) + len(more.losses) in (7, 8)
    none = play_from(replace(run, stop=Stop(epochs=12)), resume_from=saved)
    assert ended(none.events).reason == "budget"
    if spec == "single":  # weights go on from the last, not from the best
        assert none.digests == play(replace(run, stop=Stop(epochs=12))).digests


class HopelessPairs(Pairs):
    def evaluate(self, model):
        return {"loss": 1.0}


@dataclass(frozen=True)
class Hopeless(Quadratic):
    name: ClassVar[str] = "hopeless"

    def open(self) -> HopelessPairs:
        data = super().open()
        return HopelessPairs(data.inputs, data.targets)


@pytest.mark.parametrize("spec", ["all-reduce", "averaging", "gossip", "parameter-server"])
def test_a_run_that_lost_patience_replays(spec, tmp_path):
    run = small_run(spec, 3, task=Hopeless(), stop=Stop(epochs=20, patience=2))
    ends, _ = simulate(run, Plan("teacher", run, tmp_path))
    recorded = choices.read(tmp_path / "choices.jsonl")
    again = play_from(run, lambda rank: Replayer(recorded, rank))
    assert again.digests == [e.digest for e in ends]
    assert ended(again.events).results == {"loss": 1.0}


def test_timing_only_runs_have_no_patience_to_lose():
    run = small_run("all-reduce", 2, stop=Stop(epochs=3, patience=1))
    played = play(run, timing_only=True)
    assert {r.turns for r in played.ranks} == {90}
    assert ended(played.events).reason == "budget"


# -- as a person has it ---------------------------------------------------------------------


def test_the_report_says_what_ended_a_run(tmp_path):
    settings = ["train=512", "dev=64", "hidden=8", "stop.epochs=40", "stop.patience=1",
                "optimiser.lr=1e-9", "minibatch=64"]  # fmt: skip
    words = ["simulate", "teacher", "-s", "single", "-o", str(tmp_path / "run"), "--json"]
    for setting in settings:
        words += ["--set", setting]
    done = CliRunner().invoke(app, words)
    assert done.exit_code == 0, done.output
    summary = json.loads(done.output.strip().splitlines()[-1])
    assert summary["reason"] == "patience"
    assert summary["final"] == summary["best"]
    told = CliRunner().invoke(app, ["report", str(tmp_path / "run"), "--markdown"])
    assert told.exit_code == 0, told.output
    assert "patience" in told.output


@pytest.mark.real
def test_a_real_run_loses_patience_goes_on_with_more_and_replays(tmp_path):
    settings = ("stop.epochs=40", "stop.patience=2", "optimiser.lr=1e-9")
    made = plan(tmp_path / "run", "all-reduce", 2, settings)
    runs.train(made)
    assert ended(read(made.events)).reason == "patience"
    assert runs.replay(made.folder).identical
    turns = max(e.turns for e in read(made.events) if isinstance(e, RankEnded))
    words = ("train", RECIPE, "-o", made.folder, "--resume", "--json")
    more = command(*words, "--set", "stop.patience=6")
    assert more.returncode == 0, more.stderr
    assert json.loads(more.stdout)["reason"] == "patience"
    assert max(e.turns for e in read(made.events) if isinstance(e, RankEnded)) > turns
    assert [stop.patience for _, stop in open_plan(made.folder)[0].stops] == [2, 6]
    assert runs.replay(made.folder).identical
    answer = checkpoint.newest(made.checkpoints) / checkpoint.ANSWER
    assert answer.read_bytes() == (made.checkpoints / checkpoint.BEST).read_bytes()
