"""Sums of encoded vectors, for strategies whose workers add up."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from regatta.comm import WORLD, Comm, Load, Phantom, Vector
from regatta.compress.channel import Channel, Code
from regatta.compress.power_sgd import PowerSgd, orthogonal
from regatta.compress.rows import Rows
from regatta.learn.layout import Layout
from regatta.learn.replica import Replica

Reduce = Callable[..., Any]  # as Comm.all_reduce


def reducer(
    code: Code | None,
    comm: Comm,
    replica: Replica,
    feedback: bool = True,
    group: str = WORLD,
    written: bool = True,
) -> Reduce:
    """What to sum with: the world's own all-reduce, or one that encodes."""
    if code is None or len(comm.groups[group]) == 1:
        return partial(comm.all_reduce, group=group, written=written)
    if isinstance(code, PowerSgd):
        return PowerReducer(code, comm, replica, feedback, group)
    return StripeReducer(code, comm, replica, feedback, comm.groups[group])


class StripeReducer:
    """As in 1-bit SGD: every rank owns a stripe of the vector.

    It receives the others' encoded stripes, adds up in rank order, encodes the sum once more (with
    a residual of its own) and sends it to all. Its own stripes are encoded too, so that all ranks
    have the same sum.
    """

    def __init__(
        self, code: Code, comm: Comm, replica: Replica, feedback: bool, members: Sequence[int]
    ) -> None:
        self._comm, self._replica, self._members = comm, replica, members
        self._me = members.index(comm.rank)
        self._others = [n for n in range(len(members)) if n != self._me]
        stripes = [replica.layout.stripe(n, len(members)) for n in range(len(members))]
        self._to_owners = [Channel(code, replica, s, "residual", feedback) for s in stripes]
        mine = stripes[self._me]
        self._to_all = Channel(code, replica, mine, "residual of sums", feedback)

    async def __call__(self, data: Vector, into: Vector | None = None) -> Vector:
        comm, members = self._comm, self._members
        encoded = await comm.compute(partial(self._encode, data), Load(nbytes=data.nbytes))
        for n in self._others:
            await comm.send(members[n], encoded[n])
        parts = [
            encoded[n] if n == self._me else (await comm.recv(members[n])).data
            for n in range(len(members))
        ]
        total = await comm.compute(partial(self._sum, parts), Load(nbytes=data.nbytes))
        for n in self._others:
            await comm.send(members[n], total)
        sums = [
            total if n == self._me else (await comm.recv(members[n])).data
            for n in range(len(members))
        ]
        return self._replica.joined(
            [channel.decode(part) for channel, part in zip(self._to_owners, sums, strict=True)]
        )

    def _encode(self, data: Vector) -> list[Vector]:
        stripes = self._replica.cut(data, len(self._members))
        return [c.encode(stripe) for c, stripe in zip(self._to_owners, stripes, strict=True)]

    def _sum(self, parts: list[Vector]) -> Vector:
        first, *others = (self._to_all.decode(part) for part in parts)
        for other in others:
            first = first + other
        return self._to_all.encode(first)


