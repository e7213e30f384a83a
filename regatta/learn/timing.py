"""A replica without numbers, for timing-only simulations of thousands of ranks."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from functools import lru_cache, partial
from typing import Any

from torch import Tensor

from regatta.comm import Comm, Load, Op, Phantom, Vector
from regatta.data.seeds import mixed_seed
from regatta.learn.layers import split
from regatta.learn.layout import Layout, Span
from regatta.learn.optimisers import Optimiser
from regatta.learn.replica import Stream
from regatta.learn.stage import Rehearsal, Turns

# Thousands of ranks have the same loads and vectors, which are values: they share them.
_load, _phantom = lru_cache(Load), lru_cache(Phantom)


class TimingPart:
    """Steps as a part does, on phantoms."""

    def __init__(self, span: Span, memory: int, comm: Comm) -> None:
        self.span = span
        self.comm = comm
        self.steps = 0
        self.version = 0
        self.merging = _load(0, span.nbytes)
        self.weights = self.loan = _phantom(span.nbytes, 1.0)
        self.nothing = _phantom(span.nbytes, 0.0)
        memory_bytes = (memory * span.num_parameters + 2) * span.dtype.itemsize
        self.optimiser_state = Phantom(memory_bytes) if memory else None
        self.no_optimiser_state = Phantom(memory_bytes, 0.0)
        self._traffic = comm.traffic

    def load(self, weights: Vector, version: int | None = None) -> None:
        if version is not None:
            self.version = version
            self._changed()

    def step(
        self, gradient: Vector, born: int | None = None, of: int = 1, rate: float = 1.0
    ) -> None:
        if born is not None:
            self._traffic.note_age(self.version - born)
        self.comm.owe(self.span.nbytes)
        self.steps += 1
        self.version += of
        self._changed()

    def let_go(self) -> None: ...
    def load_optimiser_state(self, vector: Vector) -> None: ...
    def reset_optimiser(self) -> None: ...
    def _changed(self) -> None: ...

    def state(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        return {}, {"steps": self.steps, "version": self.version}

    def restore(self, tensors: dict[str, Tensor], numbers: dict[str, Any]) -> None:
        self.steps, self.version = numbers["steps"], numbers["version"]


class TimingStage(Turns):
    """Takes the turns of a stage, and passes phantoms as large as its activations."""

    def __init__(
        self,
        replica: TimingReplica,
        part: TimingPart,
        number: int,
        between: Callable[[int], list[Tensor]],  # stages, in a turn
        micro: int,
    ) -> None:
        super().__init__(replica, part, micro)
        self._number, self._between = number, between
        self._comes: Tensor | None = None
        self._goes: Tensor | None = None
        self._is_first = number == 0
        self._rehearsed = 0  # samples a minibatch
        self._has_told = False

    def begin(self, asks: bool) -> bool:
        goes_on, samples = super().begin(asks), self._replica.stream.samples
        if goes_on and samples != self._rehearsed:
            # All micro-batches are taken to be of the size of the first.
            activations = [None, *self._between(self._replica.turns), None]
            self._comes, self._goes = activations[self._number : self._number + 2]
            self._rehearsed, self._has_told = samples, False
        return goes_on

    def expect(self, shape: Vector) -> None: ...

    def forward(self, number: int, received: Vector | None = None) -> Vector:
        return _phantom_of(self._goes)

    def news_of_shape(self, number: int) -> Vector | None:
        if self._has_told or self._goes is None:
            return None
        self._has_told = True
        return Phantom(8 * self._goes.dim())

    def backward(self, number: int, received: Vector | None = None) -> Vector:
        return _phantom_of(self._comes)

    def step(self) -> None:
        self._end(Phantom(self._part.span.nbytes))

    def alone(self) -> Vector:
        return Phantom(self._replica.layout.nbytes, float(self._is_first))


def _phantom_of(activation: Tensor | None) -> Phantom:
    return Phantom(0 if activation is None else activation.nbytes)


class TimingReduced:
    """Summed gradients, until nobody has any."""

    def __init__(self, replica: TimingReplica, all_reduce: Callable[..., Op[Vector]]) -> None:
        self._replica = replica
        self._all_reduce = all_reduce

    def __aiter__(self) -> AsyncIterator[Vector]:
        return self

    async def __anext__(self) -> Vector:
        turn = self._replica.turn()
        total = await self._all_reduce(self._replica.nothing if turn is None else await turn)
        if total[-1] == 0:
            raise StopAsyncIteration
        return total


class TimingUnwritten:
    """Gradients that nobody gathers in a vector."""

    __slots__ = ("_replica",)

    def __init__(self, replica: TimingReplica) -> None:
        self._replica = replica

    def __aiter__(self) -> AsyncIterator[Vector]:
        return self

    def __anext__(self) -> Op[Vector]:
        turn = self._replica.turn(None, False)
        if turn is None:
            raise StopAsyncIteration
        return turn


class TimingReplica(TimingPart):
    """Takes turns and steps as a replica does, and passes phantoms."""

    last_loss = None

    def __init__(
        self,
        comm: Comm,
        layout: Layout,
        stream: Stream,
        optimiser: Optimiser,
        seed: int = 0,
        changed: Callable[[], None] = lambda: None,
        rehearsal: Rehearsal | None = None,
    ) -> None:
        super().__init__(layout, len(optimiser.memory), comm)
        self.layout = layout
        self.stream = stream
        self.turns = 0
        self.slots: dict[str, Phantom] = {}
        self.counters: dict[str, int] = {}
        self._loads = self._loads_of(stream.samples)
        self._memory = len(optimiser.memory)
        self._parts: dict[tuple[int, int], TimingPart] = {}
        self._stages: dict[tuple[int, int], TimingPart] = {}
        self._rehearsal = rehearsal
        self._seed = seed
        self.tell(changed)

    def tell(self, changed: Callable[[], None]) -> None:
        self._changed = changed  # type: ignore[method-assign]

    def __aiter__(self) -> AsyncIterator[Vector]:
        return self

    @property
    def unwritten(self) -> AsyncIterator[Vector]:
        return TimingUnwritten(self)

    def parting(self, written: bool) -> AsyncIterator[Vector]:
        return self

    # One coroutine less a turn than a replica needs: a thousand ranks take turns by the million.

    def __anext__(self) -> Op[Vector]:
        turn = self.turn()
        if turn is None:
            raise StopAsyncIteration
        return turn

    async def gradient(self, number: int | None = None) -> Vector | None:
        turn = self.turn(number)
        return None if turn is None else await turn

    def turn(self, number: int | None = None, gathered: bool = True) -> Op[Vector] | None:
        """The computing of a gradient, or None when this replica's part is over."""
        if self.stream.next(number) is None:
            return None
        self.turns += 1
        samples = self.stream.samples
        if self._loads[0].samples != samples:
            self._loads = self._loads_of(samples)
        return self.comm.compute(self._gradient, self._loads[gathered])

    def _loads_of(self, samples: int) -> tuple[Load, Load]:
        """Of a turn, without gathering its gradient and with it."""
        return _load(samples), _load(samples, 0, 0, self.span.nbytes)

    def _gradient(self) -> Phantom:
        return self.weights

    def reduced_by(
        self, all_reduce: Callable[..., Op[Vector]], in_buckets: bool = True, written: bool = True
    ) -> AsyncIterator[Vector]:
        return TimingReduced(self, all_reduce)

    def slot(self, name: str) -> Vector:
        return self.slots.setdefault(name, self.nothing)

    def part(self, number: int, of: int) -> TimingPart:
        if of == 1:
            return self
        if (number, of) not in self._parts:
            stripe = self.layout.stripe(number, of)
            self._parts[number, of] = TimingPart(stripe, self._memory, self.comm)
        return self._parts[number, of]

    def stage(self, number: int, of: int, micro: int) -> TimingStage:
        assert self._rehearsal is not None
        slices = split(self._rehearsal.model, self.layout, of)
        if (number, of) not in self._stages:
            stretch = slices[number].stretch
            self._stages[number, of] = TimingPart(stretch, self._memory, self.comm)
        between = partial(self._rehearsal.between, slices, micro)
        return TimingStage(self, self._stages[number, of], number, between, micro)

    def follow(self, part: TimingPart) -> None:
        self.steps, self.version = part.steps, part.version
        self._changed()

    def cut(self, vector: Vector, pieces: int) -> list[Vector]:
        if pieces == 1:
            return [vector]
        sizes = [self.layout.stripe(number, pieces).nbytes for number in range(pieces)]
        return [Phantom(nbytes, vector[-1]) for nbytes in sizes]

    def joined(self, pieces: Sequence[Vector]) -> Vector:
        return pieces[0] if len(pieces) == 1 else Phantom(self.span.nbytes, pieces[-1][-1])

    def mean(self, total: Vector) -> Vector:
        return total / total[-1]

    def spliced(self, parameters: Vector, rest: Vector) -> Vector:
        return Phantom(self.span.nbytes, rest[-1])

    def score(self, losses: Sequence[None]) -> float:
        return 0.0

    def pick(self, among: int) -> int:
        return mixed_seed(self._seed, self.comm.rank, self.turns, among) % among

    def state(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        tensors, numbers = super().state()
        numbers |= {"turns": self.turns, "counters": self.counters}
        numbers["slots"] = {name: (slot.nbytes, slot.count) for name, slot in self.slots.items()}
        for kind, parts in (("parts", self._parts), ("stages", self._stages)):
            numbers[kind] = [(*place, part.state()[1]) for place, part in parts.items()]
        return tensors, numbers

    def restore(self, tensors: dict[str, Tensor], numbers: dict[str, Any]) -> None:
        super().restore(tensors, numbers)
        self.turns, self.counters = numbers["turns"], numbers["counters"]
        self.slots = {name: _phantom(*slot) for name, slot in numbers["slots"].items()}
        for number, of, part in numbers["parts"]:
            self.part(number, of).restore(tensors, part)
        for number, of, part in numbers["stages"]:
            self.stage(number, of, 1)  # which makes its part
            self._stages[number, of].restore(tensors, part)
