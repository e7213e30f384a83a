"""The sum of all ranks' vectors over point-to-point messages of gloo.

Each rank owns a stripe of the vector: it receives that stripe from all others, adds up in the order
of `adding`, and sends the sum to all. Every byte travels as often as in a ring, but the order is
fixed (gloo's own all-reduce differs in a fifth of the elements at three ranks). Measured on two
ranks and 176 MB: 153 ms, gloo's all-reduce 213 ms. All receives are begun before their messages can
be sent (see `ahead`), so that a sum waits for two journeys and not for four.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from regatta.comm import WorldFailed
from regatta.worlds.adding import add_up, by_host, stripes_of
from regatta.worlds.ahead import Ahead, Tags
from regatta.worlds.collectives import Finish
from regatta.worlds.sockets import complaint

_SPREAD, _GATHER = 1, 2  # tags: the one, and from which on there is one for every length


class SocketsSum:
    """Collective operations of a group over the network."""

    def __init__(self, group: Any, ranks: Sequence[int], hosts: Sequence[int]) -> None:
        self._group = group
        self._ranks = ranks
        self._me = ranks.index(dist.get_rank())
        self._hosts = by_host(ranks, hosts)
        self._others = [n for n in range(len(ranks)) if ranks[n] != dist.get_rank()]
        self._tags = {n: Tags(_GATHER) for n in self._others}
        self._parts = {n: Ahead(group, ranks[n], _GATHER) for n in self._others}

    def sum(self, data: Tensor, into: Tensor | None = None) -> Finish:
        """Send what others need; what is returned waits, adds up and spreads the sum."""
        result = torch.empty_like(data) if into is None else into
        stripes = stripes_of(data.numel(), len(self._ranks))
        mine, others = stripes[self._me], self._others
        own = data[mine]
        with _all_alive():
            parts = {n: self._parts[n].take(own.dtype, own.numel()) for n in others}
            sends = [self._send_part(data[stripes[n]], n) for n in others]
            # Nobody sends a sum before this rank's part of it has come, and then that is free.
            back = [self._receive_sum(result[stripes[n]], n) for n in others]

        def finish() -> Tensor:
            finished(*(part.work for part in parts.values()))
            known = {self._ranks[n]: part.data for n, part in parts.items()}
            known[self._ranks[self._me]] = own
            add_up([[known[rank] for rank in ranks] for ranks in self._hosts], result[mine])
            with _all_alive():
                spread = [self._send_sum(result[mine], n) for n in others]
                for n, part in parts.items():
                    self._parts[n].be_ready(part.data)
            finished(*sends, *back, *spread)
            return result

        return finish

    def broadcast(self, data: Tensor, root: int) -> Finish:
        copy = data.clone()
        return _when_finished(dist.broadcast(copy, root, group=self._group, async_op=True), copy)

    def _send_part(self, data: Tensor, to: int) -> Any:
        tag = self._tags[to].of(data.dtype, data.numel())
        return dist.isend(data, self._ranks[to], group=self._group, tag=tag)

    def _send_sum(self, data: Tensor, to: int) -> Any:
        return dist.isend(data, self._ranks[to], group=self._group, tag=_SPREAD)

    def _receive_sum(self, data: Tensor, source: int) -> Any:
        return dist.irecv(data, self._ranks[source], group=self._group, tag=_SPREAD)


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
    """Wait for operations."""
    with _all_alive():
        for work in works:
            work.wait()


@contextmanager
def _all_alive() -> Iterator[None]:
    """A peer that is gone is named as such."""
    try:
        yield
    except RuntimeError as error:
        raise WorldFailed(f"another rank is gone: {complaint(error)}") from None
