"""Ranks under a virtual clock: discrete events in one process, the real mathematics.

A heap of (time, sequence, action, argument) drives every rank's coroutine. An operation that is not
finished yields itself; the event that finishes it resumes the coroutine. What this gives up: ranks
really run one after another, so a simulation takes the sum of their computing times.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Mapping, Sequence
from functools import partial
from heapq import heappop, heappush
from itertools import count
from typing import Any, TypeVar

import torch

from regatta.choices import NOTHING, Chance, Kind, Live
from regatta.cluster import Cluster
from regatta.cluster.faults import Crash, Cut, CutLink, Slow, end_of_cuts, end_of_work
from regatta.comm import ANY, DATA, WORLD, Load, Message, Op, Seconds, Traffic, Vector
from regatta.worlds.adding import by_host
from regatta.worlds.hardware import Device, Link
from regatta.worlds.leaving import Halt
from regatta.worlds.memory import seldom_collecting
from regatta.worlds.operations import (
    SENT,
    Computing,
    Done,
    Group,
    Inbox,
    Meeting,
    Pending,
    complain_of_waiting,
)
from regatta.worlds.sharing import Sharing, Way

T = TypeVar("T")


class VirtualWorld:
    """`shares` names, for every rank after the workers, the worker whose device it shares.

    Ranks are on the `hosts` of the cluster, unless a replay brings those of its run.
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
    ) -> None:
        self.size = size
        self.cluster = cluster
        workers = size if workers is None else workers
        shares = [None] * (size - workers) if shares is None else shares
        self.site = site = cluster.site(workers, shares)
        self.hosts = list(hosts) or site.hosts
        self.groups = {WORLD: tuple(range(size))} | {k: tuple(v) for k, v in (groups or {}).items()}
        self.now: Seconds = 0.0
        self.halt = Halt()
        self.sharing = Sharing(self._at, lambda: self.now) if cluster.sharing == "fair" else None
        self._heap: list[tuple[Seconds, int, Callable[[Any], None], Any]] = []
        self._ticket = count(1)
        faults = cluster.faults_of(size, max(self.hosts) + 1)
        self._cuts = cuts = [fault for fault in faults if isinstance(fault, Cut)]
        cards = {
            host: Link(cluster.latency, cluster.bandwidth, [c for c in cuts if c.host == host])
            for host in self.hosts
        }
        kind, self.wires = VirtualComm, None
        if cluster.described:
            from regatta.worlds.wired import WiredComm, Wires  # they build on what is here

            named = [fault for fault in faults if isinstance(fault, CutLink)]
            kind, self.wires = WiredComm, Wires(cluster, site, [*cuts, *named])
        self._groups = {name: self._group(name, of) for name, of in self.groups.items()}
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

    def _group(self, name: str, ranks: tuple[int, ...]) -> Group:
        """With what it is charged for sums, and the cuts that keep its ranks from each other."""
        order, wires = by_host(ranks, self.hosts), self.wires
        if wires:
            return Group(name, ranks, order, wires.sums(ranks), wires.cuts_of(ranks))
        hosts = {self.hosts[rank] for rank in ranks} if len(order) > 1 else ()
        cuts, charged = self._cuts, self.cluster.sums(len(ranks), len(order))
        return Group(name, ranks, order, charged, [cut for cut in cuts if cut.host in hosts])

    def _at(self, time: Seconds, action: Callable[[Any], None], argument: Any) -> None:
        heappush(self._heap, (time, next(self._ticket), action, argument))


