"""All that a strategy may do to the outside world.

Both worlds (`worlds/processes.py`, `worlds/virtual.py`) implement `Comm`, so one strategy text runs
in either. An `Op` starts when it is called and finishes when it is awaited: overlap needs no second
interface. Payloads are values: whoever hands a vector over never writes to it again.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple, Protocol, TypeAlias, TypeVar

import torch

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)
Seconds: TypeAlias = float

ANY: Final = -1  # any source, any tag
DATA: Final = 0
GOODBYE: Final = 1  # the sender will not send again
LAST: Final = 2  # the model on its closing lap
GONE: Final = 5  # the sender is dead, and the world says goodbye for it
WORLD: Final = "world"  # the group of all ranks


class Deadlock(RuntimeError):
    """Nothing is left to happen, yet some ranks wait; the message names who waits for what."""


class WorldFailed(RuntimeError):
    """A rank has died or left while others still needed it."""


class Phantom:
    """A vector without numbers: timing-only runs pass its size around instead of data.

    It keeps the one number that strategies read, the count in a vector's last element.
    """

    __slots__ = ("count", "nbytes")

    def __init__(self, nbytes: int, count: float = 1.0) -> None:
        self.nbytes = nbytes
        self.count = count

    def __add__(self, other: Phantom) -> Phantom:
        return Phantom(self.nbytes, self.count + other.count)

    def __sub__(self, other: Phantom) -> Phantom:
        return Phantom(self.nbytes, self.count - other.count)

    def __mul__(self, factor: float) -> Phantom:
        return Phantom(self.nbytes, self.count * factor)

    __rmul__ = __mul__

    def __truediv__(self, divisor: float) -> Phantom:
        return Phantom(self.nbytes, self.count / divisor)

    def __getitem__(self, index: int) -> float:
        if index != -1:
            raise IndexError("a phantom knows only its last element, the count")
        return self.count

    def numel(self) -> int:
        return self.nbytes // 4


Vector: TypeAlias = Any  # a contiguous 1-D torch.Tensor, or a Phantom in timing-only runs


class Unwritten(ABC):
    """A sum that nobody has written down: all summands are there, and their ranks share the rest.

    `sum[-1]` is its count. Unless that is 0, every rank makes use of it once, and all in one way.
    A rank's own gradient may be unwritten too, a sum of one that is nobody else's.
    """

    is_common: bool = True  # ranks make use of it together

    @abstractmethod
    def __getitem__(self, index: int) -> torch.Tensor: ...

    @staticmethod
    def checked(index: int) -> int:
        if index != -1:
            raise IndexError("of a sum that is not written only the last element is known")
        return index

    @abstractmethod
    def use(
        self,
        work: Callable[[torch.Tensor, slice, Sequence[torch.Tensor]], None],
        into: Callable[[], Sequence[torch.Tensor]],
        vectors: int,
        head: int,
    ) -> list[torch.Tensor]:
        """Let each rank work on its share of the sum, piece by piece while it is in the cache.

        `work` is given a piece, where it lies, and the vectors to write to: those that `into` makes
        on the first rank, so many in number, which are returned on every rank and shared from then
        on. No piece lies on both sides of element `head`.
        """

    def added_to(self, vector: torch.Tensor, factor: float) -> torch.Tensor | None:
        """Add its parameters to a vector's, in place and all at once, if it can; then its tail."""
        return None


EMPTY: Final = torch.empty(0)  # the payload of a message that is all header


@dataclass(slots=True)
class Message:
    src: int
    tag: int
    version: int  # how many gradients the payload contains or was computed from
    data: Vector

    def taken(self) -> Vector:
        """The payload, once: whoever uses it up gives its memory to the next."""
        data, self.data = self.data, EMPTY
        return data

    @property
    def outcome(self) -> int:
        """As the record of chance has it: the source, or below -1 a source that is dead."""
        return self.src if self.tag != GONE else _FIRST_DEAD - self.src

    @classmethod
    def of_the_dead(cls, outcome: int) -> Message | None:
        """What such an outcome stands for, if it is one of the dead."""
        return goodbye_of(_FIRST_DEAD - outcome) if outcome <= _FIRST_DEAD else None


_FIRST_DEAD: Final = -2


def goodbye_of(rank: int) -> Message:
    """What the world says for a rank that is dead, to all others."""
    return Message(rank, GONE, 0, EMPTY)


class Loss(NamedTuple):
    """A worker has died, and the others go on."""

    rank: int
    turn: int  # of its own data, that it had come to
    heirs: tuple[int, ...]  # workers that are left, to whom the rest is dealt out


@dataclass(frozen=True, slots=True)
class Load:
    """How much work a `compute` is; the virtual clock turns it into seconds."""

    samples: float = 0  # forward and backward passes of the whole model
    nbytes: int = 0  # of a vector merged into another
    stepped: int = 0  # bytes of weights that an optimiser steps in place
    gathered: int = 0  # bytes of a gradient that is brought into one vector

    def __bool__(self) -> bool:
        return bool(self.samples or self.nbytes or self.stepped or self.gathered)


class Op(Protocol[T_co]):
    """Something under way; awaiting it yields its result."""

    def __await__(self) -> Generator[Any, Any, T_co]: ...


