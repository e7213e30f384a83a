"""What virtual ranks share and wait for in turn: links and devices."""

from __future__ import annotations

from collections.abc import Sequence

from regatta.cluster.faults import Cut
from regatta.comm import Seconds


class Link:
    """A way out and a way in, each for one message at a time."""

    __slots__ = ("bandwidth", "cuts", "in_free", "latency", "out_free")

    def __init__(self, latency: Seconds, bandwidth: float, cuts: Sequence[Cut] = ()) -> None:
        self.latency = latency
        self.bandwidth = bandwidth
        self.cuts = cuts
        self.out_free: Seconds = 0.0
        self.in_free: Seconds = 0.0


class Device:
    """What a rank computes on. A server that shares it takes its time from the worker's."""

    __slots__ = ("free", "is_shared", "taken")

    def __init__(self) -> None:
        self.free: Seconds = 0.0
        self.taken: Seconds = 0.0  # by servers, so far
        self.is_shared = False
