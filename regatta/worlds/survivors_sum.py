"""Sums of a world that goes on when ranks die: those who are left agree who takes part."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from regatta.comm import Traffic
from regatta.worlds.adding import add_up
from regatta.worlds.collectives import Finish
from regatta.worlds.mailbox import Mailbox
from regatta.worlds.neighbours import SMALL_BYTES, Neighbours
from regatta.worlds.roll_call import HEARD, Line
from regatta.worlds.shared_sum import SharedSum


class SurvivorsSum(SharedSum):
    """Of all ranks of this host; each adds up alone, so that nobody needs a stripe of the dead."""

    def __init__(
        self,
        mailbox: Mailbox,
        neighbours: Neighbours,
        ranks: Sequence[int],
        me: int,
        first_tag: int,
        traffic: Traffic,
        line: Line,
        lose: Callable[[int, int], None],
    ) -> None:
        super().__init__(mailbox, neighbours, ranks, me, first_tag, traffic)
        self.present = tuple(ranks)  # in the last sum
        self._rank = me
        self._line = line
        self._lose = lose  # is told of a rank and how many sums of this segment it was in
        self._started = self._finished = self._before = 0

    def begin_segment(self) -> None:
        self._before = self._finished

    def sum(self, data: Tensor, into: Tensor | None = None) -> Finish:
        number = self._started
        self._started += 1
        mine = self._arena.placed(data) if data.nbytes > SMALL_BYTES else data
        for rank in self.present:
            if rank != self._rank:
                self._mailbox.send(rank, self._summand, number, mine)
        return lambda: self._add_survivors(number, mine)

    def show(self, data: Tensor) -> Finish:
        return self.sum(data)

    def _add_survivors(self, number: int, mine: Tensor) -> Tensor:
        heard: dict[int, Tensor] = {self._rank: mine}
        for rank in self.present:
            if rank != self._rank:
                summand = self._mailbox.take_own_unless_gone(rank, self._summand)
                if summand is not None:
                    heard[rank] = summand
        self._line.report(HEARD, (number, tuple(heard)))
        members = self._mailbox.when_there(lambda: self._line.verdict(number))
        for rank in self.present:
            if rank not in members:
                self._lose(rank, self._finished - self._before)
        self.present = tuple(rank for rank in self.present if rank in members)
        self._finished += 1
        total = torch.empty_like(mine)
        add_up([[heard[rank] for rank in self.present]], total)
        return total
