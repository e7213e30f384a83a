"""The frame classifier as a person uses it: by commands, on real processes, interrupted."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from phones import SMALL, described, spoken
from real import REGATTA, command, members, until
from rich.console import Console

from regatta import config, recipes
from regatta.config import Evaluation, Run, Stop
from regatta.data.features import Features
from regatta.display import Display
from regatta.events import Evaluated, RankEnded, Started, Warned, read
from regatta.learn.optimisers import Sgd
from regatta.learn.rbm import Rbm
from regatta.runs import simulate
from regatta.tasks.frames import Frames


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch) -> Path:
    monkeypatch.setenv("REGATTA_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture(scope="module")
def features(tmp_path_factory) -> list[Path]:
    """To train and to evaluate with; in two languages."""
    root = tmp_path_factory.mktemp("features")
    both = ("en", "fr")
    return [
        described(spoken(root / f"c{n}", size, seed=n, languages=both), root / f"f{n}").folder
        for n, size in ((1, 10), (2, 4))
    ]


def settings(*words: str) -> list[str]:
    return [part for word in words for part in ("--set", word)]


def small(features: list[Path], **options) -> Run:
    task = Frames(*map(str, features), (), hidden=(16, 8, 16), splice=2, **options)
    return Run(
        task=task, optimiser=Sgd(lr=0.2), minibatch=32, stop=Stop(epochs=3),
        evaluation=Evaluation(every=1.0),
    )  # fmt: skip


# -- a corpus of one's own --------------------------------------------------------------------


def corpus_with_ctm(root: Path, number: int, seed: int) -> Path:
    """Recordings with texts beside them, and the times of their phones in a CTM."""
    spoken(root, number, seed=seed)
    rows = [json.loads(line) for line in (root / "manifest.jsonl").read_text().splitlines()]
    (root / "manifest.jsonl").unlink()
    lines = []
    for row in rows:
        (root / row["audio"]).with_suffix(".txt").write_text("a\n")
        lines += [f"{row['id']} 1 {a:.4f} {b - a:.4f} {p}" for a, b, p in row["phones"]]
    (root / "phones.ctm").write_text("\n".join(lines) + "\n")
    return root


def test_from_recordings_and_times_to_a_run_that_resumes_and_replays(tmp_path, cache):
    corpus = corpus_with_ctm(tmp_path / "train", 12, seed=1)
    made = command("data", "features", corpus / "audio", "--align", corpus / "phones.ctm",
                   "--out", tmp_path / "f-train", *settings("mels=40", "mfcc=0"))  # fmt: skip
    assert made.returncode == 0, made.stderr
    described(spoken(tmp_path / "dev", 4, seed=2, languages=("",)), tmp_path / "f-dev",
              Features(mels=40, mfcc=0))  # fmt: skip
    run = tmp_path / "run"
    options = ("-s", "all-reduce", "-n", "2", "--out", run)
    words = (
        f"train={tmp_path / 'f-train'}", f"dev={tmp_path / 'f-dev'}", "languages=",
        "hidden=24,16", "activation=sigmoid", "init=rbm", "rbm.minibatch=32",
        "minibatch=16", "optimiser.lr=1", "stop.epochs=4", "checkpointing.every=4",
    )  # fmt: skip
    trained = command("train", "frames", *options, *settings(*words))
    assert trained.returncode == 0, trained.stderr
    lines = trained.stdout.splitlines()
    assert lines[:3] == [
        "labelling frames", "pretraining layer 1 of 2", "pretraining layer 2 of 2",
    ]  # fmt: skip
    files = {path: path.stat().st_mtime_ns for path in cache.rglob("layer-*.safetensors")}
    assert len(files) == 2

    resumed = command("train", "frames", *options, "--resume", *settings("stop.epochs=12"))
    assert resumed.returncode == 0, resumed.stderr
    assert "pretraining" not in resumed.stdout
    assert "labelling" not in resumed.stdout
    assert {path: path.stat().st_mtime_ns for path in cache.rglob("layer-*")} == files
    events = list(read(run / "events.jsonl"))
    (started,) = [e for e in events if isinstance(e, Started)]
    assert started.eval_samples
    last = [e for e in events if isinstance(e, Evaluated)][-1]
    assert last.results["accuracy"] > 0.7
    ended = [e for e in events if isinstance(e, RankEnded)][-2:]
    assert len({e.digest for e in ended}) == 1
    assert sum(e.audio for e in ended) == pytest.approx(12 * started.train_samples * 0.01, rel=0.1)
    replayed = command("replay", run)
    assert "identical" in replayed.stdout, replayed.stdout + replayed.stderr


def test_what_cannot_be_is_wrong_usage(tmp_path):
    words = settings("train=nowhere", "dev=nowhere")
    refused = command("train", "frames", "--out", tmp_path / "run", *words)
    assert refused.returncode == 2, refused.stderr
    assert "task.train=nowhere: there are no features in nowhere" in refused.stderr
    assert "Traceback" not in refused.stderr
    assert not (tmp_path / "run").exists()


def test_a_folder_that_is_taken_is_refused_before_anything_is_made(tmp_path, cache):
    (tmp_path / "run.json").write_text("{}")
    refused = command("train", "frames", "--out", tmp_path)
    assert refused.returncode == 2
    assert "already holds a run" in refused.stderr
    assert not cache.exists()


def test_a_home_that_cannot_be_written_to(features, tmp_path):
    (tmp_path / "home").touch()
    words = settings(*(f"{n}={f}" for n, f in zip(("train", "dev"), features, strict=True)))
    refused = command(
        "train", "frames", "--out", tmp_path / "run", *words, "--set", "languages=none",
        environment={"HOME": str(tmp_path / "home"), "REGATTA_CACHE": "", "XDG_CACHE_HOME": ""},
    )  # fmt: skip
    assert refused.returncode == 2, refused.stderr
    assert "let REGATTA_CACHE name another folder" in refused.stderr


# -- strategies -------------------------------------------------------------------------------


@pytest.mark.parametrize("strategy", ["single", "pipeline", "averaging:period=4"])
def test_strategies_learn_frames(features, strategy):
    run = small(features)
    chosen = config.component("strategy", strategy)
    workers = 1 if strategy == "single" else 2
    _, events = simulate(replace(run, strategy=chosen, workers=workers))
    found = [e.results for e in events if isinstance(e, Evaluated)]
    assert found[-1]["accuracy"] > found[0]["accuracy"]
    assert {"accuracy en", "accuracy fr", "loss", "dead"} <= set(found[-1])


def test_dead_units_are_warned_of_once(features, capsys):
    run = replace(small(features), optimiser=Sgd(lr=30.0))
    _, events = simulate(run)
    dead = [e.results["dead"] for e in events if isinstance(e, Evaluated)]
    assert sum(share >= 0.05 for share in dead) > 1
    (warned,) = [e for e in events if isinstance(e, Warned)]
    Display(Console(highlight=False, width=60), "here", 3)(events)
    assert f"  warning: {warned.text}\n" in capsys.readouterr().out


# -- speech made on the spot ------------------------------------------------------------------

MINUTES = 20  # so long in the making that an interrupt is not too late
SCRIPT = f"""
from regatta.tasks.frames import Frames

