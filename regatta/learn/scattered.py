"""A gradient as autograd leaves it, a tensor a parameter: who only steps with it needs no vector.

To gather the tensors is one more pass over all of them, and to have them written to their places
costs matrix products that lie less well in the cache. A step goes by elements: taken parameter by
parameter, from the last to the first as backward made them, it comes to the same bits.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence

import torch
from torch import Tensor

from regatta.comm import Unwritten, Vector
from regatta.learn.layout import CHUNK, Layout


class Scattered(Unwritten):
    is_common = False

    def __init__(self, layout: Layout, gradients: Sequence[Tensor | None]) -> None:
        self._layout = layout
        self._gradients = gradients
        self._tail = layout.tail()  # now: the next forward observes something else
        self.nbytes = layout.nbytes  # on its way, where it is a message

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
        # Who passes over a piece more than once is to find it in the cache.
        longest = self._layout.num_parameters if vectors == 1 else CHUNK
        for piece, here in self._layout.pieces(self._gradients, longest):
            work(piece, here, end)
        work(self._tail, slice(head, self._layout.numel), end)
        return end

    def added_to(self, vector: Tensor, factor: float) -> Tensor:
        places = self._layout.parameters_in(vector)
        pairs = [pair for pair in zip(places, self._gradients, strict=True) if pair[1] is not None]
        with torch.no_grad():
            torch._foreach_add_(*zip(*pairs, strict=True), alpha=factor)
        return self._tail


class Turns:
    """Iterating over it yields a replica's gradients, in one way or another."""

    def __init__(self, gradient: Callable[[], Awaitable[Vector | None]]) -> None:
        self._gradient = gradient

    def __aiter__(self) -> AsyncIterator[Vector]:
        return self

    async def __anext__(self) -> Vector:
        gradient = await self._gradient()
        if gradient is None:
            raise StopAsyncIteration
        return gradient
