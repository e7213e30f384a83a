"""Gradients reduced bucket by bucket while backward still runs.

Backward finds the last layer's gradients first, so buckets are slices of the vector from its end to
its start. Every rank starts them in that order, whatever order its gradients come in. A vector that
fits one bucket is reduced whole after backward, without hooks.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from functools import partial
from itertools import accumulate
from typing import TYPE_CHECKING, Any

from torch import Tensor
from torch.nn import Parameter

from regatta.comm import Op, Seconds, Vector
from regatta.learn.layout import Layout
from regatta.learn.overlap import BUCKET_BYTES, BUCKETS, FOUND_OUT, WHOLE, Choice

if TYPE_CHECKING:
    from regatta.learn.replica import Replica

_OVERLAP = "overlaps"  # the counter that keeps what was found out
FORWARD_SHARE = 1 / 3  # of a turn's time; backward takes about twice as long


def cut(sizes: list[int], numel: int, most: int) -> list[tuple[int, int]]:
    """Slices of at most `most` elements (or one parameter), last first; the tail goes along."""
    starts = list(accumulate(sizes, initial=0))[:-1]
    slices: list[tuple[int, int]] = []
    stop = numel
    for number in reversed(range(len(sizes))):
        start = starts[number]
        if number == 0 or stop - starts[number - 1] > most:
            slices.append((start, stop))
            stop = start
    return slices


async def reduced_whole(
    replica: Any, all_reduce: Callable[..., Op[Vector]]
) -> AsyncIterator[Vector]:
    """Summed gradients of a replica that does not cut them into buckets."""
    turns = aiter(replica)
    while True:
        gradient = await anext(turns, None)
        total = await all_reduce(replica.nothing if gradient is None else gradient)
        if total[-1] == 0:
            return
        yield total


class Reduced:
    def __init__(
        self,
        replica: Replica,
        all_reduce: Callable[..., Op[Vector]],
        in_buckets: bool,
        written: bool,
    ) -> None:
        self._replica = replica
        self._whole = {} if written else {"written": False}  # not every reducer knows of it
        self._all_reduce = all_reduce
        layout, wanted = replica.layout, replica.bucket_bytes if in_buckets else 0
        bucket_bytes = BUCKET_BYTES if wanted == FOUND_OUT else wanted or layout.nbytes
        most = max(1, bucket_bytes // layout.dtype.itemsize)
        whole, buckets = [(0, layout.numel)], cut(layout.rooms, layout.numel, most)
        self._ways = (whole, buckets)
        self._choice = self._choice_of(wanted, buckets)
        self._began: Seconds | None = None  # the last turn, while there is something to find out
        self._backward = self._hooked_once()

    def __aiter__(self) -> AsyncIterator[Vector]:
        return self

    async def __anext__(self) -> Vector:
        if self._choice.made is None:
            await self._find_out()
        replica, slices = self._replica, self._ways[self._choice.way]
        batch = replica.stream.next()
        load, lent = replica.load_of_a_turn, self._lent()
        if batch is None:
            vector = replica.nothing if lent is None else lent.zero_()
            operations = [self._start(vector[start:stop]) for start, stop in slices]
            del vector
        elif len(slices) == 1:
            computing = replica.comm.compute(partial(replica._gradient, batch, lent), load)
            operations = [self._start(await computing)]
            del computing  # who has added the gradient lets it go
        else:
            in_pieces = partial(self._forward_and_backward, batch, lent)
            operations = await replica.comm.compute(in_pieces, load, overlap=True)
        replica.turns += batch is not None
        del batch
        total = self._joined([await operation for operation in operations])
        if total[-1] == 0:
            raise StopAsyncIteration
        return total

    async def _find_out(self) -> None:
        """A turn is over where the next begins: steps belong to it as much as sums."""
        replica, now = self._replica, self._replica.comm.now()
        if self._began is not None:
            await self._choice.took(now - self._began, self._all_reduce)
            if self._choice.made is not None:
                replica.counters[_OVERLAP] = self._choice.made
        self._began = now

    def _choice_of(self, wanted: int, buckets: list[tuple[int, int]]) -> Choice:
        """Made beforehand, unless it is to be found out and there is something to find."""
        if wanted != FOUND_OUT:
            return Choice(BUCKETS if len(buckets) > 1 else WHOLE)
        if len(buckets) == 1 or self._replica.comm.size == 1:
            return Choice(WHOLE)
        return Choice(self._replica.counters.get(_OVERLAP))

    def _hooked_once(self) -> Backward:
        """A model's parameters get their hooks once, however often roles start again."""
        body = self._replica.body
        if body.backward is None:
            body.backward = Backward(body.layout, self._ways[BUCKETS])
        return body.backward

    def _lent(self) -> Tensor | None:
        """The same memory every turn, where sums come back to it.

        Elsewhere a gradient has its own from when it is computed until it has been added.
        """
        replica = self._replica
        if replica.lent is None and replica.comm.reduces_in_place:
            replica.lent = replica._empty()
        return replica.lent

    def _joined(self, pieces: list[Tensor]) -> Tensor:
        """One vector of the reduced slices (last first); no copy where they lie as they should."""
        if len(pieces) == 1:
            return pieces[0]
        lent = self._replica.lent
        if lent is not None and all(_lies_in(lent, piece) for piece in pieces):
            return lent
        return self._replica.body.joined(pieces[::-1])

    def _start(self, piece: Tensor) -> Op[Vector]:
        if piece.numel() == self._replica.layout.numel:
            return self._all_reduce(piece, into=piece, **self._whole)
        return self._all_reduce(piece, into=piece)

    def _forward_and_backward(self, batch: Any, vector: Tensor | None) -> list[Op[Vector]]:
        vector = self._replica._empty() if vector is None else vector
        loss = self._replica.forward(batch)
        return self._backward.run(loss, vector, self._start, self._replica.comm.progress)


