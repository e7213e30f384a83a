"""What a virtual rank waits for: operations that an event will finish, and where messages wait."""

from __future__ import annotations

from collections import OrderedDict, defaultdict, deque
from collections.abc import Callable, Collection, Generator, Mapping, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final

from regatta.cluster.faults import Cut, CutLink
from regatta.cluster.sums import Sums
from regatta.comm import ANY, Deadlock, Message, Seconds, Vector, WorldFailed

if TYPE_CHECKING:
    from regatta.worlds.virtual_rank import VirtualComm


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
            if rank.is_past_its_death:
                rank.end()
                return
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

    def drop(self, tag: int) -> None:
        while self.take(ANY, tag) is not None:
            pass

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


Close = Callable[["Meeting"], tuple[Seconds, Vector]]  # cost and result


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


Order = Sequence[tuple[int, int]]  # ranks, and the host of each, in which they are added up


class Meeting:
    """A collective operation that starts when its last rank has come; `close` tells what it costs.

    A sum has an `order`. It is added up while ranks come, and what has been added need not be held:
    the gradients of very many workers that come in order, as without jitter, take the memory of
    three.
    """

    __slots__ = (
        "_host", "_of_host", "_order", "_sum", "_turn", "awaited", "close", "data", "last_arrival",
        "ops",
    )  # fmt: skip

    def __init__(self, order: Order, close: Close) -> None:
        self.close = close
        self.ops: list[Pending] = []  # as ranks came
        self.data: dict[int, Vector] = {}  # by rank, if not added up yet
        self.last_arrival: Seconds = 0.0
        self._sum, self._of_host, self._host = Running(), Running(), NOBODY
        self._await(order)

    def _await(self, order: Order) -> None:
        self._order, self._turn = order, 0
        self.awaited = order[0][0] if order else NOBODY  # the next to be added

    def add_up(self) -> None:
        """All whose turn it is."""
        while self.awaited in self.data:
            host = self._order[self._turn][1]
            if host != self._host:
                self._add_host()
                self._host = host
            self._of_host.add(self.data.pop(self.awaited))
            self._turn += 1
            more = self._turn < len(self._order)
            self.awaited = self._order[self._turn][0] if more else NOBODY

    def _add_host(self) -> None:
        if self._of_host.total is not None:
            self._sum.add(self._of_host.total)
            self._of_host = Running()

    def total(self) -> Vector:
        self._add_host()
        return self._sum.total

    def do_without(self, missing: Collection[int]) -> None:
        """These will not come any more."""
        left = self._order[self._turn :]
        self._await([(rank, host) for rank, host in left if rank not in missing])
        self.add_up()

    def finish(self, result: Vector) -> None:
        for op in self.ops:
            op.finish(result)


class Group:
    """Ranks that meet for collectives, which all of them join in the same order."""

    __slots__ = (
        "_all_reduce", "_broadcast", "_charged", "_joined", "_left", "_open", "cuts", "free",
        "members", "order", "present", "summing",
    )  # fmt: skip

    def __init__(
        self,
        name: str,
        members: tuple[int, ...],
        by_host: Sequence[Sequence[int]],
        charged: Callable[[Sequence[int]], Sums],
        cuts: Sequence[Cut | CutLink] = (),
    ) -> None:
        """`charged` tells what sums of these ranks take, or of those who are left."""
        self.members = members
        self.present: Sequence[int] = members  # in the last collective that has begun
        self.cuts = cuts
        self._charged = charged
        self._charge(members)
        # Sums are added up host by host; one rank a host is as good as one host.
        hosts = by_host if len(by_host) < len(members) else [members]
        self.order = [(rank, host) for host, ranks in enumerate(hosts) for rank in ranks]
        self.free: Seconds = 0.0
        self.summing = f"all-reduce in group {name}"
        self._joined = dict.fromkeys(members, 0)  # how many collectives, by rank
        self._open: dict[int, Meeting] = {}  # by number
        self._left: dict[int, int] = {}  # of the dead: from which number on they are missing

    def join(self, op: Pending, data: Vector, now: Seconds, close: Close) -> Meeting | None:
        """Come to a rank's next meeting, which is handed out when everybody has come."""
        rank = op.rank.rank
        number = self._joined[rank]
        self._joined[rank] = number + 1
        if self._left and self._left.get(rank, number + 1) <= number:
            return None  # nobody waits for it here, and it waits for ever
        meeting = self._open.get(number)
        if meeting is None:
            order = self._order_of(number) if op.what is self.summing else ()
            meeting = self._open[number] = Meeting(order, close)
        meeting.ops.append(op)
        meeting.data[rank] = data
        if rank == meeting.awaited:
            meeting.add_up()
        if now > meeting.last_arrival:
            meeting.last_arrival = now
        if self._left:
            return self._if_whole(number)
        return self._open.pop(number) if len(meeting.ops) == len(self.members) else None

    def _if_whole(self, number: int) -> Meeting | None:
        """Whether all have come who are not dead."""
        come = {op.rank.rank for op in self._open[number].ops}
        if not come.issuperset(set(self.members) - self._missing_from(number)):
            return None
        self.present = tuple(member for member in self.members if member in come)
        return self._open.pop(number)

    def joined(self, rank: int) -> int:
        """How many collectives a rank has come to."""
        return self._joined.get(rank, 0)

    def lose(self, numbers: Mapping[int, int]) -> list[Meeting]:
        """Each rank is missing from its number on; the meetings that have waited for them alone."""
        self._left |= {rank: number for rank, number in numbers.items() if rank in self.members}
        if len(self._left) == len(self.members):  # there is nobody left to meet
            return []
        self._charge([member for member in self.members if member not in self._left])
        for number, meeting in self._open.items():
            meeting.do_without(self._missing_from(number))
        found = [self._if_whole(number) for number in sorted(self._open)]
        return [meeting for meeting in found if meeting is not None]

    def _missing_from(self, number: int) -> set[int]:
        return {rank for rank, first in self._left.items() if first <= number}

    def _order_of(self, number: int) -> Order:
        if not self._left:
            return self.order
        missing = self._missing_from(number)
        return [(rank, host) for rank, host in self.order if rank not in missing]

    def _charge(self, ranks: Sequence[int]) -> None:
        charged = self._charged(ranks)
        self._all_reduce = lru_cache(_SIZES)(charged.all_reduce)
        self._broadcast = lru_cache(_SIZES)(charged.broadcast)

    def sum(self, meeting: Meeting) -> tuple[Seconds, Vector]:
        """How long it takes, and what comes of it."""
        total = meeting.total()
        return self._all_reduce(total.nbytes), total

    def spread(self, root: int, meeting: Meeting) -> tuple[Seconds, Vector]:
        result = meeting.data[root]
        return self._broadcast(result.nbytes), result


def complain_of_waiting(ranks: Sequence[VirtualComm]) -> None:
    """When nothing is left to happen: who waits would wait for ever, and the dead are named."""
    needed = [rank for rank in ranks if rank.rank not in rank._world.lost]
    waiting = [rank for rank in needed if rank._waits_for is not None]
    dead = [rank for rank in needed if rank.is_dead]
    gone = [rank for rank in needed if rank not in waiting and rank not in dead]
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
