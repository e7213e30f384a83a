"""A learning rate for every lane, found with the same number of trials each."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from regatta.events import read_what_there_is
from regatta.metrics import Summary, summarise
from regatta.race.entries import Lane, Race, trials_of

_FACTOR = math.sqrt(10)  # from one rate to the next


def rates(lr: float, number: int) -> list[float]:
    """So many, around the recipe's own and with it; the lower side gets one that is over."""
    steps = range(-(number // 2), number - number // 2)
    return [float(f"{lr * _FACTOR**step:.3g}") if step else lr for step in steps]


@dataclass(frozen=True)
class Trial:
    lr: float
    summary: Summary


def trials(folder: Path, lane: Lane) -> list[Trial]:
    """Those of a lane that have been run."""
    found = []
    for home in trials_of(folder, lane).glob("lr-*"):
        try:
            summary = summarise(read_what_there_is(home / "events.jsonl").events)
        except ValueError:  # not even begun
            continue
        if summary.lr is not None:
            found.append(Trial(summary.lr, summary))
    return sorted(found, key=lambda trial: trial.lr)


def rates_of(race: Race, lane: Lane) -> list[float]:
    return rates(race.run(lane, race.seeds[0]).optimiser.lr, race.tune)


def best(tried: Sequence[Trial]) -> float | None:
    """The rate that reached the target first; where none did, the one that came nearest."""
    return min(tried, key=lambda trial: _rank(trial.summary)).lr if tried else None


def _rank(summary: Summary) -> tuple[float, float]:
    time = math.inf if summary.lasting_time is None else summary.lasting_time
    found = summary.best
    if found is None or math.isnan(found):
        return time, math.inf
    return time, -found if summary.higher_is_better else found
