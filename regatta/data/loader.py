"""Padded batches from features on disk, read ahead by threads, from any place of any epoch."""

from __future__ import annotations

import threading
from collections import OrderedDict, deque
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from regatta.data.augment import Augmentation, Augmenter
from regatta.data.checks import Checks
from regatta.data.normalise import NORMALISATIONS, Normaliser, Sums
from regatta.data.plan import Batching, Numbers, Plan
from regatta.data.problems import BadUtterance, Problems
from regatta.data.shards import Index, Shard


class Batch(NamedTuple):
    features: Tensor  # utterances, frames, features; zeros after the end
    frames: Tensor  # of each utterance
    targets: Tensor  # utterances, symbols; -1 after the end
    symbols: Tensor  # of each text
    numbers: Numbers  # of the utterances, in the index
    seconds: float  # of speech


@dataclass(frozen=True)
class Loading:
    """How features are read."""

    batching: Batching = field(default_factory=Batching)
    checks: Checks = field(default_factory=Checks)
    augmentation: Augmentation = field(default_factory=Augmentation)
    normalise: str = "global"  # mean and variance of the corpus, of the speaker, or none
    readers: int = 2  # threads that read ahead; 0: none, everything when it is asked for
    buffer: int = 4  # batches that are ready at most

    def __post_init__(self) -> None:
        if self.normalise not in NORMALISATIONS:
            known = ", ".join(NORMALISATIONS)
            raise ValueError(f"normalise must be one of {known}, not {self.normalise}")
        if self.readers < 0 or self.buffer < 1:
            raise ValueError("loading: readers must be 0 or more, buffer 1 or more")


class Loader:
    def __init__(
        self,
        index: Index,
        loading: Loading = Loading(),  # noqa: B008
        rank: int = 0,
        ranks: int = 1,
        sums: dict[str, Sums] | None = None,
    ) -> None:
        """`sums` are those to normalise with, where they are not these features' own."""
        if not 0 <= rank < ranks:
            raise ValueError(f"rank {rank} is none of {ranks}")
        self.index, self.loading = index, loading
        self._rank = rank
        self._texts, self.problems = usable(index, loading.checks)
        if not self._texts:
            kinds = ", ".join(self.problems.counts())
            raise ValueError(f"{index.folder}: no utterance can be used ({kinds})")
        numbers = np.array(sorted(self._texts), dtype=np.int64)
        batching = loading.batching  # a slower utterance is longer
        room = batching.seconds * (1 - loading.augmentation.speed)
        self.plan = Plan(
            replace(batching, seconds=room), numbers, index.seconds, index.shard_of, ranks
        )
        own = {} if loading.normalise == "none" else index.sums
        speakers = index.texts("speaker")
        self._normaliser = Normaliser(loading.normalise, sums or own, own, speakers)
        self._augmenter: Augmenter | None = None
        if not loading.augmentation.does_nothing:
            self._augmenter = Augmenter(loading.augmentation, index.features)
        self._shards = _Shards(index, keep=2 * loading.batching.window)

    def __len__(self) -> int:
        """Batches of the first epoch; by count, of every epoch."""
        return len(self.plan.batches(0, self._rank))

    def batches(self, epoch: int, start: int = 0) -> Iterator[Batch]:
        """This rank's batches of an epoch, from number `start` on."""
        planned = self.plan.batches(epoch, self._rank)
        if not 0 <= start <= len(planned):
            raise ValueError(f"there is no batch {start} in an epoch of {len(planned)}")
        planned = planned[start:]
        if not self.loading.readers:
            yield from (self.batch(numbers, epoch) for numbers in planned)
            return
        with ThreadPoolExecutor(self.loading.readers, "regatta-reader") as pool:
            ahead: deque[Future[Batch]] = deque()
            coming = iter(planned)
            try:
                while True:
                    for numbers in islice(coming, self.loading.buffer - len(ahead)):
                        ahead.append(pool.submit(self.batch, numbers, epoch))
                    if not ahead:
                        return
                    yield ahead.popleft().result()
            finally:
                for future in ahead:
                    future.cancel()

    def batch(self, numbers: Numbers, epoch: int = 0) -> Batch:
        """These utterances, as they are in this epoch."""
        pieces = [self._features(number, epoch) for number in numbers]
        frames = torch.tensor([len(piece) for piece in pieces])
        padded = torch.zeros(len(pieces), int(frames.max()), self.index.features.size)
        for row, (number, piece) in enumerate(zip(numbers, pieces, strict=True)):
            self._normaliser(piece, number, out=padded[row, : len(piece)])
        encoded = self.loading.checks.alphabet.encoded
        texts = [encoded(self._texts[number]) for number in numbers]
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
        least = self.loading.checks.frames_for(self._texts[number])
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
