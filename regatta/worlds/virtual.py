"""Ranks under a virtual clock: discrete events in one process, the real mathematics.

A heap of (time, sequence, action, argument) drives every rank's coroutine. An operation that is not
finished yields itself; the event that finishes it resumes the coroutine. What this gives up: ranks
really run one after another, so a simulation takes the sum of their computing times.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Mapping, Sequence
from heapq import heappop, heappush
from itertools import count
from typing import Any, TypeVar

from regatta.choices import Chance, Live
from regatta.cluster import Cluster
from regatta.cluster.faults import Crash, Cut, CutLink, Fault, Slow, end_of_cuts
from regatta.cluster.site import Site
from regatta.cluster.sums import Sums
from regatta.comm import WORLD, Loss, Seconds
from regatta.worlds.adding import by_host
from regatta.worlds.hardware import Device, Link, cuts_among
from regatta.worlds.leaving import Halt
from regatta.worlds.memory import seldom_collecting
from regatta.worlds.operations import Group, Meeting, complain_of_waiting
from regatta.worlds.sharing import Sharing
from regatta.worlds.virtual_rank import VirtualComm
from regatta.worlds.wired import WiredComm, Wires

__all__ = ["VirtualComm", "VirtualWorld"]

T = TypeVar("T")


class VirtualWorld:
    """`shares` names, for every rank after the workers, the worker whose device it shares.

    Ranks are at the `site` and on the `hosts` that the cluster has for them, unless others are
    given, and have its `faults`, unless others are. `on_crash` is told of a rank that dies, and
    tells whom the others go on without.
    """

    def __init__(
        self,
        size: int,
        cluster: Cluster,
        groups: Mapping[str, Sequence[int]] | None = None,
        workers: int | None = None,
        chance: Callable[[int], Chance] = lambda rank: Live(),
        shares: Sequence[int | None] | None = None,
        hosts: Sequence[int] = (),
        faults: Sequence[Fault] | None = None,
        site: Site | None = None,
    ) -> None:
        self.size = size
        self.cluster = cluster
        self.on_crash: Callable[[int], Sequence[Loss]] = lambda rank: ()
        self.losses: list[Loss] = []
        self.lost: set[int] = set()  # ranks that the others go on without
        workers = size if workers is None else workers
        shares = [None] * (size - workers) if shares is None else shares
        self.site = site = site or cluster.site(workers, shares)
        self.hosts = list(hosts) or site.hosts
        self.groups = {WORLD: tuple(range(size))} | {k: tuple(v) for k, v in (groups or {}).items()}
        self.now: Seconds = 0.0
        self.halt = Halt()
        self.sharing = Sharing(self._at, lambda: self.now) if cluster.sharing == "fair" else None
        self._heap: list[tuple[Seconds, int, Callable[[Any], None], Any]] = []
        self._ticket = count(1)
        if faults is None:
            faults = cluster.faults_of(size, max(self.hosts) + 1)
        cuts = [fault for fault in faults if isinstance(fault, Cut)]
        cards = {
            host: Link(cluster.latency, cluster.bandwidth, [c for c in cuts if c.host == host])
            for host in self.hosts
        }
        kind: type[VirtualComm] = VirtualComm
        self.wires: Wires | None = None
        if cluster.described:
            named = [fault for fault in faults if isinstance(fault, CutLink)]
            kind, self.wires = WiredComm, Wires(cluster, site, [*cuts, *named])
        self._groups = {name: self._group(name, of, cuts) for name, of in self.groups.items()}
        self.comms: list[VirtualComm] = []
        for rank, owner in enumerate(site.owners):
            seconds, card = site.computing(cluster, rank), cards[self.hosts[rank]]
            device = Device() if owner == rank else self.comms[owner]._device
            self.comms.append(kind(self, rank, seconds, card, device, chance(rank)))
            if site.share_of(rank) is not None:
                device.is_shared = True
                self.comms[rank]._is_guest = True
        self.crashes = [fault for fault in faults if isinstance(fault, Crash)]
        for fault in (fault for fault in faults if isinstance(fault, Slow)):
            self.comms[fault.rank]._slow = [*self.comms[fault.rank]._slow, fault]

    def run(self, play: Callable[[VirtualComm], Coroutine[Any, Any, T]]) -> list[T]:
        """Play every rank to its end; what each returns, by rank."""
        for comm in self.comms:
            comm._coroutine = play(comm)
            self._at(0.0, VirtualComm._resume, comm)
        for crash in self.crashes:
            self._at(crash.at, VirtualComm._die, self.comms[crash.rank])
        heap = self._heap
        try:
            with seldom_collecting(self.size):
                while heap:
                    self.now, _, action, argument = heappop(heap)
                    action(argument)
            complain_of_waiting(self.comms)
        finally:
            for comm in self.comms:
                if comm._coroutine is not None:
                    comm._coroutine.close()
        return [comm._result for comm in self.comms]

    def _group(self, name: str, ranks: tuple[int, ...], cuts: Sequence[Cut]) -> Group:
        order, wires = by_host(ranks, self.hosts), self.wires
        if wires is not None:
            return Group(name, ranks, order, self._sums, wires.cuts_of(ranks))
        apart = cuts_among({self.hosts[rank] for rank in ranks}, cuts)
        return Group(name, ranks, order, self._sums, apart)

    def _sums(self, ranks: Sequence[int]) -> Sums:
        """What sums of these ranks are charged."""
        if self.wires is not None:
            return self.wires.sums(ranks)
        return self.cluster.sums(len(ranks), len({self.hosts[rank] for rank in ranks}))

    def hold(self, group: Group, meeting: Meeting) -> None:
        """Everybody has come."""
        cost, result = meeting.close(meeting)
        start = max(meeting.last_arrival, group.free, self.now)
        group.free = end_of_cuts(group.cuts, start) + cost
        self._at(group.free, meeting.finish, result)

    def _at(self, time: Seconds, action: Callable[[Any], None], argument: Any) -> None:
        heappush(self._heap, (time, next(self._ticket), action, argument))
