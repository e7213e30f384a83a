"""What a virtual rank waits for: operations that an event will finish, and where messages wait."""

from __future__ import annotations

from collections import OrderedDict, defaultdict, deque
from collections.abc import Callable, Generator, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final

from regatta.cluster.faults import Cut, CutLink
from regatta.cluster.sums import Sums
from regatta.comm import ANY, Deadlock, Message, Seconds, Vector, WorldFailed

if TYPE_CHECKING:
    from regatta.worlds.virtual import VirtualComm


class Done:
    """An operation that finished when it was called."""

    __slots__ = ("value",)

    def __init__(self, value: Any) -> None:
        self.value = value

    def __await__(self) -> Generator[Any, Any, Any]:
        return self.value
        yield

    def get(self) -> Any:
        return self.value


SENT: Final = Done(None)
COMPUTING: Final = "its own computing"
NOBODY: Final = -1
_SIZES: Final = 64  # of vectors, for which a group knows what its sums take
_UNFINISHED: Final = object()


class Pending:
    """An operation that an event will finish; only the rank that called it may await it."""

    __slots__ = ("rank", "value", "what")

    def __init__(self, rank: VirtualComm, what: Any) -> None:
        self.rank = rank
        self.what = what  # for the Deadlock message; (src, tag) of a receive
        self.value = _UNFINISHED

    def __await__(self) -> Generator[Any, Any, Any]:
        if self.value is _UNFINISHED:
            yield self
        return self.value

    def finish(self, value: Any) -> None:
        self.value = value
        rank = self.rank
        if rank._waits_for is self:
            rank.traffic.waited(rank._waits_since, rank._world.now)
            rank._resume()

    def describe(self) -> str:
        if isinstance(self.what, str):
            return self.what
        src, tag = self.what
        return ("a message from anyone" if src == ANY else f"a message from rank {src}") + (
            "" if tag == ANY else f" with tag {tag}"
        )


class Computing(Pending):
    """Work that is done when the clock says so."""

    __slots__ = ("work",)

    what = COMPUTING

    def __init__(self, rank: VirtualComm, work: Callable[[], Any]) -> None:
        self.rank = rank
        self.value = _UNFINISHED
        self.work = work

    def do(self) -> None:
        rank = self.rank
        if rank.is_dead:
            return
        if rank.charges_steps:
            rank.works = True
        try:
            value = self.work()
        except Exception as error:
            rank._add_note(error)
            raise
        if rank.charges_steps:
            rank.works = False
        self.finish(value)

    def finish(self, value: Any) -> None:
        self.value = value
        rank = self.rank
        if rank._waits_for is self:  # but that is no waiting
            rank._resume()


class Inbox:
    """Messages that nobody has taken yet, in order of arrival and by source.

    A server may have one of every worker waiting: to find one must not mean to look at all.
    """

    __slots__ = ("_came", "_messages", "_of")

    def __init__(self) -> None:
        self._messages: OrderedDict[int, Message] = OrderedDict()  # by arrival
        self._of: defaultdict[int, deque[int]] = defaultdict(deque)  # arrivals of a source
        self._came = 0

    def put(self, message: Message) -> None:
        self._came += 1
        self._messages[self._came] = message
        self._of[message.src].append(self._came)

    def take(self, src: int, tag: int) -> Message | None:
        messages = self._messages
        if not messages:
            return None
        for arrival in messages if src == ANY else self._of[src]:
            message = messages[arrival]
            if tag == ANY or tag == message.tag:
                del messages[arrival]
                self._of[message.src].remove(arrival)  # nearly always the first
                return message
        return None


class Running:
    """A sum so far; what is given stays as it is."""

    __slots__ = ("_is_own", "total")

    def __init__(self) -> None:
        self.total: Any = None
        self._is_own = False  # nobody else has it: it is added to in place

    def add(self, vector: Vector) -> None:
        if self.total is None:
            self.total = vector
        elif self._is_own:
            self.total += vector
        else:
            self.total, self._is_own = self.total + vector, True