def _lies_in(vector: Tensor, piece: Tensor) -> bool:
    start = vector.data_ptr()
    return start <= piece.data_ptr() < start + vector.nbytes


class Backward:
    """Backward that fills a vector from its end and starts each bucket as soon as it is full."""

    def __init__(self, layout: Layout, slices: list[tuple[int, int]]) -> None:
        self._layout = layout
        self._slices = slices
        self._offsets = list(accumulate(layout.rooms, initial=0))[:-1]
        self._bucket_of = [
            next(n for n, (start, stop) in enumerate(slices) if start <= offset < stop)
            for offset in self._offsets
        ]
        self._vector: Tensor | None = None
        if len(slices) > 1:
            for number, parameter in enumerate(layout.parameters):
                parameter.register_post_accumulate_grad_hook(partial(self._ready, number))

    def run(
        self,
        loss: Tensor,
        vector: Tensor,
        start: Callable[[Tensor], Op[Vector]],
        progress: Callable[[float], None],
    ) -> list[Op[Vector]]:
        self._vector, self._start_bucket, self._progress = vector, start, progress
        self._operations: list[Op[Vector]] = []
        self._missing = [self._bucket_of.count(n) for n in range(len(self._slices))]
        self._came = [False] * len(self._offsets)
        self._done = 0
        vector[self._layout.num_parameters :] = self._layout.tail()
        loss.backward()
        for number, came in enumerate(self._came):
            if not came:  # no part of this loss
                self._fill(number, None)
        self._vector = None
        return self._operations

    def _ready(self, number: int, parameter: Parameter) -> None:
        if self._vector is not None:
            self._fill(number, parameter.grad)
            parameter.grad = None

    def _fill(self, number: int, gradient: Tensor | None) -> None:
        assert self._vector is not None
        room, offset = self._layout.rooms[number], self._offsets[number]
        place = self._vector[offset : offset + room]
        place.copy_(self._layout.filling(gradient, room))
        self._came[number] = True
        self._done += room
        self._progress(
            FORWARD_SHARE + (1 - FORWARD_SHARE) * self._done / self._layout.num_parameters
        )
        self._missing[self._bucket_of[number]] -= 1
        while (n := len(self._operations)) < len(self._slices) and self._missing[n] == 0:
            begin, end = self._slices[n]
            self._operations.append(self._start_bucket(self._vector[begin:end]))
