"""What Kaldi adds to model averaging: a growing number of jobs, and a choice among their models."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch

from regatta.comm import Comm

NUMBER_BYTES = 8


@dataclass(frozen=True)
class Iteration:
    """Minibatches `start` .. `stop` of all workers', for the first `jobs` workers."""

    number: int
    jobs: int
    start: int
    stop: int

    def dealt_to(self, worker: int, position: int) -> range:
        """Those of one worker, dealt in turn from `position` on; none if it is no job yet."""
        return range(position + worker, self.stop, self.jobs) if worker < self.jobs else range(0)


@dataclass(frozen=True)
class Schedule:
    """Jobs grow linearly from `first` to `last` over a run of `planned` minibatches.

    Where an iteration starts depends on the plan alone, so a meeting inside one does not shift
    those after it.
    """

    first: int
    last: int
    period: int  # minibatches of a job in an iteration
    planned: int

    def jobs(self, iteration: int) -> int:
        iterations = max(1.0, 2 * self.planned / (self.period * (self.first + self.last)))
        grown = (self.last - self.first) * min(1.0, iteration / iterations)
        return math.floor(self.first + grown + 0.5)

    def since(self, position: int) -> Iterator[Iteration]:
        """The iterations from this minibatch on, without an end."""
        number = start = 0
        while True:
            jobs = self.jobs(number)
            stop = start + self.period * jobs
            if stop > position:
                yield Iteration(number, jobs, start, stop)
            number, start = number + 1, stop

    def rate(self, iteration: Iteration, final: float) -> float:
        """Falls exponentially to `final`, times the jobs: a mean divides each job's steps."""
        done = min(1.0, iteration.start / max(1, self.planned))
        return iteration.jobs * float(final**done)

    def meetings(self) -> int:
        """In all, undisturbed: at the end, as many minibatches as workers are not to be found."""
        end = next(self.since(self.planned - 1)).stop if self.planned else 0
        return next(it.number + 1 for it in self.since(end) if it.stop - end >= self.last)


def is_kept(rank: int, scores: Sequence[float], drop: float | None) -> bool:
    """Whether a rank's loss is within `drop` of the best, or (None) is the best.

    Where nobody has a finite loss there is nothing to choose by.
    """
    finite = [score for score in scores if math.isfinite(score)]
    if not finite:
        return True
    best = min(finite)
    return rank == scores.index(best) if drop is None else scores[rank] <= best + drop


async def everybodys(comm: Comm, number: float) -> list[float]:
    """Every rank's number, by rank: a sum of rows that hold one number each."""
    row = torch.zeros(comm.size, dtype=torch.float64)
    row[comm.rank] = number
    numbers: list[float] = (await comm.all_reduce(row)).tolist()
    return numbers
