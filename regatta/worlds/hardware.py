"""What virtual ranks share and wait for in turn: links and devices."""

from __future__ import annotations

from collections.abc import Collection, Hashable, Sequence

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

    def ways(self, into: Link, duplex: bool) -> dict[Hashable, float]:
        """What a message takes that goes out here and in there, with the bandwidth of each."""
        out, back = ("out", "in") if duplex else ("", "")
        return {(self, out): self.bandwidth, (into, back): into.bandwidth}


def cuts_among(hosts: Collection[int], cuts: Sequence[Cut]) -> list[Cut]:
    """Those that keep these hosts from each other."""
    return [cut for cut in cuts if cut.host in hosts and len(hosts) > 1]


class Device:
    """What a rank computes on. A server that shares it takes its time from the worker's."""

    __slots__ = ("free", "is_shared", "taken")

    def __init__(self) -> None:
        self.free: Seconds = 0.0
        self.taken: Seconds = 0.0  # by servers, so far
        self.is_shared = False
