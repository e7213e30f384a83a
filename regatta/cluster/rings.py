"""In which order devices should form a ring, and which had better be left out.

All hops of a ring carry data at once, and the slowest of them sets the pace.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations

from regatta.cluster.topology import Topology
from regatta.comm import Seconds

_LOOKS = 200_000  # at partial orders, until the search is content with what it has
_WORTH = 1.05  # advice changes only for this much: less is within the error of what is foretold


@dataclass(frozen=True)
class Ring:
    order: tuple[int, ...]
    bandwidth: float  # bytes a second of its slowest hop
    latency: Seconds  # of its slowest hop
    slowest: tuple[int, int]
    proved: bool = True  # no order has a faster slowest hop

    def seconds(self, nbytes: float) -> Seconds:
        """An all-reduce: 2(P-1) messages of a P-th each."""
        ranks = len(self.order)
        return 2 * (ranks - 1) * (self.latency + nbytes / ranks / self.bandwidth)


def ring_of(topology: Topology, order: Sequence[int]) -> Ring:
    hops = list(zip(order, [*order[1:], order[0]], strict=True)) if len(order) > 1 else []
    if not hops:
        return Ring(tuple(order), float("inf"), 0.0, (order[0], order[0]))
    rates = topology.shared(hops)
    worst = min(range(len(hops)), key=lambda hop: rates[hop])
    latency = max(topology.path(*hop).latency for hop in hops)
    return Ring(tuple(order), rates[worst], latency, hops[worst])


def best_ring(topology: Topology, devices: Sequence[int]) -> Ring:
    """The order whose slowest hop is fastest; of equals the one with the fastest hops in all."""
    best = ring_of(topology, sorted(devices))
    if len(devices) < 4:  # with three, both directions are the same hops turned round
        return best
    bound = _bound(topology, devices)
    for looks, order in enumerate(_orders(topology, devices), 1):
        found = ring_of(topology, order)
        if (found.bandwidth, -found.latency) > (best.bandwidth, -best.latency):
            best = found
        if best.bandwidth >= bound:
            return best
        if looks >= _LOOKS // len(devices):
            return Ring(best.order, best.bandwidth, best.latency, best.slowest, proved=False)
    return best


def _bound(topology: Topology, devices: Sequence[int]) -> float:
    """No ring is faster: a ring is connected, and every device has two neighbours."""
    seconds = [
        sorted((topology.path(a, b).bandwidth for b in devices if b != a), reverse=True)[1]
        for a in devices
    ]
    return min(*seconds, _spanning(topology, devices))


def _spanning(topology: Topology, devices: Sequence[int]) -> float:
    """The slowest link that must be used to reach all devices (as a greatest spanning tree has)."""
    reached, least = {devices[0]}, float("inf")
    while len(reached) < len(devices):
        bandwidth, b = max(
            (topology.path(a, b).bandwidth, b) for a in reached for b in devices if b not in reached
        )
        least = min(least, bandwidth)
        reached.add(b)
    return least


def _orders(topology: Topology, devices: Sequence[int]) -> Iterator[list[int]]:
    """All rings, those first that go to the nearest device that is left."""
    order = [min(devices)]

    def extended() -> Iterator[list[int]]:
        left = [device for device in devices if device not in order]
        if not left:
            if order[1] < order[-1]:  # the other way round it is the same ring
                yield list(order)
            return
        here = order[-1]
        left.sort(key=lambda device: (-topology.path(here, device).bandwidth, device))
        for device in left:
            order.append(device)
            yield from extended()
            order.pop()

    yield from extended()


# -- advice ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Setting:
    """One synchronous step of a worker: computing, then a sum of so many bytes."""

    compute_seconds: Seconds
    nbytes: float
    samples: int  # of a worker, a step

    def __post_init__(self) -> None:
        if not 0 < self.compute_seconds < float("inf"):
            raise ValueError(
                f"seconds of computing must be more than 0, not {self.compute_seconds}"
            )
        if not 0 <= self.nbytes < float("inf"):
            raise ValueError(f"bytes to sum must not be negative, not {self.nbytes}")
        if self.samples < 1:
            raise ValueError(f"samples must be 1 or more, not {self.samples}")


@dataclass(frozen=True)
class Choice:
    """So many devices in a ring."""

    ring: Ring
    left_out: tuple[int, ...]
    step_seconds: Seconds
    speed: float  # samples a second
    speedup: float  # over one device


@dataclass(frozen=True)
class Advice:
    every: Choice  # all devices
    best: Choice
    choices: tuple[Choice, ...]  # the best of every number of devices, most devices first

    @property
    def gain(self) -> float:
        """Of leaving devices out; 1: none is."""
        return self.best.speed / self.every.speed


def advise(topology: Topology, setting: Setting) -> Advice:
    """The fastest subset of every size; a smaller one is advised only where it gains enough."""
    devices = range(len(topology.devices))
    choices = [
        max(
            (_choice(topology, kept, setting) for kept in _kept(topology, size)),
            key=lambda choice: choice.speed,
        )
        for size in reversed(range(1, len(devices) + 1))
    ]
    best = choices[0]
    for choice in choices[1:]:
        if choice.speed > best.speed:
            best = choice
    if best.speed < _WORTH * choices[0].speed:
        best = choices[0]
    return Advice(choices[0], best, tuple(choices))


def _kept(topology: Topology, size: int) -> Iterator[tuple[int, ...]]:
    """Subsets of a size. Where there are too many, what is left out is left out one by one."""
    devices = tuple(range(len(topology.devices)))
    if len(devices) <= 10 or len(devices) - size <= 1:
        yield from combinations(devices, size)
        return
    kept = devices
    while len(kept) > size:
        kept = tuple(device for device in kept if device != _worst(topology, kept))
    yield kept


def _worst(topology: Topology, kept: Sequence[int]) -> int:
    """Whose links to the others are slowest, in the sum."""
    return min(kept, key=lambda a: (sum(topology.path(a, b).bandwidth for b in kept if b != a), a))


def _choice(topology: Topology, kept: Sequence[int], setting: Setting) -> Choice:
    ring = best_ring(topology, kept)
    seconds = setting.compute_seconds + (ring.seconds(setting.nbytes) if len(kept) > 1 else 0.0)
    speed = len(kept) * setting.samples / seconds
    alone = setting.samples / setting.compute_seconds
    left = tuple(d for d in range(len(topology.devices)) if d not in kept)
    return Choice(ring, left, seconds, speed, speed / alone)
