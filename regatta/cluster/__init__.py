"""What the virtual clock charges by: how long work and messages take."""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial

from regatta.cluster.curve import checked_curve, on_curve
from regatta.cluster.faults import Crash, Cut, Fault, Slow, read_fault
from regatta.comm import Load, Seconds


@dataclass(frozen=True)
class Cluster:
    """Equal hosts on one switch, each with a network card that carries messages both ways.

    The defaults describe hosts of one worker that compute 10,000 samples a second and share
    100 Gbit/s links; workers of one host talk over PCIe 3 (12 GB/s, as NCCL takes it).
    """

    sample_seconds: Seconds = 1e-4  # forward and backward of one sample
    batch_seconds: Seconds = 0.0  # the fixed part of every minibatch
    curve: tuple[tuple[float, Seconds], ...] = ()  # or [samples, seconds] as measured, in pairs
    crowded: float = 1.0  # all that times this, where several workers share a host
    merge_bandwidth: float = 10e9  # bytes a second of a vector merged into another
    step_bandwidth: float = 0.0  # of weights that an optimiser steps; 0: it costs nothing
    latency: Seconds = 5e-6
    bandwidth: float = 12.5e9  # bytes a second of a network card, each way
    per_host: int = 1  # workers on a host; they share its network card
    local_latency: Seconds = 2e-6  # between ranks of one host
    local_bandwidth: float = 12e9
    sum_latency: Seconds = 0.0  # of a sum that a host's ranks make through memory they share ...
    sum_bandwidth: float = 0.0  # ... bytes a second of it; 0: they send messages round a ring
    sharing: str = "turns"  # messages on one card, one after the other; or fair: all at once
    duplex: bool = True  # with fair: a card sends and receives at the same time
    devices: int = 0  # that there are in all; 0: as many as are asked for
    oversubscribe: bool = False  # more ranks than devices share them
    jitter: float = 0.0  # coefficient of variation of computing times
    jitter_shape: str = "lognormal"  # or normal
    uneven: float = 0.0  # coefficient of variation of the workers' own speeds, which they keep
    paces: tuple[float, ...] = ()  # or factors of the first workers' times, where they are known
    pauses: float = 0.0  # chance that some work is interrupted ...
    pause_seconds: Seconds = 0.1  # ... for so long, in the mean
    stragglers: int = 0  # the last so many workers are slow ...
    straggle: float = 5.0  # ... by this factor
    jitter_seed: int = 0
    faults: tuple[str, ...] = ()  # what goes wrong: see cluster/faults.py
    restart_seconds: Seconds = 0.0  # from a death until all ranks compute again
    price_per_hour: float = 0.0  # of a host; 0: not known

    def __post_init__(self) -> None:
        for name in (
            "merge_bandwidth", "bandwidth", "local_bandwidth", "straggle", "per_host", "crowded",
        ):  # fmt: skip
            if not getattr(self, name) > 0:
                raise ValueError(f"cluster.{name} must be more than 0")
        for name in (
            "sample_seconds", "batch_seconds", "latency", "local_latency", "jitter", "stragglers",
            "price_per_hour", "uneven", "pauses", "pause_seconds", "step_bandwidth", "sum_latency",
            "sum_bandwidth", "devices", "restart_seconds",
        ):  # fmt: skip
            if not getattr(self, name) >= 0:
                raise ValueError(f"cluster.{name} must not be negative")
        if self.pauses > 1:
            raise ValueError(f"cluster.pauses is a chance, 1 at most, not {self.pauses:g}")
        if self.jitter_shape not in ("lognormal", "normal"):
            raise ValueError(f"cluster.jitter_shape: lognormal or normal, not {self.jitter_shape}")
        for fault in self.faults:
            read_fault(fault)
        if self.sharing not in ("turns", "fair"):
            raise ValueError(f"cluster.sharing: turns or fair, not {self.sharing}")
        if not all(0 < pace < math.inf for pace in self.paces):
            raise ValueError("cluster.paces must all be more than 0")
        object.__setattr__(self, "curve", checked_curve(self.curve))

    def hosts(self, workers: int, shares: Sequence[int | None] = ()) -> list[int]:
        """The host of every rank: of the workers, then of the servers.

        A server shares the host of the worker named in `shares`, or has one of its own.
        """
        shares = self.placed(workers, shares)
        of_workers = [self.device_of(worker) // self.per_host for worker in range(workers)]
        own = itertools.count(max(of_workers) + 1)
        return of_workers + [next(own) if w is None else of_workers[w] for w in shares]

    def faults_of(self, ranks: int, hosts: int) -> list[Fault]:
        """As data; whom there is not is refused."""
        found = [read_fault(text) for text in self.faults]
        for fault, text in zip(found, self.faults, strict=True):
            if isinstance(fault, Cut) and fault.host >= hosts:
                raise ValueError(f"cluster.faults: {text!r}: there are {hosts} hosts, from 0")
            if isinstance(fault, Slow | Crash) and fault.rank >= ranks:
                raise ValueError(f"cluster.faults: {text!r}: there are {ranks} ranks, from 0")
        return found

    def device_of(self, worker: int) -> int:
        return worker % self.devices if self.devices else worker

    def placed(self, workers: int, shares: Sequence[int | None]) -> list[int | None]:
        """For every server the worker whose device it shares; None where it has one of its own.

        Ranks for which there is no device are refused, unless they may share.
        """
        wanted = workers + sum(worker is None for worker in shares)
        if not self.devices or wanted <= self.devices:
            return list(shares)
        if not self.oversubscribe:
            raise ValueError(
                f"{wanted} ranks and {self.devices} devices: use fewer workers, a larger cluster, "
                "servers that share (placement=colocated), or --oversubscribe"
            )
        return [n % workers if share is None else share for n, share in enumerate(shares)]

    def computing(
        self, rank: int, workers: int, device: int | None = None
    ) -> Callable[[Load], Seconds]:
        """How long a load takes on this rank, or on the `device` of another.

        Jitter has a generator of its own a rank.
        """
        slow_ranks = range(workers - self.stragglers, workers)
        slow = self.straggle if (rank if device is None else device) in slow_ranks else 1.0
        if min(workers, self.per_host) > 1:
            slow *= self.crowded
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
        if self.sum_bandwidth and inside > 1:
            return between + self.sum_latency + nbytes / self.sum_bandwidth
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
    batch_seconds, curve = cluster.batch_seconds, cluster.curve
    step_bandwidth = cluster.step_bandwidth or math.inf

    def seconds(load: Load) -> Seconds:
        constant = load.nbytes / merge_bandwidth + load.stepped / step_bandwidth
        if load.samples:
            if curve:
                constant += on_curve(curve, load.samples)
            else:
                constant += batch_seconds + load.samples * sample_seconds
        return constant * slow

    return seconds


def _own_pace(cluster: Cluster, rank: int) -> float:
    """A worker's own factor, the same for all its work; drawn apart from its jitter."""
    if rank < len(cluster.paces):
        return cluster.paces[rank]
    if not cluster.uneven:
        return 1.0
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
