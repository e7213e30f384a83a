"""Learning rates in the course of a run: what the optimiser's own rate is multiplied by.

A schedule is a pure function of how far a run has come, so nothing need be remembered; only what
follows the scores of evaluations is agreed upon when all ranks meet, and saved.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Protocol


@dataclass(frozen=True)
class Moment:
    """How far a run has come."""

    epochs: float
    planned: float  # epochs, at most
    minibatches: float  # of one worker


class Schedule(Protocol):
    name: ClassVar[str]
    follows_scores: ClassVar[bool]  # ranks meet at every evaluation, and may change the rate there

    def rate(self, at: Moment) -> float: ...
    def after(self, gain: float) -> float:
        """By what an evaluation multiplies the rate that is so much better than the one before."""
        ...


@dataclass(frozen=True)
class Fixed:
    """The learning rate stays as it is."""

    name: ClassVar[str] = "fixed"
    follows_scores: ClassVar[bool] = False

    def rate(self, at: Moment) -> float:
        return 1.0

    def after(self, gain: float) -> float:
        return 1.0


@dataclass(frozen=True)
class Halving:
    """Halved at every evaluation whose gain on the dev set is too small (Hu et al., 2.4)."""

    name: ClassVar[str] = "halving"
    follows_scores: ClassVar[bool] = True

    theta: float = 0.006  # the gain that is enough, in the metric's own unit: 0.6 % of accuracy
    factor: float = 0.5  # by which the rate is multiplied

    def __post_init__(self) -> None:
        if not 0 < self.factor < 1:
            raise ValueError(f"halving: factor must be between 0 and 1, not {self.factor}")

    def rate(self, at: Moment) -> float:
        return 1.0

    def after(self, gain: float) -> float:
        return 1.0 if gain >= self.theta else self.factor


@dataclass(frozen=True)
class Decay:
    """A little less after every minibatch: 1 / (1 + by * minibatches), or (1 - by)^minibatches."""

    name: ClassVar[str] = "decay"
    follows_scores: ClassVar[bool] = False

    by: float = 1e-3  # a minibatch of a worker
    form: str = "inverse"  # or exponential

    def __post_init__(self) -> None:
        if not 0 <= self.by < 1:
            raise ValueError(f"decay: by must be from 0 to less than 1, not {self.by}")
        if self.form not in ("inverse", "exponential"):
            raise ValueError(f"decay: form must be inverse or exponential, not {self.form}")

    def rate(self, at: Moment) -> float:
        if self.form == "exponential":
            return float((1 - self.by) ** at.minibatches)
        return 1 / (1 + self.by * at.minibatches)

    def after(self, gain: float) -> float:
        return 1.0


@dataclass(frozen=True)
class Kaldi:
    """Falls exponentially, from the optimiser's rate to `final` of it at the planned end."""

    name: ClassVar[str] = "kaldi"
    follows_scores: ClassVar[bool] = False

    final: float = 0.1  # the last learning rate over the first

    def __post_init__(self) -> None:
        if not 0 < self.final < float("inf"):
            raise ValueError(f"kaldi: final must be more than 0, not {self.final}")

    def rate(self, at: Moment) -> float:
        return float(self.final ** min(1.0, at.epochs / at.planned))

    def after(self, gain: float) -> float:
        return 1.0


@dataclass(frozen=True)
class Hold:
    """Stays for most of a run, then falls in a straight line to `final` at the planned end."""

    name: ClassVar[str] = "hold"
    follows_scores: ClassVar[bool] = False

    until: float = 0.7  # the part of the planned epochs in which it stays
    final: float = 0.02  # the last learning rate over the first

    def __post_init__(self) -> None:
        if not 0 <= self.until < 1:
            raise ValueError(f"hold: until must be from 0 to less than 1, not {self.until}")
        if not 0 <= self.final < float("inf"):
            raise ValueError(f"hold: final must be 0 or more, not {self.final}")

    def rate(self, at: Moment) -> float:
        done = min(1.0, at.epochs / at.planned)
        return 1.0 + (self.final - 1.0) * max(0.0, done - self.until) / (1 - self.until)

    def after(self, gain: float) -> float:
        return 1.0


@dataclass(frozen=True)
class Scaling:
    """The linear scaling rule: so many times the samples a step, so many times the rate."""

    by: str = "none"  # workers, or samples: workers and growth of the minibatch
    warm_up: float = 0.0  # epochs in which the rate rises to that from the optimiser's own

    def __post_init__(self) -> None:
        if self.by not in ("none", "workers", "samples"):
            raise ValueError(f"scaling.by must be none, workers or samples, not {self.by}")
        if not 0 <= self.warm_up < float("inf"):
            raise ValueError(f"scaling.warm_up must be 0 or more epochs, not {self.warm_up}")
        if self.warm_up and self.by == "none":
            raise ValueError("scaling.warm_up rises to a scaled rate: set scaling.by first")

    def rate(self, epochs: float, workers: int, growth: float) -> float:
        """`growth` is the present minibatch over the first."""
        if self.by == "none":
            return 1.0
        scale = workers * (growth if self.by == "samples" else 1.0)
        if epochs >= self.warm_up:
            return scale
        return 1.0 + (scale - 1.0) * epochs / self.warm_up


def registry() -> dict[str, type[Schedule]]:
    kinds: tuple[type[Schedule], ...] = (Fixed, Halving, Decay, Kaldi, Hold)
    return {kind.name: kind for kind in kinds}
