"""Sums and broadcasts among ranks that see each other's memory.

Every rank names the place of its vector; each adds up its own stripe over all of them in rank order
and writes it to one result that all ranks then read where it lies. A vector that a rank made in its
arena is not copied at all. Small vectors are handed to everybody, who adds them up alone: one wait
instead of two.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from regatta.worlds.adding import add_up, stripes_of
from regatta.worlds.collectives import Finish
from regatta.worlds.mailbox import Mailbox
from regatta.worlds.neighbours import SMALL_BYTES, Neighbours

NUM_TAGS = 5


class SharedSum:
    """Collective operations of a group whose ranks are all on this host."""

    def __init__(
        self,
        mailbox: Mailbox,
        neighbours: Neighbours,
        ranks: Sequence[int],
        me: int,
        first_tag: int,
    ) -> None:
        self._mailbox = mailbox
        self._arena = neighbours.arena
        self._ranks = ranks
        self._me = ranks.index(me)
        self._others = [rank for rank in ranks if rank != me]
        tags = [first_tag - n for n in range(NUM_TAGS)]
        self._small, self._summand, self._result, self._added, self._whole = tags

    def sum(self, data: Tensor, into: Tensor | None = None) -> Finish:
        """Show this rank's vector; what is returned waits for the sum, which lies elsewhere."""
        if data.nbytes <= SMALL_BYTES:
            self._tell(self._small, data)
            return lambda: self._add_alone(data)
        mine = self._arena.placed(data)
        self._tell(self._summand, mine)
        result: Tensor | None = None
        if self._me == 0:
            result = self._arena.empty(data.numel(), data.dtype)
            self._tell(self._result, result)
        return lambda: self._add_together(mine, result)

    def broadcast(self, data: Tensor, root: int) -> Finish:
        if self._ranks[self._me] != root:
            return lambda: self._mailbox.take_own(root, self._whole)
        self._tell(self._whole, data)
        return lambda: data

    def _add_alone(self, data: Tensor) -> Tensor:
        total = torch.empty_like(data)
        add_up([self._summands(self._small, data)], total)
        return total

    def _add_together(self, data: Tensor, result: Tensor | None) -> Tensor:
        summands = self._summands(self._summand, data)
        if result is None:
            result = self._mailbox.take_own(self._ranks[0], self._result)
        stripe = stripes_of(data.numel(), len(self._ranks))[self._me]
        add_up([[summand[stripe] for summand in summands]], result[stripe])
        self._tell(self._added, data[:0])
        for rank in self._others:
            self._mailbox.take_own(rank, self._added)
        return result

    def _summands(self, tag: int, own: Tensor) -> list[Tensor]:
        return [
            own if n == self._me else self._mailbox.take_own(rank, tag)
            for n, rank in enumerate(self._ranks)
        ]

    def _tell(self, tag: int, data: Tensor) -> None:
        for rank in self._others:
            self._mailbox.send(rank, tag, 0, data)
