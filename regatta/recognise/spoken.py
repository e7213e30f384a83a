"""Utterances to evaluate a recogniser with: its run's own, or those of features or of a corpus."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import fields
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

from regatta.data.augment import Augmentation
from regatta.data.checks import Checks
from regatta.data.corpora import Reading, read
from regatta.data.extract import Extraction, extract
from regatta.data.features import Features
from regatta.data.plan import Numbers
from regatta.data.shards import MARKER, Index, open_index
from regatta.data.utterances import Utterances, usable
from regatta.recognise.trained import Trained
from regatta.tasks.speech import Speech
from regatta.tasks.spoken import Tell, silent

_ELSEWHERE = "name features or a corpus with --data"


def own(task: Speech, tell: Tell = silent) -> Index:
    """Those that the run was evaluated with."""
    try:
        return task.dev_features(tell)
    except ValueError as error:
        raise ValueError(f"the run's own data are not here ({error}): {_ELSEWHERE}") from None


def holds_features(path: Path) -> bool:
    """Finished or not."""
    return (path / MARKER).is_file() or any(path.glob("shard-*.arrow"))


@contextmanager
def described(
    source: Path,
    features: Features,
    reading: Reading,
    jobs: int = 1,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> Iterator[Index]:
    """Features of a folder of them, or made of a corpus's audio and gone afterwards."""
    if holds_features(source):
        if reading != Reading():
            raise ValueError(f"{source} holds features: options that say how to read a corpus "
                             "have nothing to say of them")  # fmt: skip
        yield open_index(source)
        return
    corpus = read(source, reading)
    with TemporaryDirectory(prefix="regatta-") as folder:
        yield extract(corpus, Path(folder) / "features", Extraction(features), jobs, progress)


def utterances(index: Index, trained: Trained, max_seconds: float, source: Path) -> Utterances:
    """Those that the recogniser can be judged by, normalised as in its training."""
    _refuse_other_features(index, trained)
    network = trained.model.network
    checks = Checks(trained.alphabet, max_seconds, network.kernel, network.stride)
    sums = None if trained.sums is None else {"": trained.sums}
    texts, problems = usable(index, checks)
    if not texts:
        symbols = trained.alphabet.symbols.replace(" ", "␣")
        raise ValueError(
            f"{source}: no utterance can be used{problems.why()}; the recogniser writes {symbols}"
        )
    return Utterances(index, checks, Augmentation(), trained.normalise, sums)


def _refuse_other_features(index: Index, trained: Trained) -> None:
    here, wanted = index.features, trained.features
    names = [f.name for f in fields(Features) if getattr(here, f.name) != getattr(wanted, f.name)]
    if names:
        there = ", ".join(f"{name}={getattr(here, name)}" for name in names)
        other = ", ".join(f"{name}={getattr(wanted, name)}" for name in names)
        raise ValueError(
            f"the features in {index.folder} have {there}, those that {trained.origin} learnt "
            f"from {other}: make them so with `regatta data features --set`, or name the corpus"
        )


def of_speakers(given: Utterances, wanted: list[str]) -> Numbers:
    """All utterances, or those of some speakers."""
    if not wanted:
        return given.numbers
    names = np.array(given.index.texts("speaker"))[given.numbers]
    known = sorted(set(names.tolist()) - {""})
    for name in wanted:
        if name not in known:
            some = ", ".join(known[:8]) + (", ..." if len(known) > 8 else "")
            there = f"there are {some}" if known else "the data name none"
            raise ValueError(f"--speaker {name}: nobody of that name speaks here; {there}")
    return given.numbers[np.isin(names, wanted)]
