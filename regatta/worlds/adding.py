"""The order of adding, which is the same in every world and on every way.

Ranks of one host are added up in rank order, then hosts in the order of their first ranks. So a
replay computes the same bits, however the vectors travelled.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import torch
from torch import Tensor

_CHUNK = 1 << 16  # elements added up at a time, so that partial sums stay in the cache
PIECE = 1 << 18  # elements added up and used at a time; with less, starting loops takes too long
_REGISTERS = 1 << 10  # elements of more registers than a loop takes at a time
_LINE = 16  # stripes begin at multiples of so many elements: a cache line


def by_host(ranks: Sequence[int], hosts: Sequence[int]) -> list[list[int]]:
    """The ranks of a group in the order of adding: host by host."""
    found: dict[int, list[int]] = {}
    for rank in ranks:
        found.setdefault(hosts[rank], []).append(rank)
    return list(found.values())


def stripes_of(numel: int, ranks: int, multiple: int = _LINE) -> list[slice]:
    """Which part of a vector each rank adds up."""
    lines = -(-numel // multiple)
    bounds = [min(numel, lines * n // ranks * multiple) for n in range(ranks + 1)]
    return [slice(start, stop) for start, stop in pairwise(bounds)]


def pieces_of(numel: int, head: int, ranks: int, me: int) -> list[slice]:
    """A rank's share of a vector, in pieces that stay in the cache.

    Ranks share what comes before element `head`; the last takes what follows as well.

    Loops over vectors treat the elements after the last whole register apart. As pieces are of many
    registers, these elements are the same as those of the whole vector, and so are the bits.
    """
    mine = stripes_of(head, ranks, _REGISTERS)[me]
    starts = range(mine.start, mine.stop, PIECE)
    pieces = [slice(start, min(start + PIECE, mine.stop)) for start in starts]
    return [*pieces, slice(head, numel)] if me == ranks - 1 and head < numel else pieces


def add_up(hosts: Sequence[Sequence[Tensor]], out: Tensor) -> None:
    """(((0 + 1) + 2) + ...) + ((...)); `out` may be the memory of any of the summands."""
    if [len(summands) for summands in hosts] in ([2], [1, 1]):
        first, second = (summand for summands in hosts for summand in summands)
        torch.add(first, second, out=out)
        return
    for start in range(0, out.numel(), _CHUNK):
        chunk = slice(start, start + _CHUNK)
        total = _added([summand[chunk] for summand in hosts[0]])
        for summands in hosts[1:]:
            total = total + _added([summand[chunk] for summand in summands])
        out[chunk] = total


def _added(summands: list[Tensor]) -> Tensor:
    if len(summands) == 1:
        return summands[0]
    total = summands[0] + summands[1]
    for summand in summands[2:]:
        total += summand
    return total