class VirtualComm:
    """One rank of a virtual world."""

    reduces_in_place = False  # ranks share results, and a lone rank's result is its own data
    sends_unwritten = True
    charges_steps = False  # here stands what few worlds have: ranks need not have it each
    works = False  # at what a computing stands for; known where steps are charged
    is_dead = False
    asked_to_leave = False  # nobody has to
    _owed: Seconds = 0.0  # for what was done outside of computing
    _slow: Sequence[Slow] = ()

    def __init__(
        self,
        world: VirtualWorld,
        rank: int,
        seconds: Callable[[Load], Seconds],
        card: Link,
        device: Device,
        chance: Chance,
    ) -> None:
        # What every turn uses stands together: with a thousand ranks, memory is what takes time.
        self._world = world
        self._card = card
        self._host = world.hosts[rank]
        self.rank = rank
        self.traffic = Traffic()
        self._work: tuple[Seconds, Seconds] | None = None  # start and length of what computes now
        self._receives: list[Pending] = []
        self._inbox: Inbox | None = None  # until a message comes that nobody waits for
        self._coroutine: Coroutine[Any, Any, Any] | None = None
        self._waits_for: Pending | None = None
        self._waits_since: Seconds = 0.0
        self._device = device
        if world.cluster.step_bandwidth:
            self.charges_steps = True
        self._is_guest = False  # takes its time from the device's own rank
        self._seconds = seconds
        self.chance = chance
        self._work_now: Seconds = 0.0
        self._local = Link(world.cluster.local_latency, world.cluster.local_bandwidth)
        self.size = world.size
        self.groups = world.groups
        self._result: Any = None

    # -- what a strategy sees ---------------------------------------------------------------

    def now(self) -> Seconds:
        return self._world.now

    def empty(self, numel: int, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
        return torch.empty(numel, dtype=dtype, device=device)

    def send(self, dst: int, data: Vector, tag: int = DATA, version: int = 0) -> Op[None]:
        world, traffic, nbytes = self._world, self.traffic, data.nbytes
        traffic.messages += 1
        traffic.nbytes += nbytes
        message = Message(self.rank, tag, version, data)
        if dst == self.rank:
            world._at(world.now, self._deliver, message)
            return SENT
        link = self._card if world.hosts[dst] != self._host else self._local
        start = world.now if self._work is None else self._work_now
        if link.cuts:
            start = end_of_cuts(link.cuts, start)
        if world.sharing is not None:
            world._at(start, self._share_links, (link, message, dst))
            return SENT
        if link.out_free > start:
            start = link.out_free
        link.out_free = start + nbytes / link.bandwidth
        if traffic.timeline is not None:
            traffic.timeline.note("s", start, link.out_free)
        arrive = world.comms[dst]._first_byte
        heappush(world._heap, (start + link.latency, next(world._ticket), arrive, message))
        return SENT

    def recv(self, src: int = ANY, tag: int = ANY) -> Op[Message]:
        if src == ANY and self.chance.replaying:
            src = self._recorded("recv")
        message = None if self._inbox is None else self._inbox.take(src, tag)
        if message is not None:
            if src == ANY:
                self.chance.note("recv", message.src)
            return Done(message)
        op = Pending(self, (src, tag))
        self._receives.append(op)
        return op

    def poll(self, src: int = ANY, tag: int = ANY) -> Op[Message | None]:
        if self.chance.replaying:
            recorded = self._recorded("poll")
            return Done(None) if recorded == NOTHING else self.recv(recorded, tag)
        message = None if self._inbox is None else self._inbox.take(src, tag)
        self.chance.note("poll", NOTHING if message is None else message.src)
        return Done(message)

    def all_reduce(
        self, data: Vector, group: str = WORLD, into: Vector | None = None, written: bool = True
    ) -> Op[Vector]:
        together = self._world._groups[group]
        return self._meet(together, together.summing, data, together.sum)

    def broadcast(self, data: Vector, root: int, group: str = WORLD) -> Op[Vector]:
        together = self._world._groups[group]
        return self._meet(
            together, f"broadcast from rank {root}", data, partial(together.spread, root)
        )

    def compute(
        self, work: Callable[[], T], load: Load, overlap: bool = False, at_once: bool = False
    ) -> Op[T]:
        world, device = self._world, self._device
        start = world.now
        seconds = self._seconds(load)
        if self._owed:
            seconds += self._owed
            self._owed = 0.0
        if self._slow:
            began = max(start, 0.0 if self._is_guest else device.free)
            seconds = end_of_work(self._slow, began, seconds) - began
        traffic = self.traffic
        traffic.computing += seconds
        op = Computing(self, Done(work()).get if at_once else work)
        if self._is_guest:
            device.taken += seconds
            if traffic.timeline is not None:
                traffic.timeline.note("c", start, start + seconds)
            world._at(start + seconds, Computing.do, op)
            return op
        if device.free > start:
            start = device.free
        end = device.free = start + seconds
        if traffic.timeline is not None:
            traffic.timeline.note("c", start, end)
        if overlap:
            world._at(end, op.finish, self._done_ahead(work, start, seconds))
        elif device.is_shared:
            world._at(end, self._do_unless_late, (op, device.taken))
        else:
            # Really done when the clock says so: what it makes is used at once, while the
            # processor's caches still hold it.
            heappush(world._heap, (end, next(world._ticket), Computing.do, op))
        return op

    def owe(self, stepped: int) -> None:
        if self.charges_steps and not self.works:
            self._owed += self._seconds(Load(stepped=stepped))

    def _do_unless_late(self, op_and_taken: tuple[Computing, Seconds]) -> None:
        """What a server took from this device meanwhile is still to be made up for."""
        op, taken = op_and_taken
        device = self._device
        if device.taken > taken:
            late = device.free = self._world.now + device.taken - taken
            self._world._at(late, self._do_unless_late, (op, device.taken))
        else:
            op.do()

    def _done_ahead(self, work: Callable[[], T], start: Seconds, seconds: Seconds) -> T:
        """Done now, so that what it starts on its way can start at its own time."""
        self._work, self._work_now = (start, seconds), start
        try:
            return work()
        finally:
            self._work = None

    def progress(self, fraction: float) -> None:
        if self._work is not None:
            start, seconds = self._work
            self._work_now = start + fraction * seconds

    def halt(self, turn: int = 0) -> None:
        self._world.halt.before(turn)

    def halted(self, turn: int | None = None) -> bool:
        return self._world.halt.is_due(turn)

    def ask_to_leave(self) -> None: ...

    # -- how it comes about -----------------------------------------------------------------

    def _share_links(self, sent: tuple[Link, Message, int]) -> None:
        """The message passes as fast as others let it; the last byte comes a latency later."""
        link, message, dst = sent
        world, receiver = self._world, self._world.comms[dst]
        assert world.sharing is not None
        into = receiver._card if link is self._card else receiver._local
        full = world.cluster.duplex
        ways: dict[Way, float] = {(link, "out" if full else ""): link.bandwidth}
        ways[into, "in" if full else ""] = into.bandwidth

        def passed(began: Seconds) -> None:
            if self.traffic.timeline is not None:
                self.traffic.timeline.note("s", began, world.now)
            world._at(world.now + link.latency, receiver._deliver, message)

        world.sharing.begin((message.src, dst), ways, message.data.nbytes, passed)

    def _add_note(self, error: Exception) -> None:
        note = f"on rank {self.rank}, at {self._world.now:.6g} virtual seconds"
        if note not in getattr(error, "__notes__", ()):
            error.add_note(note)

    def _meet(
        self,
        group: Group,
        what: str,
        data: Vector,
        close: Callable[[Meeting], tuple[Seconds, Vector]],
    ) -> Pending:
        """Join this group's next collective; `close` tells its cost and result."""
        self.traffic.messages += 1
        self.traffic.nbytes += data.nbytes
        op = Pending(self, what)
        now = self._world.now if self._work is None else self._work_now
        meeting = group.join(op, data, now)
        if meeting is not None:
            cost, result = close(meeting)
            start = max(meeting.last_arrival, group.free)
            group.free = end_of_cuts(group.cuts, start) + cost
            self._world._at(group.free, meeting.finish, result)
        return op

    def _die(self) -> None:
        if self._coroutine is not None:
            self._coroutine.close()
            self._coroutine = self._waits_for = None
            self.is_dead = True

    def _recorded(self, kind: Kind) -> int:
        recorded = self.chance.take(kind)
        assert recorded is not None
        return recorded

    def _first_byte(self, message: Message) -> None:
        world = self._world
        link = self._card if world.hosts[message.src] != self._host else self._local
        start = end_of_cuts(link.cuts, world.now) if link.cuts else world.now
        if link.in_free > start:
            start = link.in_free
        link.in_free = start + message.data.nbytes / link.bandwidth
        heappush(world._heap, (link.in_free, next(world._ticket), self._deliver, message))

    def _deliver(self, message: Message) -> None:
        if self.is_dead:
            return
        for op in self._receives:
            src, tag = op.what
            if (src == ANY or src == message.src) and (tag == ANY or tag == message.tag):
                self._receives.remove(op)
                if src == ANY:
                    self.chance.note("recv", message.src)
                op.finish(message)
                return
        if self._inbox is None:
            self._inbox = Inbox()
        self._inbox.put(message)

    def _resume(self) -> None:
        if self.is_dead:
            return
        try:
            self._waits_for = self._coroutine.send(None)  # type: ignore[union-attr]
        except StopIteration as stop:
            self._waits_for = self._coroutine = None
            self._result = stop.value
        except Exception as error:
            self._add_note(error)
            raise
        self._waits_since = self._world.now
