"""When the segments of a run end, in epochs and in turns of one worker."""

from __future__ import annotations

import math

from regatta.config import Run, Stop
from regatta.data.order import Order


class Calendar:
    def __init__(self, run: Run, order: Order, stop: Stop) -> None:
        self._run = run
        self._order = order
        self.end = min(stop.epochs, order.epochs_of(stop.samples) if stop.samples else math.inf)
        # A mean is there when all have met; a rate that follows scores must be agreed upon.
        self.evaluates = run.strategy.answer == "meeting" or run.schedule.follows_scores

    def next_meeting(self, epochs: float) -> float:
        periods = [self._run.checkpointing.every]
        if self.evaluates:
            periods.append(self._run.evaluation.every)
        meetings = [_next_multiple(period, epochs) for period in periods if period]
        if batches := self._run.checkpointing.batches:
            meetings.append(self.epochs((self.turns(epochs) // batches + 1) * batches))
        return min([self.end, *meetings])

    def turns(self, epochs: float) -> int:
        return self._order.turns(epochs)

    def epochs(self, turns: float) -> float:
        return self._order.epochs(turns)

    def saves_at(self, epochs: float) -> bool:
        batches = self._run.checkpointing.batches
        if batches and self.turns(epochs) % batches == 0:
            return True
        return _is_multiple(epochs, self._run.checkpointing.every)

    def evaluates_at(self, epochs: float) -> bool:
        return self.evaluates and _is_multiple(epochs, self._run.evaluation.every)


def _next_multiple(period: float, value: float) -> float:
    return (math.floor(value / period + 1e-9) + 1) * period


def _is_multiple(value: float, period: float) -> bool:
    return period > 0 and abs(value / period - round(value / period)) < 1e-9