class Meeting:
    """A collective operation that starts when its last rank has come.

    A sum has an `order`: ranks, and whether each is the last of its host. It is added up while they
    come, and what has been added need not be held: the gradients of very many workers that come in
    order, as without jitter, take the memory of two.
    """

    __slots__ = ("_of_host", "_order", "_sum", "_turn", "awaited", "data", "last_arrival", "ops")

    def __init__(self, order: Sequence[tuple[int, bool]]) -> None:
        self.ops: list[Pending] = []  # as ranks came
        self.data: dict[int, Vector] = {}  # by rank, if not added up yet
        self.last_arrival: Seconds = 0.0
        self.awaited = order[0][0] if order else NOBODY  # the next to be added
        self._order = order
        self._turn = 0
        self._sum, self._of_host = Running(), Running()

    def add_up(self) -> None:
        """All whose turn it is."""
        while self.awaited in self.data:
            self._of_host.add(self.data.pop(self.awaited))
            if self._order[self._turn][1]:
                self._sum.add(self._of_host.total)
                self._of_host = Running()
            self._turn += 1
            more = self._turn < len(self._order)
            self.awaited = self._order[self._turn][0] if more else NOBODY

    @property
    def total(self) -> Vector:
        return self._sum.total

    def finish(self, result: Vector) -> None:
        for op in self.ops:
            op.finish(result)


class Group:
    """Ranks that meet for collectives, which all of them join in the same order."""

    __slots__ = (
        "_all_reduce", "_broadcast", "_joined", "_open", "cuts", "free", "members", "order",
        "summing",
    )  # fmt: skip

    def __init__(
        self,
        name: str,
        members: tuple[int, ...],
        by_host: Sequence[Sequence[int]],
        charged: Sums,
        cuts: Sequence[Cut | CutLink] = (),
    ) -> None:
        self.members = members
        self.cuts = cuts
        self._all_reduce = lru_cache(_SIZES)(charged.all_reduce)
        self._broadcast = lru_cache(_SIZES)(charged.broadcast)
        # Sums are added up host by host; one rank a host is as good as one host.
        hosts = by_host if len(by_host) < len(members) else [members]
        self.order = [(rank, rank == ranks[-1]) for ranks in hosts for rank in ranks]
        self.free: Seconds = 0.0
        self.summing = f"all-reduce in group {name}"
        self._joined = dict.fromkeys(members, 0)  # how many collectives, by rank
        self._open: dict[int, Meeting] = {}  # by number

    def join(self, op: Pending, data: Vector, now: Seconds) -> Meeting | None:
        """Come to a rank's next meeting, which is handed out when everybody has come."""
        rank = op.rank.rank
        number = self._joined[rank]
        self._joined[rank] = number + 1
        meeting = self._open.get(number)
        if meeting is None:
            is_sum = op.what is self.summing
            meeting = self._open[number] = Meeting(self.order if is_sum else ())
        meeting.ops.append(op)
        meeting.data[rank] = data
        if rank == meeting.awaited:
            meeting.add_up()
        if now > meeting.last_arrival:
            meeting.last_arrival = now
        if len(meeting.ops) < len(self.members):
            return None
        return self._open.pop(number)

    def sum(self, meeting: Meeting) -> tuple[Seconds, Vector]:
        """How long it takes, and what comes of it."""
        total = meeting.total
        return self._all_reduce(total.nbytes), total

    def spread(self, root: int, meeting: Meeting) -> tuple[Seconds, Vector]:
        result = meeting.data[root]
        return self._broadcast(result.nbytes), result


def complain_of_waiting(ranks: Sequence[VirtualComm]) -> None:
    """When nothing is left to happen: who waits would wait for ever, and the dead are named."""
    waiting = [rank for rank in ranks if rank._waits_for is not None]
    dead = [rank for rank in ranks if rank.is_dead]
    gone = [rank for rank in ranks if rank not in waiting and rank not in dead]
    told = [f"rank {rank.rank} crashed, as cluster.faults says" for rank in dead]
    told += [
        f"rank {rank.rank} waits for {rank._waits_for.describe()}"
        for rank in waiting
        if rank._waits_for is not None
    ]
    text = ", ".join(told) + (f"; ended: {', '.join(str(r.rank) for r in gone)}" if gone else "")
    if dead:
        raise WorldFailed(text)
    if waiting:
        raise Deadlock(f"nothing is left to happen: {text}")