class Timeline:
    """The first so many stretches of a rank's time, on the clock of its world."""

    __slots__ = ("ends", "kinds", "room", "starts")

    def __init__(self, room: int) -> None:
        self.room = room
        self.kinds: list[str] = []
        self.starts: list[Seconds] = []
        self.ends: list[Seconds] = []

    def note(self, kind: str, began: Seconds, ended: Seconds) -> None:
        if self.room > 0:
            self.room -= 1
            self.kinds.append(kind)
            self.starts.append(began)
            self.ends.append(ended)

    def take(self) -> tuple[str, list[Seconds], list[Seconds]]:
        """What has been noted since the last time."""
        taken = "".join(self.kinds), self.starts, self.ends
        self.kinds, self.starts, self.ends = [], [], []
        return taken


@dataclass
class Traffic:
    """What one rank has exchanged and how it spent its time."""

    messages: int = 0  # sent, or collectives joined
    nbytes: int = 0  # payload bytes handed to send, or contributed to a collective
    computing: Seconds = 0.0
    waiting: Seconds = 0.0
    dropped: int = 0  # gradients that were computed but not used
    staleness: dict[int, int] = field(default_factory=dict)  # gradients by age at their update

    timeline: Timeline | None = None  # what was done when, while somebody wants to know

    def computed(self, began: Seconds, ended: Seconds) -> None:
        self.computing += ended - began
        if self.timeline is not None:
            self.timeline.note("c", began, ended)

    def waited(self, began: Seconds, ended: Seconds) -> None:
        self.waiting += ended - began
        if self.timeline is not None:
            self.timeline.note("w", began, ended)

    def sent(self, began: Seconds, ended: Seconds) -> None:
        if self.timeline is not None:
            self.timeline.note("s", began, ended)

    def note_age(self, age: int) -> None:
        self.staleness[age] = self.staleness.get(age, 0) + 1

    def state(self) -> dict[str, Any]:
        """The sums, for who goes on with them; JSON has no numbers as keys."""
        sums = {name: value for name, value in vars(self).items() if name != "timeline"}
        return sums | {"staleness": list(self.staleness.items())}

    def restore(self, state: dict[str, Any]) -> None:
        for name in self.state():  # and nothing else that a file may name
            value = state[name]
            setattr(self, name, dict(value) if name == "staleness" else value)


class Comm(Protocol):
    rank: int
    size: int
    traffic: Traffic
    reduces_in_place: bool  # all_reduce is done with `data` once its result is there
    sends_unwritten: bool  # a receiver gets what was sent as it is, be it a vector or not

    @property
    def groups(self) -> Mapping[str, Sequence[int]]:
        """Ranks by name, as the strategy declared them."""
        ...

    @property
    def present(self) -> Sequence[int]:
        """Who took part in the last sum of the world; all who did agree on that."""
        ...

    @property
    def losses(self) -> Sequence[Loss]:
        """Those that this rank has heard of; others may have heard of more, or fewer."""
        ...

    def begin_segment(self, segment: int) -> None:
        """Roles start again; what the dead will not say any more is said for them."""
        ...

    def now(self) -> Seconds: ...
    def empty(self, numel: int, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
        """Memory for a vector, cheap to hand over to this Comm; its contents are anything."""
        ...

    def send(self, dst: int, data: Vector, tag: int = DATA, version: int = 0) -> Op[None]: ...
    def recv(self, src: int = ANY, tag: int = ANY) -> Op[Message]: ...
    def poll(self, src: int = ANY, tag: int = ANY) -> Op[Message | None]: ...
    def all_reduce(
        self, data: Vector, group: str = WORLD, into: Vector | None = None, written: bool = True
    ) -> Op[Vector]:
        """The SUM in rank order; dividing is the strategy's line.

        `into` lends memory that the result may be written to, `data` itself included. A sum that
        need not be `written` may be `Unwritten`: it is for `replica.step` or `replica.mean` alone.
        """
        ...

    def broadcast(self, data: Vector, root: int, group: str = WORLD) -> Op[Vector]: ...
    def compute(
        self, work: Callable[[], T], load: Load, overlap: bool = False, at_once: bool = False
    ) -> Op[T]:
        """Work that takes time: measured in a real world, charged by `load` in a virtual one.

        With `overlap` the work itself starts operations, and tells its `progress`. A virtual world
        does work when its time is over, for caches then hold what is made of it; or, if it is told
        to, `at_once`, while they hold what it is made from.
        """
        ...

    def owe(self, stepped: int) -> None:
        """So many bytes of weights were stepped just now: the next `compute` takes longer.

        Inside of a `compute` it is part of its load already.
        """
        ...

    def progress(self, fraction: float) -> None:
        """Called inside `work`: operations started from here on start when this much is done."""
        ...

    def halt(self, turn: int = 0) -> None:
        """Ask every rank to end its stream before this turn, or at its next if that is over."""
        ...

    def halted(self, turn: int | None = None) -> bool:
        """Whether streams are to end before this turn, or before any."""
        ...

    asked_to_leave: bool  # on rank 0: some rank has to

    def ask_to_leave(self) -> None:
        """Let rank 0 know that this rank has to leave: it says before which turn all do."""
        ...


def num_bytes(data: Vector) -> int:
    return int(data.nbytes)
