"""How fast batches come: from shards, against a plain DataLoader over audio files.

Both sides have one core and begin every block with an empty memory: nothing that an earlier block
has read or decoded is used again, but the system's cache holds the files.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import median
from typing import Any

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import DataLoader, Dataset

from regatta.aboard import pin
from regatta.benchmarks import Case, Result, abba
from regatta.data import audio
from regatta.data.augment import Augmentation
from regatta.data.corpora import read
from regatta.data.extract import Extraction, extract
from regatta.data.features import Extractor
from regatta.data.loader import Loader, Loading
from regatta.data.manifest import Corpus
from regatta.data.plan import Batching
from regatta.data.shards import Index
from regatta.data.synth.corpus import Synth, make

_HOURS = 0.2
_SIZE = 16  # utterances a batch
_TIMES_REAL_TIME = 2_000
_BAR = 2.0
_MASKS = Augmentation(time_masks=2, mel_masks=2)


def loader(pairs: int) -> Result:
    with tempfile.TemporaryDirectory(prefix="regatta-bench-") as folder:
        where = Path(folder)
        make(Synth(hours=_HOURS), where / "speech", jobs=2)
        corpus = read(where / "speech")
        index = extract(corpus, where / "features", Extraction(), jobs=2)
        torch.set_num_threads(1)
        pin(0)
        return Result(
            "loader",
            "shards to padded batches / a plain DataLoader (or a fixed bar), one core",
            [_against_files(index, corpus, pairs), *_against_bar(index, pairs)],
        )


def _against_files(index: Index, corpus: Corpus, pairs: int) -> Case:
    files = _Files(corpus)
    work = {"A": lambda: _ours(index, Loading()), "B": lambda: _plain(files)}
    rates: dict[str, list[float]] = {"A": [], "B": []}
    for side in abba(pairs):
        rates[side].append(_rate(work[side]))
    ratios = [a / b for a, b in zip(rates["A"], rates["B"], strict=True)]
    ours, its = (f"{median(rates[side]):,.0f} x real time" for side in "AB")
    return Case("DataLoader, features on the fly", ratios, _BAR, ours, its)


def _against_bar(index: Index, pairs: int) -> Iterator[Case]:
    """Seconds of speech a second."""
    for name, loading, bar in (
        ("normalised by corpus", Loading(), 1.0),
        ("normalised by speaker", Loading(normalise="speaker"), 1.0),
        ("with SpecAugment", Loading(augmentation=_MASKS), None),
    ):
        rates = [_rate(lambda loading=loading: _ours(index, loading)) for _ in range(pairs)]  # type: ignore[misc]
        ours = f"{median(rates):,.0f} x real time"
        ratios = [rate / _TIMES_REAL_TIME for rate in rates]
        yield Case(f"fixed bar, {name}", ratios, bar, ours, f"{_TIMES_REAL_TIME:,} x real time")


def _rate(work: Callable[[], Iterator[float]]) -> float:
    began = time.perf_counter()
    speech = sum(work())
    return speech / (time.perf_counter() - began)


def _ours(index: Index, loading: Loading) -> Iterator[float]:
    """Seconds of every batch; a new loader has nothing in memory."""
    batching = Batching(size=_SIZE)
    fresh = Loading(batching, augmentation=loading.augmentation, normalise=loading.normalise)
    yield from (batch.seconds for batch in Loader(index, fresh).batches(epoch=0))


class _Files(Dataset[tuple[Tensor, float]]):
    """What a plain recipe does: decode and extract when it is asked."""

    def __init__(self, corpus: Corpus) -> None:
        self._corpus = corpus
        self._extractor = Extractor()

    def __len__(self) -> int:
        return len(self._corpus.utterances)

    def __getitem__(self, number: int) -> tuple[Tensor, float]:
        source = self._corpus.source(self._corpus.utterances[number])
        samples = audio.read(source, self._extractor.features.rate).samples
        return self._extractor(torch.from_numpy(samples)), len(samples) / 16_000


def _plain(files: _Files) -> Iterator[float]:
    def padded(rows: list[tuple[Tensor, float]]) -> tuple[Tensor, float]:
        return pad_sequence([row[0] for row in rows], batch_first=True), sum(r[1] for r in rows)

    batches: DataLoader[Any] = DataLoader(files, batch_size=_SIZE, shuffle=True, collate_fn=padded)
    yield from (seconds for _, seconds in batches)
