"""When the segments of a run end, in epochs and in turns of one worker."""

from __future__ import annotations

import math

from regatta.config import Run, Stop
from regatta.data.order import Order


class Calendar:
    def __init__(self, run: Run, order: Order, stop: Stop) -> None:
        self._run = run
        self._batches = order.batches_per_epoch
        per_epoch = order.batches_per_epoch * run.minibatch * run.workers
        self.end = min(stop.epochs, (stop.samples or math.inf) / per_epoch)
        self.evaluates = run.strategy.answer == "meeting"

    def next_meeting(self, epochs: float) -> float:
        periods = [self._run.checkpointing.every]
        if self.evaluates:
            periods.append(self._run.evaluation.every)
        meetings = [_next_multiple(period, epochs) for period in periods if period]
        return min([self.end, *meetings])

    def turns(self, epochs: float) -> int:
        return round(epochs * self._batches)

    def epochs(self, turns: float) -> float:
        return turns / self._batches

    def saves_at(self, epochs: float) -> bool:
        return _is_multiple(epochs, self._run.checkpointing.every)

    def evaluates_at(self, epochs: float) -> bool:
        return self.evaluates and _is_multiple(epochs, self._run.evaluation.every)


def _next_multiple(period: float, value: float) -> float:
    return (math.floor(value / period + 1e-9) + 1) * period


def _is_multiple(value: float, period: float) -> bool:
    return period > 0 and abs(value / period - round(value / period)) < 1e-9
