"""Sums and broadcasts among ranks that see each other's memory.

Every rank names the place of its vector; each adds up its own stripe over all of them in rank order
and writes it to one result that all ranks then read where it lies. A vector that a rank made in its
arena is not copied at all. Small vectors are handed to everybody, who adds them up alone: one wait
instead of two. A sum that need not be written is not: each rank adds up a piece of its stripe and
uses it at once, to step weights that all ranks share from then on.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from regatta.comm import EMPTY, Traffic, Unwritten, WorldFailed
from regatta.worlds.adding import PIECE, add_up, pieces_of, stripes_of
from regatta.worlds.collectives import Finish
from regatta.worlds.mailbox import Mailbox
from regatta.worlds.neighbours import SMALL_BYTES, Neighbours

NUM_TAGS = 4


class SharedSum:
    """Collective operations of a group whose ranks are all on this host."""

    def __init__(
        self,
        mailbox: Mailbox,
        neighbours: Neighbours,
        ranks: Sequence[int],
        me: int,
        first_tag: int,
        traffic: Traffic,
    ) -> None:
        self.traffic = traffic
        self._mailbox = mailbox
        self._arena = neighbours.arena
        self._ranks = ranks
        self._me = ranks.index(me)
        self._others = [rank for rank in ranks if rank != me]
        tags = [first_tag - n for n in range(NUM_TAGS)]
        self._summand, self._result, self._added, self._whole = tags
        self._begun = 0  # sums
        self._taken = dict.fromkeys(self._others, 0)  # summands
        self._early: dict[tuple[int, int], Tensor] = {}  # by rank and number: not asked for yet

    def sum(self, data: Tensor, into: Tensor | None = None) -> Finish:
        """Show this rank's vector; what is returned waits for the sum, which lies elsewhere."""
        nth = self._begin()
        if data.nbytes <= SMALL_BYTES:
            self._tell(self._summand, data)
            return lambda: self._add_alone(nth, data)
        mine = self._arena.placed(data)
        self._tell(self._summand, mine)
        result: Tensor | None = None
        if self._me == 0:
            result = self._arena.empty(data.numel(), data.dtype)
            self._tell(self._result, result)
        return lambda: self._add_together(nth, mine, result)

    def show(self, data: Tensor) -> Callable[[], Tensor | Unwritten]:
        """As `sum`, but nothing is added up before somebody makes use of it."""
        if data.nbytes <= SMALL_BYTES:
            return self.sum(data)
        nth, mine = self._begin(), self._arena.placed(data)
        self._tell(self._summand, mine)
        return lambda: self._shown(nth, mine)

    def offer(self, make: Callable[[], Sequence[Tensor]]) -> list[Tensor]:
        """The first rank's vectors, which everybody else may then write to as well."""
        if self._me:
            return []
        vectors = [self._arena.placed(vector) for vector in make()]
        for vector in vectors:
            self._tell(self._result, vector)
        return vectors

    def shared(self, offered: list[Tensor], number: int) -> list[Tensor]:
        first = self._ranks[0]
        return offered or [self._mailbox.take_own(first, self._result) for _ in range(number)]

    def meet(self) -> None:
        """Go on when everybody is here."""
        self._tell(self._added, EMPTY)
        for rank in self._others:
            self._mailbox.take_own(rank, self._added)

    def pieces(self, numel: int, head: int) -> list[slice]:
        return pieces_of(numel, head, len(self._ranks), self._me)

    def broadcast(self, data: Tensor, root: int) -> Finish:
        if self._ranks[self._me] != root:
            return lambda: self._mailbox.take_own(root, self._whole)
        self._tell(self._whole, data)
        return lambda: data

    def _begin(self) -> int:
        self._begun += 1
        return self._begun - 1

    def _add_alone(self, nth: int, data: Tensor) -> Tensor:
        total = torch.empty_like(data)
        add_up([self._summands(nth, data)], total)
        return total

    def _add_together(self, nth: int, data: Tensor, result: Tensor | None) -> Tensor:
        summands = self._summands(nth, data)
        if result is None:
            result = self._mailbox.take_own(self._ranks[0], self._result)
        stripe = stripes_of(data.numel(), len(self._ranks))[self._me]
        add_up([[summand[stripe] for summand in summands]], result[stripe])
        self.meet()
        return result

    def _shown(self, nth: int, data: Tensor) -> Unwritten:
        total = Summands(self, self._summands(nth, data))
        if not total[-1]:
            self.meet()  # nobody will use it: from here on nobody looks at it any more
        return total

    def _summands(self, nth: int, own: Tensor) -> list[Tensor]:
        summands = [
            own if n == self._me else self._summand_of(rank, nth)
            for n, rank in enumerate(self._ranks)
        ]
        for rank, summand in zip(self._ranks, summands, strict=True):
            if summand.numel() != own.numel() or summand.dtype != own.dtype:  # else it would spread
                raise WorldFailed(
                    f"rank {rank} adds {summand.numel()} numbers of {summand.dtype} to "
                    f"{own.numel()} of {own.dtype}: ranks do not train the same model"
                )
        return summands

    def _summand_of(self, rank: int, nth: int) -> Tensor:
        """Sums may be finished in another order than they were begun in."""
        while self._taken[rank] <= nth:
            self._early[rank, self._taken[rank]] = self._mailbox.take_own(rank, self._summand)
            self._taken[rank] += 1
        return self._early.pop((rank, nth))

    def _tell(self, tag: int, data: Tensor) -> None:
        for rank in self._others:
            self._mailbox.send(rank, tag, 0, data)


class Summands(Unwritten):
    """What all ranks of a group have shown each other."""

    def __init__(self, group: SharedSum, summands: list[Tensor]) -> None:
        self._group = group
        self._summands = summands
        self._count = torch.empty_like(summands[0][-1:])
        self._add_up(slice(-1, None), self._count)

    def __getitem__(self, index: int) -> Tensor:
        return self._count[self.checked(index)]

    def use(
        self,
        work: Callable[[Tensor, slice, Sequence[Tensor]], None],
        into: Callable[[], Sequence[Tensor]],
        vectors: int,
        head: int,
    ) -> list[Tensor]:
        offer = self._group.offer(into)
        scratch = torch.empty(PIECE, dtype=self._count.dtype)
        shared: list[Tensor] = []
        for here in self._group.pieces(self._summands[0].numel(), head):
            piece = scratch[: here.stop - here.start]
            self._add_up(here, piece)
            shared = shared or self._group.shared(offer, vectors)  # they come meanwhile
            work(piece, here, shared)
        shared = shared or self._group.shared(offer, vectors)  # also by who had no piece
        began = time.perf_counter()
        self._group.meet()
        self._group.traffic.waited(began, time.perf_counter())
        return shared

    def _add_up(self, here: slice, out: Tensor) -> None:
        add_up([[summand[here] for summand in self._summands]], out)
