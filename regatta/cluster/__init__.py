"""What the virtual clock charges by: how long work and messages take."""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial

from regatta.comm import Load, Seconds


@dataclass(frozen=True)
class Cluster:
    """Equal hosts on one switch; a network card carries one message at a time, each way.

    The defaults describe hosts of one worker that compute 10,000 samples a second and share
    100 Gbit/s links; workers of one host talk over PCIe 3 (12 GB/s, as NCCL takes it).
    """

    sample_seconds: Seconds = 1e-4  # forward and backward of one sample
    batch_seconds: Seconds = 0.0  # the fixed part of every minibatch
    merge_bandwidth: float = 10e9  # bytes a second of a vector merged into another
    latency: Seconds = 5e-6
    bandwidth: float = 12.5e9  # bytes a second of a network card, each way
    per_host: int = 1  # workers on a host; they share its network card
    local_latency: Seconds = 2e-6  # between ranks of one host
    local_bandwidth: float = 12e9
    jitter: float = 0.0  # coefficient of variation of computing times
    jitter_shape: str = "lognormal"  # or normal
    uneven: float = 0.0  # coefficient of variation of the workers' own speeds, which they keep
    pauses: float = 0.0  # chance that some work is interrupted ...
    pause_seconds: Seconds = 0.1  # ... for so long, in the mean
    stragglers: int = 0  # the last so many workers are slow ...
    straggle: float = 5.0  # ... by this factor
    jitter_seed: int = 0
    price_per_hour: float = 0.0  # of a host; 0: not known

    def __post_init__(self) -> None:
        for name in ("merge_bandwidth", "bandwidth", "local_bandwidth", "straggle", "per_host"):
            if not getattr(self, name) > 0:
                raise ValueError(f"cluster.{name} must be more than 0")
        for name in (
            "sample_seconds", "batch_seconds", "latency", "local_latency", "jitter", "stragglers",
            "price_per_hour", "uneven", "pauses", "pause_seconds",
        ):  # fmt: skip
            if not getattr(self, name) >= 0:
                raise ValueError(f"cluster.{name} must not be negative")
        if self.pauses > 1:
            raise ValueError(f"cluster.pauses is a chance, 1 at most, not {self.pauses:g}")
        if self.jitter_shape not in ("lognormal", "normal"):
            raise ValueError(f"cluster.jitter_shape: lognormal or normal, not {self.jitter_shape}")

    def hosts(self, workers: int, shares: Sequence[int | None] = ()) -> list[int]:
        """The host of every rank: of the workers, then of the servers.

        A server shares the host of the worker named in `shares`, or has one of its own.
        """
        of_workers = [worker // self.per_host for worker in range(workers)]
        own = itertools.count(of_workers[-1] + 1)
        return of_workers + [next(own) if w is None else of_workers[w] for w in shares]

    def computing(
        self, rank: int, workers: int, device: int | None = None
    ) -> Callable[[Load], Seconds]:
        """How long a load takes on this rank, or on the `device` of another.

        Jitter has a generator of its own a rank.
        """
        slow_ranks = range(workers - self.stragglers, workers)
        slow = self.straggle if (rank if device is None else device) in slow_ranks else 1.0
        if self.uneven:
            slow *= _own_pace(self, rank if device is None else device)
        if not self.jitter and not self.pauses:
            return _steady(self, slow)
        generator = random.Random(self.jitter_seed * 1_000_003 + rank)
        draw, steady = self._drawing(generator), _steady(self, 1.0)
        if not self.pauses:
            return lambda load: steady(load) * draw() * slow
        chance, mean = self.pauses, self.pause_seconds

        def seconds(load: Load) -> Seconds:
            taken = steady(load) * draw() * slow
            if load.samples and generator.random() < chance:
                taken += generator.expovariate(1 / mean) if mean else 0.0
            return taken

        return seconds

    def _drawing(self, generator: random.Random) -> Callable[[], float]:
        """Factors around 1, as different from one another as `jitter` says."""
        if not self.jitter:
            return lambda: 1.0
        if self.jitter_shape == "normal":
            return partial(_positive, generator.gauss, 1.0, self.jitter)
        return partial(generator.lognormvariate, *_around_one(self.jitter))

    def all_reduce(self, nbytes: int, ranks: int, hosts: int | None = None) -> Seconds:
        """Reduce-scatter and all-gather on a ring: 2(P-1) messages of a P-th each.

        Among several ranks a host it is a ring inside every host, and between a host's stripes and
        the same stripes of the others one that has to share the host's network card.
        """
        hosts = ranks if hosts is None else hosts
        inside = -(-ranks // max(hosts, 1))  # ranks on the fullest host
        between = _ring_seconds(hosts, nbytes, self.latency, self.bandwidth)
        return between + _ring_seconds(inside, nbytes, self.local_latency, self.local_bandwidth)

    def broadcast(self, nbytes: int, ranks: int, hosts: int | None = None) -> Seconds:
        """A binomial tree between hosts, then one inside each."""
        hosts = ranks if hosts is None else hosts
        inside = -(-ranks // max(hosts, 1))
        between = _levels(hosts) * (self.latency + nbytes / self.bandwidth)
        return between + _levels(inside) * (self.local_latency + nbytes / self.local_bandwidth)


@lru_cache
def _steady(cluster: Cluster, slow: float) -> Callable[[Load], Seconds]:
    """How long a load takes without jitter; ranks that are equally fast share it."""
    merge_bandwidth, sample_seconds = cluster.merge_bandwidth, cluster.sample_seconds
    batch_seconds = cluster.batch_seconds

    def seconds(load: Load) -> Seconds:
        constant = load.nbytes / merge_bandwidth
        if load.samples:
            constant += batch_seconds + load.samples * sample_seconds
        return constant * slow

    return seconds


def _own_pace(cluster: Cluster, rank: int) -> float:
    """A worker's own factor, the same for all its work; drawn apart from its jitter."""
    generator = random.Random(f"{cluster.jitter_seed}/{rank}")
    return generator.lognormvariate(*_around_one(cluster.uneven))


def _around_one(variation: float) -> tuple[float, float]:
    """What a lognormal distribution with mean 1 and this coefficient of variation is made by."""
    spread = math.sqrt(math.log1p(variation**2))
    return -spread * spread / 2, spread


def _ring_seconds(ranks: int, nbytes: int, latency: Seconds, bandwidth: float) -> Seconds:
    return 2 * (ranks - 1) * (latency + nbytes / bandwidth / max(ranks, 1))


def _levels(ranks: int) -> int:
    return math.ceil(math.log2(max(ranks, 1)))


def _positive(draw: Callable[[float, float], float], mean: float, spread: float) -> float:
    """A draw above 0; a normal one with a small spread always is."""
    while (value := draw(mean, spread)) <= 0:
        pass
    return value


CLUSTERS: dict[str, Cluster] = {
    "default": Cluster(),
    "ethernet-10": Cluster(bandwidth=1.25e9, latency=50e-6),
    "ethernet-1": Cluster(bandwidth=0.125e9, latency=100e-6),
}
