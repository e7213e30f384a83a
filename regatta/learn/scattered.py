"""A gradient as autograd leaves it, a tensor a parameter: who only steps with it needs no vector.

To gather the tensors is one more pass over all of them, and to have them written to their places
costs matrix products that lie less well in the cache. A step goes by elements: taken parameter by
parameter, from the last to the first as backward made them, it comes to the same bits.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from typing import TYPE_CHECKING

from torch import Tensor

from regatta.comm import Unwritten, Vector
from regatta.learn.layout import Layout

if TYPE_CHECKING:
    from regatta.learn.replica import Replica


class Scattered(Unwritten):
    is_common = False

    def __init__(self, layout: Layout, gradients: Sequence[Tensor | None]) -> None:
        self._layout = layout
        self._gradients = gradients
        self._tail = layout.tail()  # now: the next forward observes something else

    def __getitem__(self, index: int) -> Tensor:
        return self._tail[self.checked(index)]

    def use(
        self,
        work: Callable[[Tensor, slice, Sequence[Tensor]], None],
        into: Callable[[], Sequence[Tensor]],
        vectors: int,
        head: int,
    ) -> list[Tensor]:
        end = list(into())
        for piece, here in self._layout.pieces(self._gradients):
            work(piece, here, end)
        work(self._tail, slice(head, self._layout.numel), end)
        return end


class Turns:
    """Iterating over it yields a replica's gradients, scattered."""

    def __init__(self, replica: Replica) -> None:
        self._replica = replica

    def __aiter__(self) -> AsyncIterator[Vector]:
        return self

    async def __anext__(self) -> Vector:
        gradient = await self._replica.gradient(written=False)
        if gradient is None:
            raise StopAsyncIteration
        return gradient
