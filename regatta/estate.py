"""What the dead have left to do: their minibatches, dealt out to the workers that go on.

Every worker has a lane of the data, by its number. The lane of a worker that is missing when a
segment begins is dealt out turn by turn to all who are there. If it dies in the middle, those who
hear of it before they are done themselves share the rest of its lane; what falls to the others is
left out, and so is what the dead had taken over from somebody else.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

from regatta.comm import Loss

if TYPE_CHECKING:
    from regatta.engine import Rank


class Estate:
    """One worker's share, in the order in which it comes to it: after its own lane."""

    def __init__(self, rank: Rank) -> None:
        self._rank = rank
        self._mine: deque[tuple[int, int]] = deque()  # lane and turn
        self._heard = 0  # losses, so far
        self._segment = range(0)  # in turns of a lane
        self._lanes: set[int] = set()  # that are dealt out from the segment's beginning
        self._ends: dict[int, int] = {}  # of the dead: how far they are known to have come

    def begin(self, first: int, limit: int) -> None:
        """A segment from one turn to another."""
        self._mine.clear()
        self._segment = range(first, limit)
        comm, workers = self._rank.comm, self._rank.run.workers
        if len(comm.present) == comm.size:
            return
        heirs = [rank for rank in comm.present if rank < workers]
        self._lanes = set(range(workers)) - set(heirs)
        if comm.rank in heirs:
            for lane in sorted(self._lanes):
                self._share(lane, first, heirs.index(comm.rank), len(heirs))

    def turns_of_the_dead(self) -> int:
        """In their own lanes, up to the last meeting at which they were."""
        for worker in range(self._rank.run.workers):
            if worker not in self._rank.comm.present:
                self._ends.setdefault(worker, self._segment.start)
        return sum(self._ends.values())

    def next(self) -> tuple[int, int] | None:
        """Whose minibatch is to be computed now: its lane and its turn there."""
        if not self._mine:
            self._hear()
        return self._mine[0] if self._mine else None

    def done(self) -> None:
        self._mine.popleft()

    def _hear(self) -> None:
        """Of those who have died since the segment began."""
        chance = self._rank.chance
        while chance.replaying and (dead := chance.take("heir")) is not None:
            turn, place, of = (chance.take("heir") or 0 for _ in range(3))
            self._share(dead, turn, place, of)
        losses = self._rank.comm.losses
        while self._heard < len(losses):
            loss = losses[self._heard]
            self._heard += 1
            self._inherit(loss)

    def _inherit(self, loss: Loss) -> None:
        dead, turn, heirs = loss
        me, chance = self._rank.comm.rank, self._rank.chance
        if dead not in self._lanes and me in heirs:
            place = heirs.index(me)
            for outcome in (dead, turn, place, len(heirs)):
                chance.note("heir", outcome)
            self._share(dead, turn, place, len(heirs))

    def _share(self, lane: int, first: int, place: int, of: int) -> None:
        # Heirs take turns at being the first, lest one of them has the odd minibatch of every lane.
        first = max(first, self._segment.start) + (place - lane) % of
        self._mine.extend((lane, turn) for turn in range(first, self._segment.stop, of))