data = Frames(minutes={MINUTES}, dev_minutes=0.4).open()
print(data.train_samples, data.eval_samples)
"""


def test_interrupted_killed_and_finished_by_a_script_without_guard(tmp_path, cache):
    pytest.importorskip("espeakng_loader")
    words = ("train", "frames", "--out", str(tmp_path / "run"),
             *settings(f"minutes={MINUTES}", "dev_minutes=0.4"))  # fmt: skip
    started = subprocess.Popen(
        [*REGATTA, *words],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True,
    )  # fmt: skip
    ledger = "synth/*/corpus/manifest.jsonl.partial"
    until(lambda: any(path.stat().st_size for path in cache.glob(ledger)), "somebody spoke")
    said = next(cache.rglob("*-000000.flac"))
    first = said.stat().st_mtime_ns
    started.send_signal(signal.SIGINT)  # to the command alone: it ends its children
    told, complaint = started.communicate(timeout=30)
    assert started.returncode == 130
    assert complaint == "stopped: the same command goes on from here\n"
    assert told == "making en speech\n"
    until(lambda: not members(started.pid), "all processes ended")
    assert not (tmp_path / "run").exists()

    killed = subprocess.Popen([*REGATTA, *words], stdout=subprocess.DEVNULL, start_new_session=True)
    until(lambda: len(members(killed.pid)) > 3, "others help it")
    killed.kill()
    killed.wait()
    until(lambda: not members(killed.pid), "they noticed and ended")

    script = tmp_path / "script.py"
    script.write_text(SCRIPT)  # children that ran it again would hang, or start children
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, timeout=50,
                          check=False, env=os.environ | {"OMP_NUM_THREADS": "1"})  # fmt: skip
    assert done.returncode == 0, done.stderr
    train, dev = map(int, done.stdout.split())
    assert train > MINUTES * 6000 > dev > 0.4 * 6000
    assert not done.stderr
    assert said.stat().st_mtime_ns == first  # it went on
    before = {path: path.stat().st_mtime_ns for path in cache.rglob("*") if path.is_file()}
    task = Frames(minutes=MINUTES, dev_minutes=0.4)
    assert task.open().train_samples == train  # nothing is made twice
    after = {path: path.stat().st_mtime_ns for path in cache.rglob("*") if path.is_file()}
    assert {k: v for k, v in after.items() if k.name != ".lock"} == {
        k: v for k, v in before.items() if k.name != ".lock"
    }
    # Features that were lost are made again from the speech.
    shard = next(cache.rglob("train-*/shard-*.arrow"))
    content = shard.read_bytes()
    shard.unlink()
    task.open()
    assert shard.read_bytes() == content


def test_one_step_of_the_papers_network(features):
    """44 million parameters are in the way of nothing: with few classes, at full width."""
    paper = recipes.load("frames-paper")
    task = replace(paper.task, train=str(features[0]), dev=str(features[1]), languages=())
    data, model = task.open(), task.model()
    before = model[0].weight.detach().clone()
    data.loss(model, data.batch(torch.arange(256))).backward()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter -= 0.01 * parameter.grad
    assert not torch.equal(model[0].weight, before)
    assert data.evaluate(model)["loss"] > 0
    assert data.inputs == 17 * SMALL.size
    assert Rbm() == paper.task.rbm
