"""The sum of all ranks' vectors over point-to-point messages of gloo.

Each rank owns a stripe of the vector: it receives that stripe from all others, adds up in the order
of `adding`, and sends the sum to all. Every byte travels as often as in a ring, but the order is
fixed (gloo's own all-reduce differs in a fifth of the elements at three ranks). Measured on two
ranks and 176 MB: 153 ms, gloo's all-reduce 213 ms.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from regatta.comm import WorldFailed
from regatta.worlds.adding import add_up, by_host, stripes_of
from regatta.worlds.collectives import Finish

_GATHER, _SPREAD = 1, 2  # tags
_MOST_SPARE = 16


class SocketsSum:
    """Collective operations of a group over the network."""

    def __init__(self, group: Any, ranks: Sequence[int], hosts: Sequence[int]) -> None:
        self._group = group
        self._ranks = ranks
        self._me = ranks.index(dist.get_rank())
        self._hosts = by_host(ranks, hosts)
        self._spare: list[Tensor] = []  # memory to receive into, kept from one sum to the next

    def sum(self, data: Tensor, into: Tensor | None = None) -> Finish:
        """Send what others need; what is returned waits, adds up and spreads the sum."""
        result = torch.empty_like(data) if into is None else into
        stripes = stripes_of(data.numel(), len(self._ranks))
        mine = stripes[self._me]
        others = [n for n in range(len(self._ranks)) if n != self._me]
        parts = {self._ranks[n]: self._take_spare(data[mine]) for n in others}
        sends = [self._send(data[stripes[n]], n, _GATHER) for n in others]
        receives = [self._receive(parts[self._ranks[n]], n, _GATHER) for n in others]

        def finish() -> Tensor:
            finished(*receives)
            known = parts | {self._ranks[self._me]: data[mine]}
            add_up([[known[rank] for rank in ranks] for ranks in self._hosts], result[mine])
            finished(*sends)  # before their stripes are written to
            spread = [self._send(result[mine], n, _SPREAD) for n in others]
            back = [self._receive(result[stripes[n]], n, _SPREAD) for n in others]
            finished(*back, *spread)
            self._spare = [*parts.values(), *self._spare][:_MOST_SPARE]
            return result

        return finish

    def broadcast(self, data: Tensor, root: int) -> Finish:
        copy = data.clone()
        return _when_finished(dist.broadcast(copy, root, group=self._group, async_op=True), copy)

    def _send(self, data: Tensor, to: int, tag: int) -> Any:
        return dist.isend(data, self._ranks[to], group=self._group, tag=tag)

    def _receive(self, data: Tensor, source: int, tag: int) -> Any:
        return dist.irecv(data, self._ranks[source], group=self._group, tag=tag)

    def _take_spare(self, like: Tensor) -> Tensor:
        for number, tensor in enumerate(self._spare):
            if tensor.numel() == like.numel() and tensor.dtype == like.dtype:
                return self._spare.pop(number)
        return torch.empty_like(like)


class NcclSum:
    """Collective operations between devices: fast, the same on every rank, in NCCL's own order."""

    def __init__(self, group: Any) -> None:
        self._group = group

    def sum(self, data: Tensor, into: Tensor | None = None) -> Finish:
        result = data.clone() if into is None else into
        if into is not None and into is not data:
            into.copy_(data)
        return _when_finished(dist.all_reduce(result, group=self._group, async_op=True), result)

    def broadcast(self, data: Tensor, root: int) -> Finish:
        copy = data.clone()
        return _when_finished(dist.broadcast(copy, root, group=self._group, async_op=True), copy)


def _when_finished(work: Any, result: Tensor) -> Finish:
    def finish() -> Tensor:
        finished(work)
        return result

    return finish


def finished(*works: Any) -> None:
    """Wait for operations; a peer that is gone is named as such."""
    try:
        for work in works:
            work.wait()
    except RuntimeError as error:
        raise WorldFailed(f"another rank is gone: {str(error).splitlines()[0]}") from None
