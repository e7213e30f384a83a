"""Ranks under a virtual clock: discrete events in one process, the real mathematics.

A heap of (time, sequence, action, argument) drives every rank's coroutine. An operation that is not
finished yields itself; the event that finishes it resumes the coroutine. What this gives up: ranks
really run one after another, so a simulation takes the sum of their computing times.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Coroutine, Mapping, Sequence
from functools import partial
from heapq import heappop, heappush
from typing import Any, TypeVar

import torch

from regatta.choices import NOTHING, Chance, Live
from regatta.cluster import Cluster
from regatta.comm import ANY, DATA, WORLD, Deadlock, Load, Message, Op, Seconds, Traffic, Vector
from regatta.worlds.hardware import Device, Link
from regatta.worlds.operations import (
    COMPUTING,
    SENT,
    Done,
    Meeting,
    Pending,
    finish_all,
    finish_one,
)  # fmt: skip

T = TypeVar("T")


class VirtualWorld:
    """`shares` names, for every rank after the workers, the worker whose device it shares."""

    def __init__(
        self,
        size: int,
        cluster: Cluster,
        groups: Mapping[str, Sequence[int]] | None = None,
        workers: int | None = None,
        chance: Callable[[int], Chance] = lambda rank: Live(),
        shares: Sequence[int | None] | None = None,
    ) -> None:
        self.size = size
        self.cluster = cluster
        workers = size if workers is None else workers
        shares = [None] * (size - workers) if shares is None else shares
        self.hosts = cluster.hosts(workers, shares)
        self.groups = {WORLD: tuple(range(size))} | {k: tuple(v) for k, v in (groups or {}).items()}
        self.now: Seconds = 0.0
        self.halted = False
        self._heap: list[tuple[Seconds, int, Callable[[Any], None], Any]] = []
        self._sequence = 0
        self._meetings: dict[tuple[str, int], Meeting] = {}
        self._group_free: dict[str, Seconds] = dict.fromkeys(self.groups, 0.0)
        self._group_hosts = {
            name: len({self.hosts[rank] for rank in ranks}) for name, ranks in self.groups.items()
        }
        cards = {host: Link(cluster.latency, cluster.bandwidth) for host in self.hosts}
        self.comms: list[VirtualComm] = []
        for rank in range(size):
            shared = None if rank < workers else shares[rank - workers]
            seconds = cluster.computing(rank, workers, shared)
            device = Device() if shared is None else self.comms[shared]._device
            self.comms.append(
                VirtualComm(self, rank, seconds, cards[self.hosts[rank]], device, chance(rank))
            )
            if shared is not None:
                device.is_shared = True
                self.comms[rank]._takes_time_from = device

    def run(self, play: Callable[[VirtualComm], Coroutine[Any, Any, T]]) -> list[T]:
        """Play every rank to its end; what each returns, by rank."""
        for comm in self.comms:
            comm._coroutine = play(comm)
            self._at(0.0, VirtualComm._resume, comm)
        heap = self._heap
        try:
            while heap:
                self.now, _, action, argument = heappop(heap)
                action(argument)
            waiting = [comm for comm in self.comms if comm._waits_for is not None]
            if waiting:
                raise Deadlock(self._who_waits(waiting))
        finally:
            for comm in self.comms:
                if comm._coroutine is not None:
                    comm._coroutine.close()
        return [comm._result for comm in self.comms]

    def _who_waits(self, waiting: list[VirtualComm]) -> str:
        gone = {comm.rank for comm in self.comms} - {comm.rank for comm in waiting}
        text = "nothing is left to happen: " + ", ".join(
            f"rank {comm.rank} waits for {comm._waits_for.describe()}"
            for comm in waiting
            if comm._waits_for is not None
        )
        return text + (f"; ended: {', '.join(map(str, sorted(gone)))}" if gone else "")

    def _at(self, time: Seconds, action: Callable[[Any], None], argument: Any) -> None:
        self._sequence += 1
        heappush(self._heap, (time, self._sequence, action, argument))

    def _meet(
        self,
        comm: VirtualComm,
        group: str,
        what: str,
        data: Vector,
        close: Callable[[Meeting, tuple[int, ...]], tuple[Seconds, Vector]],
    ) -> Pending:
        """Join this group's next collective; `close` tells its cost and result."""
        members = self.groups[group]
        round_number = comm._rounds.get(group, 0)
        comm._rounds[group] = round_number + 1
        meeting = self._meetings.setdefault((group, round_number), Meeting())
        op = Pending(what)
        meeting.ops[comm.rank] = op
        meeting.data[comm.rank] = data
        meeting.last_arrival = max(meeting.last_arrival, comm._clock())
        if len(meeting.ops) == len(members):
            del self._meetings[group, round_number]
            cost, result = close(meeting, members)
            end = max(meeting.last_arrival, self._group_free[group]) + cost
            self._group_free[group] = end
            self._at(end, finish_all, (meeting.ops, result))
        return op


