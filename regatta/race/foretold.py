"""What a simulation foretold of processes: lanes that ran in both worlds, side by side."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations

from regatta.race.entries import PROCESSES, VIRTUAL
from regatta.race.outcome import Outcome, Standing
from regatta.statistics import compare

_SAME = ("spec", "workers", "minibatch", "settings")


@dataclass(frozen=True)
class Foretold:
    """A way to train on processes, and simulated."""

    real: Standing
    simulated: Standing

    @property
    def error(self) -> float:
        """Of the median time; not a number where the real lane's is endless."""
        if not math.isfinite(self.real.median):
            return math.nan
        return self.simulated.median / self.real.median - 1


def foretold(outcome: Outcome) -> list[Foretold]:
    """The first first, as it was on processes."""
    return [
        Foretold(real, simulated)
        for real in outcome.of_world(PROCESSES)
        for simulated in outcome.of_world(VIRTUAL)
        if all(getattr(real.lane, name) == getattr(simulated.lane, name) for name in _SAME)
    ]


@dataclass(frozen=True)
class Order:
    """Two lanes that the processes tell apart."""

    first: Foretold
    second: Foretold

    @property
    def is_foretold(self) -> bool:
        return self.first.simulated.median < self.second.simulated.median


def orders(lanes: Sequence[Foretold]) -> list[Order]:
    """Of all pairs; those that tie on processes have none. All comparisons hold together."""
    pairs = list(combinations(lanes, 2))
    found = []
    for one, other in pairs:
        comparison = compare(one.real.times, other.real.times, len(pairs))
        if comparison.is_faster:
            found.append(Order(one, other))
        if comparison.is_slower:
            found.append(Order(other, one))
    return found
