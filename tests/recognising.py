"""A recogniser of words whose letters are tones, learnt in seconds, and recordings of them."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import numpy as np
import soundfile
from phones import HERTZ, described
from speaking import RATE, manifest
from typer.testing import CliRunner

from regatta import checkpoint
from regatta.cli import app
from regatta.config import Evaluation, Recording, Run, Stop
from regatta.data.alphabet import Alphabet
from regatta.learn.optimisers import Adam
from regatta.models.recogniser import Network
from regatta.runs import Plan, simulate
from regatta.strategies.all_reduce import AllReduce
from regatta.tasks.speech import Speech

NETWORK = Network(channels=16, kernel=5, stride=2, hidden=32, layers=1, dropout=0.0)
WORDS = ("bad", "cab", "dace", "bead", "ace")


def trained_run(root: Path) -> Path:
    """The folder of a run that has learnt to write some words."""
    features = [str(_features(root / name, size)) for name, size in (("train", 60), ("dev", 8))]
    run = Run(
        task=Speech(*features, network=NETWORK), optimiser=Adam(lr=0.02), workers=1, minibatch=4,
        strategy=AllReduce(), stop=Stop(epochs=16), evaluation=Evaluation(every=4.0),
        recording=Recording(sentences=0),
    )  # fmt: skip
    simulate(run, Plan("speech", run, root / "run"))
    return root / "run"


def _features(root: Path, size: int) -> Path:
    """Of utterances of one to three words."""
    random = np.random.default_rng(size)
    (root / "audio").mkdir(parents=True)
    rows: list[object] = []
    for number in range(size):
        text = " ".join(random.choice(WORDS, random.integers(1, 4)))
        soundfile.write(root / f"audio/{number}.wav", said(text, seed=number), RATE)
        rows.append({"id": f"u{number}", "audio": f"audio/{number}.wav", "text": text,
                     "speaker": f"s{number % 2}"})  # fmt: skip
    manifest(root, rows)
    return described(root, root / "features").folder


def another(path: Path, source: Path, network: Network, seed: int = 0, **changes: object) -> Path:
    """A checkpoint like that of the run, of another network with drawn weights."""
    import torch

    from regatta.models.recogniser import Recogniser
    from regatta.recognise.trained import Trained

    known = Trained.open(source)
    _, about = checkpoint.load_answer(known.origin)
    about["description"] |= changes
    about["task"]["network"] = vars(network)
    torch.manual_seed(seed)
    outputs = Alphabet(**about["description"]["alphabet"]).outputs
    model = Recogniser(known.features.size, outputs, network)
    checkpoint.save_answer(path, model.state_dict(), about)
    return path


def said(text: str, rate: int = RATE, seed: int = 0) -> np.ndarray:
    """Letters as tones, a space as a third of a second of quiet."""
    random = np.random.default_rng(seed)
    sounds = [np.zeros(round(0.05 * rate))]
    for letter in text:
        length = 0.33 if letter == " " else 0.09
        when = np.arange(round(length * rate)) / rate
        sounds.append(np.zeros(len(when)) if letter == " " else
                      0.3 * np.sin(2 * np.pi * HERTZ[letter] * when))  # fmt: skip
    sounds.append(np.zeros(round(0.05 * rate)))
    heard = np.concatenate(sounds)
    noise = 0.01 * np.sqrt(rate / RATE) * random.standard_normal(len(heard))  # at RATE as loud
    return (heard + noise).astype(np.float32)


def recorded(path: Path, text: str, rate: int = RATE, channels: int = 1) -> Path:
    samples = said(text, rate)
    soundfile.write(path, np.column_stack([samples] * channels), rate)
    return path


class Done(NamedTuple):
    code: int
    out: str
    err: str


def regatta(*words: object, given: bytes | None = None) -> Done:
    """The command line in this process; a ValueError is what `main` would print."""
    result = CliRunner().invoke(app, [str(word) for word in words], input=given)
    told = result.stderr
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        if not isinstance(result.exception, ValueError):
            raise result.exception
        told += f"regatta: {result.exception}\n"
    return Done(result.exit_code, result.stdout, told)