class VirtualComm:
    """One rank of a virtual world."""

    reduces_in_place = False  # ranks share results, and a lone rank's result is its own data

    def __init__(
        self,
        world: VirtualWorld,
        rank: int,
        seconds: Callable[[Load], Seconds],
        card: Link,
        device: Device,
        chance: Chance,
    ) -> None:
        self.rank = rank
        self.size = world.size
        self.groups = world.groups
        self.traffic = Traffic()
        self.chance = chance
        self._world = world
        self._cluster = world.cluster
        self._seconds = seconds
        self._host = world.hosts[rank]
        self._card = card
        self._local = Link(world.cluster.local_latency, world.cluster.local_bandwidth)
        self._device = device
        self._takes_time_from: Device | None = None
        self._inbox: deque[Message] = deque()
        self._receives: list[Pending] = []
        self._rounds: dict[str, int] = {}
        self._work: tuple[Seconds, Seconds] | None = None  # start and length of what computes now
        self._work_now: Seconds = 0.0
        self._coroutine: Coroutine[Any, Any, Any] | None = None
        self._waits_for: Pending | None = None
        self._waits_since: Seconds = 0.0
        self._result: Any = None

    # -- what a strategy sees ---------------------------------------------------------------

    def now(self) -> Seconds:
        return self._world.now

    def empty(self, numel: int, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
        return torch.empty(numel, dtype=dtype, device=device)

    def send(self, dst: int, data: Vector, tag: int = DATA, version: int = 0) -> Op[None]:
        nbytes = data.nbytes
        traffic = self.traffic
        traffic.messages += 1
        traffic.nbytes += nbytes
        world = self._world
        message = Message(self.rank, tag, version, data)
        if dst == self.rank:
            world._at(world.now, world.comms[dst]._deliver, message)
            return SENT
        other = world.comms[dst]
        start = self._clock()
        if other._host == self._host:
            link, arrive = self._local, other._first_local_byte
        else:
            link, arrive = self._card, other._first_byte
        if link.out_free > start:
            start = link.out_free
        link.out_free = start + nbytes / link.bandwidth
        world._at(start + link.latency, arrive, message)
        return SENT

    def recv(self, src: int = ANY, tag: int = ANY) -> Op[Message]:
        if src == ANY:
            recorded = self.chance.take("recv")
            if recorded is not None:
                src = recorded
            else:
                return self._receive(ANY, tag)
        return self._receive(src, tag)

    def poll(self, src: int = ANY, tag: int = ANY) -> Op[Message | None]:
        if self.chance.replaying:
            recorded = self.chance.take("poll")
            assert recorded is not None
            return Done(None) if recorded == NOTHING else self._receive(recorded, tag)
        message = self._take(src, tag)
        self.chance.note("poll", NOTHING if message is None else message.src)
        return Done(message)

    def all_reduce(
        self, data: Vector, group: str = WORLD, into: Vector | None = None
    ) -> Op[Vector]:
        self._count_collective(data)
        close = partial(self._sum, hosts=self._world._group_hosts[group])
        return self._world._meet(self, group, f"all-reduce in group {group}", data, close)

    def broadcast(self, data: Vector, root: int, group: str = WORLD) -> Op[Vector]:
        self._count_collective(data)

        hosts = self._world._group_hosts[group]

        def close(meeting: Meeting, members: tuple[int, ...]) -> tuple[Seconds, Vector]:
            result = meeting.data[root]
            return self._cluster.broadcast(result.nbytes, len(members), hosts), result

        return self._world._meet(self, group, f"broadcast from rank {root}", data, close)

    def compute(self, work: Callable[[], T], load: Load, overlap: bool = False) -> Op[T]:
        device, start = self._device, self._world.now
        seconds = self._seconds(load)
        self.traffic.computing += seconds
        op = Pending(COMPUTING)
        if self._takes_time_from is not None:
            device.taken += seconds
            self._world._at(start + seconds, self._do, (op, work))
            return op
        if device.free > start:
            start = device.free
        end = device.free = start + seconds
        if overlap:
            self._world._at(end, finish_one, (op, self._done_ahead(work, start, seconds)))
        elif device.is_shared:
            self._world._at(end, self._do_unless_late, (op, work, device.taken))
        else:
            # Really done when the clock says so: what it makes is used at once, while the
            # processor's caches still hold it.
            self._world._at(end, self._do, (op, work))
        return op

    def _do_unless_late(self, op_work_taken: tuple[Pending, Callable[[], Any], Seconds]) -> None:
        """What a server took from this device meanwhile is still to be made up for."""
        op, work, taken = op_work_taken
        device = self._device
        if device.taken > taken:
            late = device.free = self._world.now + device.taken - taken
            self._world._at(late, self._do_unless_late, (op, work, device.taken))
        else:
            self._do((op, work))

    def _do(self, op_and_work: tuple[Pending, Callable[[], Any]]) -> None:
        op, work = op_and_work
        try:
            value = work()
        except Exception as error:
            self._add_note(error)
            raise
        op.finish(value)

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

    def halt(self) -> None:
        self._world.halted = True

    def halted(self) -> bool:
        return self._world.halted

    # -- how it comes about -----------------------------------------------------------------

    def _add_note(self, error: Exception) -> None:
        note = f"on rank {self.rank}, at {self._world.now:.6g} virtual seconds"
        if note not in getattr(error, "__notes__", ()):
            error.add_note(note)

    def _clock(self) -> Seconds:
        """The present, or inside a computation how far it would have come."""
        return self._world.now if self._work is None else self._work_now

    def _count_collective(self, data: Vector) -> None:
        self.traffic.messages += 1
        self.traffic.nbytes += data.nbytes

    def _sum(
        self, meeting: Meeting, members: tuple[int, ...], hosts: int
    ) -> tuple[Seconds, Vector]:
        first, *others = (meeting.data[rank] for rank in members)
        total = first
        for number, other in enumerate(others):
            # The first sum makes a new vector, later ones may write to it. Phantoms only know +.
            if number == 0 or not hasattr(total, "add_"):
                total = total + other
            else:
                total.add_(other)
        return self._cluster.all_reduce(first.nbytes, len(members), hosts), total

    def _first_byte(self, message: Message) -> None:
        self._arrive(message, self._card)

    def _first_local_byte(self, message: Message) -> None:
        self._arrive(message, self._local)

    def _arrive(self, message: Message, link: Link) -> None:
        world = self._world
        start = world.now
        if link.in_free > start:
            start = link.in_free
        link.in_free = start + message.data.nbytes / link.bandwidth
        world._at(link.in_free, self._deliver, message)

    def _deliver(self, message: Message) -> None:
        for number, op in enumerate(self._receives):
            src, tag = op.what
            if (src == ANY or src == message.src) and (tag == ANY or tag == message.tag):
                del self._receives[number]
                if src == ANY:
                    self.chance.note("recv", message.src)
                op.finish(message)
                return
        self._inbox.append(message)

    def _receive(self, src: int, tag: int) -> Done | Pending:
        message = self._take(src, tag)
        if message is not None:
            if src == ANY:
                self.chance.note("recv", message.src)
            return Done(message)
        op = Pending((src, tag))
        self._receives.append(op)
        return op

    def _take(self, src: int, tag: int) -> Message | None:
        inbox = self._inbox
        for number, message in enumerate(inbox):
            if (src == ANY or src == message.src) and (tag == ANY or tag == message.tag):
                del inbox[number]
                return message
        return None

    def _resume(self) -> None:
        waited_for = self._waits_for
        if waited_for is not None:
            self._waits_for = None
            if waited_for.what is not COMPUTING:
                self.traffic.waiting += self._world.now - self._waits_since
        coroutine = self._coroutine
        assert coroutine is not None
        try:
            op = coroutine.send(None)
        except StopIteration as stop:
            self._coroutine = None
            self._result = stop.value
            return
        except Exception as error:
            self._add_note(error)
            raise
        op.waiter = self
        self._waits_for = op
        self._waits_since = self._world.now
