"""Utterances that can be learnt from, as padded batches of normalised features and texts."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Mapping
from concurrent.futures import Future
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from regatta.data.augment import Augmentation, Augmenter
from regatta.data.checks import Checks
from regatta.data.normalise import NORMALISATIONS, Normaliser, Sums
from regatta.data.plan import Numbers
from regatta.data.problems import BadUtterance, Problems
from regatta.data.shards import Index, Shard


class Batch(NamedTuple):
    features: Tensor  # utterances, frames, features; zeros after the end
    frames: Tensor  # of each utterance
    targets: Tensor  # utterances, symbols; -1 after the end
    symbols: Tensor  # of each text
    numbers: Numbers  # of the utterances, in the index
    seconds: float  # of speech


def check_normalisation(kind: str) -> None:
    if kind not in NORMALISATIONS:
        raise ValueError(f"normalise must be one of {', '.join(NORMALISATIONS)}, not {kind}")


class Utterances:
    def __init__(
        self,
        index: Index,
        checks: Checks,
        augmentation: Augmentation,
        normalise: str = "global",
        sums: Mapping[str, Sums] | None = None,
        keep: int = 32,
    ) -> None:
        """`sums` are those to normalise with, where they are not these features' own.

        The `keep` shards that were asked for last stay in memory.
        """
        self.index, self.checks = index, checks
        self.texts, self.problems = usable(index, checks)
        if not self.texts:
            kinds = ", ".join(self.problems.counts())
            raise ValueError(f"{index.folder}: no utterance can be used ({kinds})")
        self.numbers = np.array(sorted(self.texts), dtype=np.int64)
        own = {} if normalise == "none" else index.sums
        self._normaliser = Normaliser(normalise, sums or own, own, index.texts("speaker"))
        self._augmenter: Augmenter | None = None
        if not augmentation.does_nothing:
            self._augmenter = Augmenter(augmentation, index.features)
        self._shards = _Shards(index, keep)

    def __len__(self) -> int:
        return len(self.numbers)

    def batch(self, numbers: Numbers, epoch: int = 0) -> Batch:
        """These utterances, as they are in this epoch."""
        pieces = [self._features(number, epoch) for number in numbers]
        frames = torch.tensor([len(piece) for piece in pieces])
        padded = torch.zeros(len(pieces), int(frames.max()), self.index.features.size)
        for row, (number, piece) in enumerate(zip(numbers, pieces, strict=True)):
            self._normaliser(piece, number, out=padded[row, : len(piece)])
        encoded = self.checks.alphabet.encoded
        texts = [encoded(self.texts[number]) for number in numbers]
        targets = torch.full((len(texts), max(map(len, texts), default=0)), -1)
        for row, text in enumerate(texts):
            targets[row, : len(text)] = torch.tensor(text)
        symbols = torch.tensor([len(text) for text in texts])
        seconds = float(self.index.seconds[numbers].sum())
        return Batch(padded, frames, targets, symbols, numbers, seconds)

    def _features(self, number: int, epoch: int) -> Tensor:
        shard = self._shards.get(int(self.index.shard_of[number]))
        features = shard.features(int(self.index.row_of[number]))
        if self._augmenter is None:
            return features
        least = self.checks.frames_for(self.texts[number])
        return self._augmenter(features, epoch, int(number), least)


def usable(index: Index, checks: Checks) -> tuple[dict[int, str], Problems]:
    """The utterances that can be learnt from, with their texts; and why not the others."""
    texts: dict[int, str] = {}
    problems = Problems()
    rows = zip(index.texts("id"), index.texts("text"), index.frames, index.seconds, strict=True)
    for number, (name, text, frames, seconds) in enumerate(rows):
        try:
            checks.check(text, int(frames), float(seconds))
        except BadUtterance as error:
            problems.add([error.of(name)])
            continue
        texts[number] = checks.alphabet.normalised(text) if checks.text else ""
    return texts, problems


class _Shards:
    """Those in memory; the one that was not asked for longest makes room."""

    def __init__(self, index: Index, keep: int) -> None:
        self._index, self._keep = index, keep
        self._lock = threading.Lock()
        self._there: OrderedDict[int, Future[Shard]] = OrderedDict()

    def get(self, number: int) -> Shard:
        """Read once, however many ask at the same time."""
        with self._lock:
            known = self._there.get(number)
            if known is not None:
                self._there.move_to_end(number)
            else:
                mine: Future[Shard] = Future()
                self._there[number] = mine
                if len(self._there) > self._keep:
                    self._there.popitem(last=False)
        if known is not None:
            return known.result()
        try:
            mine.set_result(self._index.shard(number))
        except BaseException as error:
            mine.set_exception(error)
            with self._lock:
                self._there.pop(number, None)
            raise
        return mine.result()
