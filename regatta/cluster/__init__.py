"""What the virtual clock charges by: how long work and messages take."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from dataclasses import dataclass

from regatta.comm import Load, Seconds


@dataclass(frozen=True)
class Cluster:
    """Equal hosts on one switch, one rank a host; a network card carries one message at a time.

    The defaults describe hosts that compute 10,000 samples a second and share 100 Gbit/s links.
    """

    sample_seconds: Seconds = 1e-4  # forward and backward of one sample
    batch_seconds: Seconds = 0.0  # the fixed part of every minibatch
    merge_bandwidth: float = 10e9  # bytes a second of a vector merged into another
    latency: Seconds = 5e-6
    bandwidth: float = 12.5e9  # bytes a second of a network card, each way
    jitter: float = 0.0  # coefficient of variation of computing times, log-normal
    stragglers: int = 0  # the last so many workers are slow ...
    straggle: float = 5.0  # ... by this factor
    jitter_seed: int = 0

    def __post_init__(self) -> None:
        for name in ("merge_bandwidth", "bandwidth", "straggle"):
            if getattr(self, name) <= 0:
                raise ValueError(f"cluster.{name} must be more than 0")
        for name in (
            "sample_seconds", "batch_seconds", "latency", "jitter", "stragglers",
        ):  # fmt: skip
            if getattr(self, name) < 0:
                raise ValueError(f"cluster.{name} must not be negative")

    def computing(self, rank: int, workers: int) -> Callable[[Load], Seconds]:
        """How long a load takes on this rank; jitter has a generator of its own a rank."""
        slow = self.straggle if workers - self.stragglers <= rank < workers else 1.0
        spread = math.sqrt(math.log1p(self.jitter**2))
        draw = random.Random(self.jitter_seed * 1_000_003 + rank).lognormvariate

        def seconds(load: Load) -> Seconds:
            constant = load.nbytes / self.merge_bandwidth
            if load.samples:
                constant += self.batch_seconds + load.samples * self.sample_seconds
            if spread:
                constant *= draw(-spread * spread / 2, spread)
            return constant * slow

        return seconds

    def transmission(self, nbytes: int) -> Seconds:
        """How long a network card is busy with a message."""
        return nbytes / self.bandwidth

    def all_reduce(self, nbytes: int, ranks: int) -> Seconds:
        """Reduce-scatter and all-gather on a ring: 2(P-1) messages of a P-th each."""
        steps = 2 * (ranks - 1)
        return steps * (self.latency + self.transmission(nbytes) / max(ranks, 1))

    def broadcast(self, nbytes: int, ranks: int) -> Seconds:
        """A binomial tree."""
        return math.ceil(math.log2(max(ranks, 1))) * (self.latency + self.transmission(nbytes))


CLUSTERS: dict[str, Cluster] = {
    "default": Cluster(),
    "ethernet-10": Cluster(bandwidth=1.25e9, latency=50e-6),
    "ethernet-1": Cluster(bandwidth=0.125e9, latency=100e-6),
}
