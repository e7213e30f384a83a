"""How fast a rank learns: its schedule, the scaling rule, and what evaluations have found."""

from __future__ import annotations

from typing import Any

from regatta.config import Run
from regatta.data.order import Order
from regatta.learn.part import Part
from regatta.learn.schedules import Fixed, Moment


class Pace:
    """Called before every step: what the learning rate is multiplied by.

    Ranks that step together know alike how far they are, by the gradients in their weights. Who
    steps a model of its own goes by its own steps.
    """

    def __init__(self, run: Run, order: Order, alone: bool, planned: float) -> None:
        self.found = 1.0  # by evaluations
        self._run, self._order, self._alone = run, order, alone
        self._planned = planned
        self._score: float | None = None  # of the last evaluation
        self._more = 0  # turns that lie behind than own steps were made: others were there

    @property
    def is_constant(self) -> bool:
        return isinstance(self._run.schedule, Fixed) and self._run.scaling.by == "none"

    def __call__(self, part: Part) -> float:
        order, run = self._order, self._run
        turns = part.steps + self._more if self._alone else part.version / run.workers
        epochs = order.epochs(turns)
        growth = order.minibatch_at(int(turns)) / order.minibatch_at(0)
        scale = run.scaling.rate(epochs, run.workers, growth)
        return self.found * scale * run.schedule.rate(Moment(epochs, self._planned, turns))

    def hear(self, score: float) -> None:
        """Of an evaluation that was due; all ranks are then told what was found."""
        if self._score is not None:
            gain = score - self._score
            better = gain if self._run.task.metric.higher_is_better else -gain
            self.found *= self._run.schedule.after(better)
        self._score = score

    def be_among_others(self, more: int) -> None:
        """Who has another share of the data from here on takes more or fewer turns an epoch."""
        self._more = more

    def state(self) -> dict[str, Any]:
        return {"found": self.found, "score": self._score, "more": self._more}

    def restore(self, state: dict[str, Any]) -> None:
        self.found, self._score = state["found"], state["score"]
        self._more = state.get("more", self._more)
