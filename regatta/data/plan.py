"""Which utterances stand in which batch: a pure function of the seed, the epoch and the ranks.

So nothing need be remembered to go on in the middle of an epoch: batch 1,000 is computed without
the 999 before it. Shards are shuffled and dealt to ranks; a rank pools the utterances of a few
shards at a time (its window), sorts them by length into buckets, and cuts batches from buckets.
What does not fill a batch waits for the next window. At the end whole batches move from ranks that
have more to ranks that have fewer.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from regatta.data.seeds import mixed_seed

Numbers = NDArray[np.int64]


@dataclass(frozen=True)
class Batching:
    """How utterances come together."""

    size: int = 16  # utterances a batch
    seconds: float = 0.0  # instead: so much audio a batch at most, with its padding
    buckets: int = 8  # of about equally many utterances of like length; 1: any length
    window: int = 16  # shards whose utterances are mixed; more mix better and take more memory
    shuffle: bool = True
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ("size", "buckets", "window"):
            if getattr(self, name) < 1:
                raise ValueError(f"batching: {name} must be 1 or more, not {getattr(self, name)}")
        if not 0 <= self.seconds < float("inf"):
            raise ValueError(f"batching: seconds must be 0 or more, not {self.seconds}")


class Plan:
    def __init__(
        self,
        batching: Batching,
        usable: Sequence[int] | Numbers,
        seconds: NDArray[np.float64],
        shard_of: Numbers,
        ranks: int = 1,
    ) -> None:
        """`usable` are numbers of utterances; the rest is known of all utterances."""
        self.batching, self.ranks = batching, ranks
        self._usable = np.asarray(usable, dtype=np.int64)
        self._bucket_of, self._sizes = _buckets(batching, self._usable, seconds)
        self._seconds = seconds
        shards = shard_of[self._usable]
        order = np.argsort(shards, kind="stable")
        self._shards = np.unique(shards)
        ends = np.searchsorted(shards[order], self._shards, side="right")
        self._of_shard = np.split(self._usable[order], ends[:-1]) if len(self._shards) else []
        self.epoch = lru_cache(maxsize=2)(self._epoch)  # this one, and the next that is begun
        if ranks < 1:
            raise ValueError(f"there must be 1 or more ranks, not {ranks}")
        self.epoch(0)  # says at once what cannot be

    def batches(self, epoch: int, rank: int) -> list[Numbers]:
        """All of a rank's; every rank has equally many."""
        return self.epoch(epoch)[rank]

    def _epoch(self, epoch: int) -> list[list[Numbers]]:
        dealt = [self._of_rank(epoch, rank) for rank in range(self.ranks)]
        mine = [batches for batches, _ in dealt]
        spare = self._from_leftovers(np.concatenate([rest for _, rest in dealt]), epoch)
        if self._may_differ:
            _halve(spare, mine, until=self.ranks)
        quota = (sum(map(len, mine)) + len(spare)) // self.ranks
        if not quota:
            size = "one utterance" if self._may_differ else f"{self.batching.size} utterances"
            raise ValueError(
                f"{len(self._usable)} utterances make no batch of {size} for each of "
                f"{self.ranks} ranks: use smaller batches or fewer ranks"
            )
        for batches in mine:
            spare += batches[quota:]
            del batches[quota:]
        spare = self._mixed_list(spare, epoch, self.ranks, 4)  # who waits is a matter of chance
        for batches in mine:
            missing = quota - len(batches)
            batches += spare[:missing]
            del spare[:missing]
        return mine

    @property
    def _may_differ(self) -> bool:
        """Batches may be smaller than others: then nobody need wait for another epoch."""
        return bool(self.batching.seconds) or not self.batching.shuffle

    def _of_rank(self, epoch: int, rank: int) -> tuple[list[Numbers], Numbers]:
        """Batches of the shards that a rank is dealt, and the utterances left over."""
        order = self._mixed(np.arange(len(self._shards)), epoch)[rank :: self.ranks]
        window = self.batching.window
        batches: list[Numbers] = []
        rest = np.empty(0, np.int64)
        for number, first in enumerate(range(0, len(order), window)):
            pieces = [self._of_shard[shard] for shard in order[first : first + window]]
            mixed = self._mixed(np.concatenate(pieces), epoch, rank, number)
            # Who waited comes first: its shard is still in memory.
            cut, rest = self._cut(np.concatenate([rest, mixed]))
            batches += self._mixed_list(cut, epoch, rank, number, 1)
        return batches, rest

    def _cut(self, pool: Numbers) -> tuple[list[Numbers], Numbers]:
        """Full batches of every bucket, and what does not fill one."""
        batches: list[Numbers] = []
        rest: list[Numbers] = []
        buckets = self._bucket_of[pool]
        for bucket, size in enumerate(self._sizes):
            members = pool[buckets == bucket]
            full = len(members) // size * size
            batches += list(members[:full].reshape(-1, size))
            rest.append(members[full:])
        return batches, np.concatenate(rest)

    def _from_leftovers(self, rest: Numbers, epoch: int) -> list[Numbers]:
        """Batches of neighbours in length. If all must be full, chance decides who waits."""
        batches, rest = self._cut(self._mixed(rest, epoch, self.ranks, 2))
        if not self._may_differ:
            size = self.batching.size
            rest = self._mixed(rest, epoch, self.ranks, 3)[: len(rest) // size * size]
        rest = rest[np.argsort(self._seconds[rest], kind="stable")]
        while len(rest):  # the longest first: they decide how many fit
            size = int(self._sizes[self._bucket_of[rest[-1]]])
            batches.append(rest[-size:])
            rest = rest[:-size]
        return batches

    def _mixed(self, numbers: Numbers, *seeds: int) -> Numbers:
        if not self.batching.shuffle:
            return numbers
        return _random(self.batching.seed, *seeds).permutation(numbers)

    def _mixed_list(self, batches: list[Numbers], *seeds: int) -> list[Numbers]:
        return [batches[n] for n in self._mixed(np.arange(len(batches)), *seeds)]


def _halve(spare: list[Numbers], others: list[list[Numbers]], until: int) -> None:
    """Cut batches in two, the largest first, until all can be dealt evenly to so many ranks."""
    while (sum(map(len, others)) + len(spare)) % until:
        source = max([spare, *others], key=lambda batches: max(map(len, batches), default=0))
        largest = max(range(len(source)), key=lambda n: len(source[n]), default=None)
        if largest is None or len(source[largest]) < 2:
            raise ValueError(f"the utterances cannot be dealt evenly to {until} ranks: use fewer")
        batch = source.pop(largest)
        spare += [batch[: len(batch) // 2], batch[len(batch) // 2 :]]


def _buckets(
    batching: Batching, usable: Numbers, seconds: NDArray[np.float64]
) -> tuple[Numbers, Numbers]:
    """Every utterance's bucket, and every bucket's batch size."""
    known = seconds[usable]
    shares = np.arange(1, batching.buckets) / batching.buckets
    edges = np.unique(np.quantile(known, shares)) if len(known) else np.empty(0)
    bucket_of = np.searchsorted(edges, seconds, side="left")
    sizes = np.full(len(edges) + 1, batching.size)
    if batching.seconds and len(known):
        longest = [*edges, known.max()]
        sizes = np.array([max(1, int(batching.seconds / length)) for length in longest])
        if known.max() > batching.seconds:
            raise ValueError(
                f"batching: an utterance of {known.max():.1f} s does not fit in batches of "
                f"{batching.seconds:g} s: allow more seconds, or leave long utterances out"
            )
    return bucket_of, sizes


def _random(*seeds: int) -> np.random.Generator:
    return np.random.default_rng(mixed_seed(*seeds))
