"""Baunsgaard et al. again: a small recogniser on synthetic speech and on recorded digits.

    python studies/speech.py [--out studies/out] [--digits DATA] [--only NAME ...]

    synth      trains on synthetic speech, two workers, at most 15 minutes of training; chooses the
               weights of the language model on an hour of speech that is neither trained on nor
               evaluated with
    digits     trains on strings of recorded digits (DATA holds `spoken-digits` and `fsdd`, see
               digits.py), evaluates unseen speakers, and the model of `synth` on them
    processes  times to levels of four strategies with two real workers
    machines   the same with four virtual workers on the paper's three machines

Every piece is a `regatta` command, printed before it starts; what is there is not run again.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import replace
from itertools import product
from pathlib import Path

from commands import once, regatta

from regatta.data.corpora import Reading
from regatta.decode.errors import ErrorRates
from regatta.evaluating import Answer
from regatta.recognise.evaluating import Outputs, Scored, entries, texts_for
from regatta.recognise.spoken import described, own, utterances
from regatta.recognise.trained import Trained
from regatta.tasks.speech import Speech

HERE = Path(__file__).parent
MACHINES = [str(HERE / "clusters" / f"{name}.toml") for name in ("sys1", "sys2", "sys10")]
STRATEGIES = "all-reduce averaging:period=16 parameter-server ring"
WORDS = [
    "--set", "decoding.decoder=words", "--set", "decoding.mode=ngrams",
    "--set", "decoding.alpha=1.2", "--set", "decoding.beta=3",
]  # fmt: skip
CHOSEN = [  # by an earlier such run, on the hour of other speech
    *WORDS, "--set", "decoding.alpha=3", "--set", "decoding.beta=3",
    "--set", "decoding.width=256",
]  # fmt: skip
EPOCHS, MOST_SECONDS = 20, 900
ALPHAS, BETAS = (1.2, 1.6, 2.0, 2.5, 3.0, 3.5), (3.0, 4.0, 5.0, 6.0)
SMALLER = [  # a network that learns something in a minute, for races
    "--set", "minutes=20", "--set", "dev_minutes=4", "--set", "stop.epochs=16",
    "--set", "network.channels=160", "--set", "network.hidden=160", "--set", "network.layers=1",
    "--set", "network.bidirectional=true", "--set", "optimiser.lr=0.003", "--minibatch", "4",
    "--set", "schedule=fixed", *WORDS,
]  # fmt: skip


def synth(out: Path) -> None:
    once(
        out / "synth", "train", "speech", "-s", "all-reduce", "-n", "2", "--set", "minutes=180",
        "--set", f"stop.epochs={EPOCHS}", "--set", f"stop.seconds={MOST_SECONDS}",
        "--set", "schedule=hold:until=0.6", *CHOSEN,
    )  # fmt: skip
    once(out / "others", "data", "synth", "--hours", "1", "--seed", "11")
    alpha, beta = chosen_weights(out / "synth", out / "others")
    weights = ["--alpha", str(alpha), "--beta", str(beta)]
    regatta("evaluate", out / "synth", "--beam-widths", "16,64,256,1024", *weights)
    of_sentences(out / "synth", [(1.2, 3.0), (alpha, beta)])


def heard_by(run: Path, corpus: Path | None) -> Callable[..., Scored]:
    """How a run's outputs for a corpus (none: its own) are read with other options."""
    trained, task = Trained.open(run), Answer.open(run).task
    assert isinstance(task, Speech)
    texts = texts_for(task.decoding, task, trained.words)
    with ExitStack() as stack:
        index = own(task)
        if corpus is not None:
            other = described(corpus, trained.features, Reading(split="test"), jobs=2)
            index = stack.enter_context(other)
        given = utterances(index, trained, task.max_seconds, corpus or index.folder)
        outputs = Outputs.of(trained.model, given, given.numbers)

    def scored(**options: float) -> Scored:
        decoding = replace(task.decoding, jobs=2, **options)
        (entry,) = entries(decoding, [], trained.alphabet, texts)
        return outputs.scored(entry)

    return scored


def chosen_weights(run: Path, corpus: Path) -> tuple[float, float]:
    """Alpha and beta with the fewest word errors."""
    scored = heard_by(run, corpus)
    found = {}
    for alpha, beta in product(ALPHAS, BETAS):
        found[alpha, beta] = scored(alpha=alpha, beta=beta).comparison.rates.wer
        print(f"alpha {alpha:g}, beta {beta:g}: WER {100 * found[alpha, beta]:.2f} %", flush=True)
    return min(found, key=lambda weights: found[weights])


def of_sentences(run: Path, weights: Sequence[tuple[float, float]]) -> None:
    """Single digits are said in every part of a corpus; all sentences to evaluate with are new."""
    scored = heard_by(run, None)
    for (alpha, beta), width in product(weights, (64, 256, 1024)):
        compared = scored(alpha=alpha, beta=beta, width=width).comparison
        rates = {}
        for name, several in (("sentences", True), ("single digits", False)):
            of_kind = [a for a in compared.alignments if (" " in a.pair.reference) == several]
            rates[name] = f"{name} {100 * ErrorRates.of_alignments(of_kind).wer:.2f} %"
        print(f"alpha {alpha:g}, beta {beta:g}, {width} beams:", ", ".join(rates.values()))


def digits(out: Path, data: Path) -> None:
    corpus, features = out / "digits", out / "digits-features"
    if not corpus.exists():
        subprocess.run([sys.executable, HERE / "digits.py", data, corpus], check=True)
    for part in ("train", "dev", "test"):
        once(features / part, "data", "features", corpus / part)
    once(
        out / "digits-run", "train", "speech", "-s", "all-reduce", "-n", "2",
        "--set", f"train={features / 'train'}", "--set", f"dev={features / 'dev'}",
        "--set", "stop.epochs=40", "--set", "stop.seconds=880",
    )  # fmt: skip
    lexicon = out / "digits.txt"
    lexicon.write_text("zero one two three four five six seven eight nine".replace(" ", "\n"))
    for model in ("digits-run", "synth"):
        common = ["evaluate", out / model, "--data", features / "test", "--by-speaker"]
        regatta(*common, "--decoder", "greedy")
        regatta(*common, "--decoder", "words", "--mode", "words", "--lexicon", lexicon)


def processes(out: Path) -> None:
    once(
        out / "processes", "race", "speech", "--strategies", STRATEGIES, "--workers", "2",
        "--seeds", "2", *SMALLER,
    )  # fmt: skip
    regatta("report", out / "processes", "--tta", "--markdown")


def machines(out: Path) -> None:
    once(
        out / "machines", "race", "speech", "--strategies", STRATEGIES, "--workers", "4",
        "--seeds", "1", "--simulate", "--cluster", ",".join(MACHINES), *SMALLER,
        "--set", "stop.epochs=12",
    )  # fmt: skip
    regatta("report", out / "machines", "--tta", "--markdown")


PIECES = ("synth", "digits", "processes", "machines")


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--out", type=Path, default=HERE / "out" / "speech")
    parser.add_argument("--digits", type=Path, metavar="DATA")
    parser.add_argument("--only", nargs="*", choices=PIECES, default=PIECES)
    given = parser.parse_args(arguments)
    out = given.out.resolve()
    out.mkdir(parents=True, exist_ok=True)
    if "synth" in given.only:
        synth(out)
    if "digits" in given.only and given.digits is not None:
        digits(out, given.digits)
    if "processes" in given.only:
        processes(out)
    if "machines" in given.only:
        machines(out)


if __name__ == "__main__":
    main()
