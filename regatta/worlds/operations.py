"""What a virtual rank waits for: operations that an event will finish, and where messages wait."""

from __future__ import annotations

from collections import OrderedDict, defaultdict, deque
from collections.abc import Callable, Generator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from regatta.cluster import Cluster
from regatta.cluster.faults import Cut
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


Close = Callable[[Cluster, Mapping[int, Vector]], tuple[Seconds, Vector]]  # cost and result


class Meeting:
    """A collective operation that starts when its last rank has come."""

    __slots__ = ("close", "data", "last_arrival", "ops")

    def __init__(self, close: Close) -> None:
        self.close = close
        self.ops: list[Pending] = []  # as ranks came
        self.data: dict[int, Vector] = {}  # by rank
        self.last_arrival: Seconds = 0.0

    def finish(self, result: Vector) -> None:
        for op in self.ops:
            op.finish(result)


class Group:
    """Ranks that meet for collectives, which all of them join in the same order."""

    __slots__ = (
        "_joined", "_left", "_open", "cuts", "free", "hosts", "members", "order", "present",
        "summing",
    )  # fmt: skip

    def __init__(
        self,
        name: str,
        members: tuple[int, ...],
        by_host: Sequence[Sequence[int]],
        cuts: Sequence[Cut] = (),
    ) -> None:
        self.members = members
        self.present: Sequence[int] = members  # in the last collective that has begun
        self.cuts = cuts
        self.hosts = len(by_host)
        # Sums are added up host by host; one rank a host is as good as one host.
        self.order = by_host if self.hosts < len(members) else [members]
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
            meeting = self._open[number] = Meeting(close)
        meeting.ops.append(op)
        meeting.data[rank] = data
        if now > meeting.last_arrival:
            meeting.last_arrival = now
        return self._if_whole(number)

    def _if_whole(self, number: int) -> Meeting | None:
        meeting = self._open[number]
        if self._left:
            left, data = self._left, meeting.data
            if any(m not in data and left.get(m, number + 1) > number for m in self.members):
                return None
            self.present = tuple(member for member in self.members if member in data)
        elif len(meeting.ops) < len(self.members):
            return None
        return self._open.pop(number)

    def joined(self, rank: int) -> int:
        """How many collectives a rank has come to."""
        return self._joined.get(rank, 0)

    def lose(self, numbers: Mapping[int, int]) -> list[Meeting]:
        """Each rank is missing from its number on; the meetings that have waited for them alone."""
        self._left |= {rank: number for rank, number in numbers.items() if rank in self.members}
        if len(self._left) == len(self.members):  # there is nobody left to meet
            return []
        found = [self._if_whole(number) for number in sorted(self._open)]
        return [meeting for meeting in found if meeting is not None]

    def sum(self, cluster: Cluster, data: Mapping[int, Vector]) -> tuple[Seconds, Vector]:
        """How long it takes, and what comes of it."""
        order = self.order
        if len(data) < len(self.members):
            here = ([rank for rank in ranks if rank in data] for ranks in order)
            order = [ranks for ranks in here if ranks]
        total = _added([_added([data[rank] for rank in ranks]) for ranks in order])
        return cluster.all_reduce(total.nbytes, len(data), self.hosts), total

    def spread(
        self, root: int, cluster: Cluster, data: Mapping[int, Vector]
    ) -> tuple[Seconds, Vector]:
        result = data[root]
        return cluster.broadcast(result.nbytes, len(self.members), self.hosts), result


def _added(vectors: list[Vector]) -> Vector:
    """In this order; what is given stays as it is."""
    total = vectors[0]
    for number, vector in enumerate(vectors[1:]):
        if number == 0:
            total = total + vector
        else:
            total += vector  # in place, if it is a tensor: nobody else has this one
    return total


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
