"""A replica without numbers, for timing-only simulations of thousands of ranks."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence

from regatta.comm import Comm, Load, Op, Phantom, Traffic, Vector
from regatta.data.order import mixed_seed
from regatta.learn.buckets import reduced_whole
from regatta.learn.layout import Layout, Span
from regatta.learn.optimisers import Optimiser
from regatta.learn.replica import Stream


class TimingPart:
    """Steps as a part does, on phantoms."""

    def __init__(self, span: Span, memory: int, traffic: Traffic) -> None:
        self.span = span
        self.steps = 0
        self.version = 0
        self.merging = Load(nbytes=span.nbytes)
        self.weights = Phantom(span.nbytes)
        self.nothing = Phantom(span.nbytes, 0.0)
        self.optimiser_state = Phantom(memory * span.nbytes) if memory else None
        self._traffic = traffic

    def load(self, weights: Vector, version: int | None = None) -> None:
        if version is not None:
            self.version = version
            self._changed()

    def step(
        self, gradient: Vector, born: int | None = None, of: int = 1, rate: float = 1.0
    ) -> None:
        if born is not None:
            self._traffic.note_age(self.version - born)
        self.steps += 1
        self.version += of
        self._changed()

    def load_optimiser_state(self, vector: Vector) -> None: ...
    def reset_optimiser(self) -> None: ...
    def _changed(self) -> None: ...


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
    ) -> None:
        super().__init__(layout, len(optimiser.memory), comm.traffic)
        self.comm = comm
        self.layout = layout
        self.stream = stream
        self.turns = 0
        self.slots: dict[str, Phantom] = {}
        self.counters: dict[str, int] = {}
        self.load_of_a_turn = Load(samples=stream.samples)
        self._memory = len(optimiser.memory)
        self._parts: dict[tuple[int, int], TimingPart] = {}
        self._seed = seed
        self._changed = changed  # type: ignore[method-assign]

    def __aiter__(self) -> AsyncIterator[Vector]:
        return self

    async def __anext__(self) -> Vector:
        gradient = await self.gradient()
        if gradient is None:
            raise StopAsyncIteration
        return gradient

    async def gradient(self, number: int | None = None) -> Vector | None:
        if self.stream.next(number) is None:
            return None
        self.turns += 1
        return await self.comm.compute(self._gradient, self.load_of_a_turn)

    def _gradient(self) -> Phantom:
        return self.weights

    def reduced_by(self, all_reduce: Callable[..., Op[Vector]]) -> AsyncIterator[Vector]:
        return reduced_whole(self, all_reduce)

    def slot(self, name: str) -> Vector:
        return self.slots.setdefault(name, self.nothing)

    def part(self, number: int, of: int) -> TimingPart:
        if of == 1:
            return self
        if (number, of) not in self._parts:
            stripe = self.layout.stripe(number, of)
            self._parts[number, of] = TimingPart(stripe, self._memory, self._traffic)
        return self._parts[number, of]

    def cut(self, vector: Vector, pieces: int) -> list[Vector]:
        if pieces == 1:
            return [vector]
        sizes = [self.layout.stripe(number, pieces).nbytes for number in range(pieces)]
        return [Phantom(nbytes, vector[-1]) for nbytes in sizes]

    def joined(self, pieces: Sequence[Vector]) -> Vector:
        return Phantom(self.span.nbytes, pieces[-1][-1])

    def spliced(self, parameters: Vector, rest: Vector) -> Vector:
        return Phantom(self.span.nbytes, rest[-1])

    def pick(self, among: int) -> int:
        return mixed_seed(self._seed, self.comm.rank, self.turns, among) % among
