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
from regatta.cluster.faults import Crash, Cut, Fault, Slow, end_of_cuts
from regatta.comm import WORLD, Loss, Seconds
from regatta.worlds.adding import by_host
from regatta.worlds.hardware import Device, Link, cuts_among
from regatta.worlds.memory import seldom_collecting
from regatta.worlds.operations import Group, Meeting, complain_of_waiting
from regatta.worlds.sharing import Sharing
from regatta.worlds.virtual_rank import VirtualComm

__all__ = ["VirtualComm", "VirtualWorld"]

T = TypeVar("T")


class VirtualWorld:
    """`shares` names, for every rank after the workers, the worker whose device it shares.

    Ranks are on the `hosts` of the cluster, unless others are given, and have its `faults`, unless
    others are. `on_crash` is told of a rank that dies, and tells whom the others go on without.
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
    ) -> None:
        self.size = size
        self.cluster = cluster
        self.on_crash: Callable[[int], Sequence[Loss]] = lambda rank: ()
        self.losses: list[Loss] = []
        self.lost: set[int] = set()  # ranks that the others go on without
        workers = size if workers is None else workers
        shares = cluster.placed(workers, [None] * (size - workers) if shares is None else shares)
        self.hosts = list(hosts) or cluster.hosts(workers, shares)
        self.groups = {WORLD: tuple(range(size))} | {k: tuple(v) for k, v in (groups or {}).items()}
        self.now: Seconds = 0.0
        self.halted = False
        self.sharing = Sharing(self._at, lambda: self.now) if cluster.sharing == "fair" else None
        self._heap: list[tuple[Seconds, int, Callable[[Any], None], Any]] = []
        self._ticket = count(1)
        if faults is None:
            faults = cluster.faults_of(size, len(set(self.hosts)))
        cuts = [fault for fault in faults if isinstance(fault, Cut)]
        self._groups = {
            name: Group(name, ranks, by_host(ranks, self.hosts), self._cuts_among(ranks, cuts))
            for name, ranks in self.groups.items()
        }
        cards = {
            host: Link(cluster.latency, cluster.bandwidth, [c for c in cuts if c.host == host])
            for host in self.hosts
        }
        self.comms: list[VirtualComm] = []
        for rank in range(size):
            shared = None if rank < workers else shares[rank - workers]
            seconds = cluster.computing(rank, workers, shared)
            owner = cluster.device_of(rank) if rank < workers else shared
            device = Device() if owner in (None, rank) else self.comms[owner or 0]._device
            self.comms.append(
                VirtualComm(self, rank, seconds, cards[self.hosts[rank]], device, chance(rank))
            )
            if shared is not None:
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

    def _cuts_among(self, ranks: Sequence[int], cuts: Sequence[Cut]) -> list[Cut]:
        return cuts_among({self.hosts[rank] for rank in ranks}, cuts)

    def hold(self, group: Group, meeting: Meeting) -> None:
        """Everybody has come."""
        cost, result = meeting.close(self.cluster, meeting.data)
        start = max(meeting.last_arrival, group.free, self.now)
        group.free = end_of_cuts(group.cuts, start) + cost
        self._at(group.free, meeting.finish, result)

    def _at(self, time: Seconds, action: Callable[[Any], None], argument: Any) -> None:
        heappush(self._heap, (time, next(self._ticket), action, argument))