class PowerReducer:
    """Workers sum the two thin matrices instead of the gradient: two small all-reduces."""

    def __init__(
        self, code: PowerSgd, comm: Comm, replica: Replica, feedback: bool, group: str
    ) -> None:
        self._code, self._comm, self._group = code, comm, group
        self._layout: Layout = replica.layout
        self._rows = Rows(replica.layout.matrices)
        self._residual = replica.slot("residual") if feedback else None
        self._memory = replica.slot("residual memory")

    async def __call__(self, data: Vector, into: Vector | None = None) -> Vector:
        comm, layout = self._comm, self._layout
        if isinstance(data, Phantom):
            return await self._in_time_only(data)
        values, owing = data[: layout.num_parameters], self._residual is not None and data[-1] != 0
        if owing:
            values = values + self._residual[: layout.num_parameters]  # type: ignore[index]
        lefts = await comm.compute(partial(self._lefts, values, data), Load(nbytes=data.nbytes))
        sums = await comm.all_reduce(lefts, self._group)
        rights, bases = await comm.compute(
            partial(self._rights, values, sums), Load(nbytes=data.nbytes)
        )
        totals = await comm.all_reduce(rights, self._group)
        return self._rebuilt(values if owing else None, sums, bases, totals)

    async def _in_time_only(self, data: Phantom) -> Phantom:
        counts = 0.0
        for nbytes in power_bytes(self._code, self._layout):
            await self._comm.compute(lambda: None, Load(nbytes=data.nbytes))
            counts = (await self._comm.all_reduce(Phantom(nbytes, data.count), self._group)).count
        return Phantom(self._layout.nbytes, counts)

    def _lefts(self, values: Tensor, data: Tensor) -> Tensor:
        """M Q of every matrix that shrinks, the others whole, and the tail."""
        pairs = self._code.with_starts(values, self._rows, self._memory_of_parameters)
        pieces = [m if start is None else m @ start for m, start in pairs]
        tail = data[self._layout.num_parameters :]
        return torch.cat([*(piece.reshape(-1) for piece in pieces), tail])

    def _rights(self, values: Tensor, sums: Tensor) -> tuple[Tensor, list[Tensor | None]]:
        """M' P of every matrix that shrinks, with P the orthogonal sum."""
        place, pieces = 0, []
        bases: list[Tensor | None] = []
        pairs = self._code.with_starts(values, self._rows, self._memory_of_parameters)
        for matrix, start in pairs:
            rows = matrix.shape[0]
            size = matrix.numel() if start is None else rows * self._code.rank
            base = None if start is None else orthogonal(sums[place : place + size].view(rows, -1))
            if base is not None:
                pieces.append((matrix.T @ base).view(-1))
            bases.append(base)
            place += size
        return torch.cat(pieces or [sums[:0]]), bases

    def _rebuilt(
        self, owed: Tensor | None, sums: Tensor, bases: list[Tensor | None], totals: Tensor
    ) -> Tensor:
        layout, rank = self._layout, self._code.rank
        result = layout.empty()
        result[layout.num_parameters :] = sums[len(sums) - (layout.numel - layout.num_parameters) :]
        place = left_place = right_place = 0
        for (rows, columns), base in zip(layout.matrices, bases, strict=True):
            size = rows * columns
            if base is None:
                product = sums[left_place : left_place + size]
                left_place += size
            else:
                right = totals[right_place : right_place + columns * rank].view(columns, rank)
                product = (base @ right.T).view(-1)
                self._memory[place : place + columns * rank] = right.reshape(-1)
                left_place += rows * rank
                right_place += columns * rank
            result[place : place + size] = product
            place += size
        if owed is not None:
            assert self._residual is not None
            split = layout.num_parameters
            torch.sub(owed, result[:split] / result[-1], out=self._residual[:split])
        return result

    @property
    def _memory_of_parameters(self) -> Tensor:
        memory: Tensor = self._memory[: self._layout.num_parameters]
        return memory


def power_bytes(code: PowerSgd, layout: Layout) -> tuple[int, int]:
    """Of the two vectors that are summed."""
    shrunk = [(r, c) for r, c in layout.matrices if code.shrinks(r, c)]
    kept = sum(r * c for r, c in layout.matrices if not code.shrinks(r, c))
    tail = layout.numel - layout.num_parameters
    width = layout.dtype.itemsize
    lefts = code.rank * sum(rows for rows, _ in shrunk) + kept + tail
    return lefts * width, code.rank * sum(columns for _, columns in shrunk) * width


def striped_bytes(code: Code, layout: Layout, stripes: int) -> int:
    """Of one encoded vector in so many stripes, their tails included."""
    width = layout.dtype.itemsize
    cut = [layout.stripe(number, stripes) for number in range(stripes)]
    return sum(code.nbytes(Rows(s.matrices)) + s.nbytes - s.num_parameters * width for s in cut)


def reduced_exchange(code: Code | None, layout: Layout, ranks: int) -> tuple[int, int]:
    """Messages and bytes of one sum, over all ranks."""
    if code is None or ranks == 1:
        return ranks, ranks * layout.nbytes
    if isinstance(code, PowerSgd):
        return 2 * ranks, ranks * sum(power_bytes(code, layout))
    each_way = ranks - 1  # of every stripe, to its owner and from it
    return 2 * ranks * each_way, 2 * each_way * striped_bytes(code, layout, ranks)
