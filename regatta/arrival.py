"""When a run came to a target: at once, by a straight line, or to stay."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from typing import NamedTuple


class Score(NamedTuple):
    """What an evaluation found, and when."""

    seconds: float  # of training
    value: float


@dataclass(frozen=True)
class Target:
    value: float
    higher_is_better: bool = True
    last: int = 1  # evaluations whose median must reach it

    def is_met_by(self, value: float) -> bool:
        return value >= self.value if self.higher_is_better else value <= self.value


@dataclass(frozen=True)
class Level:
    """A target of any result of evaluations, be it the task's metric or another."""

    metric: str
    target: Target


@dataclass(frozen=True)
class Arrival:
    """Seconds of training; None where it never came about."""

    first: float | None  # until the first evaluation that meets the target
    interpolated: float | None  # until the straight line from the evaluation before does
    lasting: float | None  # until the median of the last evaluations does: TTA(a, e)


NEVER = Arrival(None, None, None)


def arrival(scores: Sequence[Score], target: Target) -> Arrival:
    met = next((n for n, score in enumerate(scores) if target.is_met_by(score.value)), None)
    if met is None:
        return NEVER
    return Arrival(
        first=scores[met].seconds,
        interpolated=_crossing(scores[met - 1], scores[met], target) if met else scores[0].seconds,
        lasting=lasting(scores, target),
    )


def lasting(scores: Sequence[Score], target: Target) -> float | None:
    """TTA(a, e) of Baunsgaard et al.: an accuracy that is met once may be lost again."""
    for end in range(target.last, len(scores) + 1):
        window = scores[end - target.last : end]
        if target.is_met_by(median(score.value for score in window)):
            return window[-1].seconds
    return None


def _crossing(before: Score, after: Score, target: Target) -> float:
    if not math.isfinite(before.value):  # a model that has diverged lies on no line
        return after.seconds
    share = (target.value - before.value) / (after.value - before.value)
    return before.seconds + share * (after.seconds - before.seconds)
