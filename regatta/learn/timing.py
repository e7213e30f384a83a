"""A replica without numbers, for timing-only simulations of thousands of ranks."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable

from regatta.comm import Comm, Load, Op, Phantom, Vector
from regatta.learn.buckets import reduced_whole
from regatta.learn.replica import Stream


class TimingReplica:
    """Takes turns and steps as a replica does, and passes phantoms."""

    def __init__(
        self,
        comm: Comm,
        nbytes: int,
        stream: Stream,
        after_step: Callable[[], None] = lambda: None,
    ) -> None:
        self.comm = comm
        self.stream = stream
        self.turns = 0
        self.steps = 0
        self.version = 0
        self.merging = Load(nbytes=nbytes)
        self.weights = Phantom(nbytes)
        self.nothing = Phantom(nbytes, 0.0)
        self._load = Load(samples=stream.samples)
        self._after_step = after_step

    def __aiter__(self) -> AsyncIterator[Vector]:
        return self

    async def __anext__(self) -> Vector:
        if self.stream.next() is None:
            raise StopAsyncIteration
        self.turns += 1
        return await self.comm.compute(self._gradient, self._load)

    def _gradient(self) -> Phantom:
        return self.weights

    def reduced_by(self, all_reduce: Callable[..., Op[Vector]]) -> AsyncIterator[Vector]:
        return reduced_whole(self, all_reduce)

    def load(self, weights: Vector, version: int | None = None) -> None:
        if version is not None:
            self.version = version

    def step(self, gradient: Vector, born: int | None = None, of: int = 1) -> None:
        if born is not None:
            self.comm.traffic.note_age(self.version - born)
        self.steps += 1
        self.version += of
        self._after_step()

    def slot(self, name: str) -> Vector:
        return self.nothing
