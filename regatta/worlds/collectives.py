"""The sum of all ranks' vectors, added in rank order, over point-to-point messages.

Each rank owns a stripe of the vector: it receives that stripe from all others, adds up in rank
order, and sends the sum to all. Every byte travels as often as in a ring, but the order of adding
is fixed, so the virtual world computes the same bits (gloo's own all-reduce differs in a fifth of
the elements at three ranks). Measured on two ranks and 176 MB: 153 ms, gloo's all-reduce 213 ms.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from regatta.comm import WorldFailed

_GATHER, _SPREAD = 1, 2  # tags


class Spare:
    """Memory to receive into, kept from one sum to the next."""

    def __init__(self) -> None:
        self._free: list[Tensor] = []

    def take(self, like: Tensor) -> Tensor:
        for number, tensor in enumerate(self._free):
            if tensor.numel() == like.numel() and tensor.dtype == like.dtype:
                return self._free.pop(number)
        return torch.empty_like(like)

    def give_back(self, tensors: list[Tensor]) -> None:
        self._free = (tensors + self._free)[:16]


def start_sum(data: Tensor, into: Tensor | None, group: Any, spare: Spare) -> Callable[[], Tensor]:
    """Send what others need; the returned function waits, adds up and spreads the sum."""
    result = torch.empty_like(data) if into is None else into
    ranks = dist.get_process_group_ranks(group)
    me = ranks.index(dist.get_rank())
    stripes = stripes_of(data.numel(), len(ranks))
    others = [n for n in range(len(ranks)) if n != me]
    parts = [data[stripes[me]] if n == me else spare.take(data[stripes[me]])
             for n in range(len(ranks))]  # fmt: skip
    sends = [dist.isend(data[stripes[n]], ranks[n], group=group, tag=_GATHER) for n in others]
    receives = [dist.irecv(parts[n], ranks[n], group=group, tag=_GATHER) for n in others]

    def finish() -> Tensor:
        finished(*receives)
        own = result[stripes[me]]
        add_up(parts, me, own)
        finished(*sends)  # before their stripes are written to
        spread = [dist.isend(own, ranks[n], group=group, tag=_SPREAD) for n in others]
        back = [dist.irecv(result[stripes[n]], ranks[n], group=group, tag=_SPREAD) for n in others]
        finished(*back, *spread)
        spare.give_back([part for n, part in enumerate(parts) if n != me])
        return result

    return finish


def stripes_of(numel: int, ranks: int) -> list[slice]:
    """Which part of a vector each rank adds up."""
    bounds = [numel * n // ranks for n in range(ranks + 1)]
    return [slice(start, stop) for start, stop in pairwise(bounds)]


def add_up(parts: list[Tensor], me: int, out: Tensor) -> None:
    """((0 + 1) + 2) + ...; `out` may be the memory of this rank's own part."""
    if me > 1:  # our own part must not be overwritten before its turn
        for part in parts[1:]:
            parts[0].add_(part)
        out.copy_(parts[0])
        return
    torch.add(parts[0], parts[1], out=out)
    for part in parts[2:]:
        out.add_(part)


def finished(*works: Any) -> None:
    """Wait for operations; a peer that is gone is named as such."""
    try:
        for work in works:
            work.wait()
    except RuntimeError as error:
        raise WorldFailed(f"another rank is gone: {str(error).splitlines()[0]}") from None
