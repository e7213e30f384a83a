"""Padded batches from features on disk, read ahead by threads, from any place of any epoch."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from itertools import islice

from regatta.data.augment import Augmentation
from regatta.data.checks import Checks
from regatta.data.normalise import Sums
from regatta.data.plan import Batching, Plan
from regatta.data.shards import Index
from regatta.data.utterances import Batch, Utterances, check_normalisation


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
        check_normalisation(self.normalise)
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
        self.loading, self._rank = loading, rank
        batching = loading.batching
        self.utterances = Utterances(
            index,
            loading.checks,
            loading.augmentation,
            loading.normalise,
            sums,
            keep=2 * batching.window,
        )
        room = batching.seconds * (1 - loading.augmentation.speed)  # a slower one is longer
        numbers = self.utterances.numbers
        self.plan = Plan(
            replace(batching, seconds=room), numbers, index.seconds, index.shard_of, ranks
        )

    def __len__(self) -> int:
        """Batches of the first epoch; by count, of every epoch."""
        return len(self.plan.batches(0, self._rank))

    def batches(self, epoch: int, start: int = 0) -> Iterator[Batch]:
        """This rank's batches of an epoch, from number `start` on."""
        planned = self.plan.batches(epoch, self._rank)
        if not 0 <= start <= len(planned):
            raise ValueError(f"there is no batch {start} in an epoch of {len(planned)}")
        planned, batch = planned[start:], self.utterances.batch
        if not self.loading.readers:
            yield from (batch(numbers, epoch) for numbers in planned)
            return
        with ThreadPoolExecutor(self.loading.readers, "regatta-reader") as pool:
            ahead: deque[Future[Batch]] = deque()
            coming = iter(planned)
            try:
                while True:
                    for numbers in islice(coming, self.loading.buffer - len(ahead)):
                        ahead.append(pool.submit(batch, numbers, epoch))
                    if not ahead:
                        return
                    yield ahead.popleft().result()
            finally:
                for future in ahead:
                    future.cancel()
