"""How long runs took to a target, and how surely one kind of run is faster than another.

A run that missed the target is censored, not dropped: it would have taken longer than it was given.
Its time is infinite in a median or a mean, and it counts among those that had not arrived in the
curve of who had arrived by when.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, median, stdev

import numpy as np

CONFIDENCE = 0.95
MATTERS = 1.01  # who is ahead by less is level: times come in steps of evaluations
_DRAWS = 10_000


@dataclass(frozen=True)
class Time:
    """Of one run to its target."""

    seconds: float  # of a run that missed it: what it was given
    reached: bool = True

    @property
    def value(self) -> float:
        return self.seconds if self.reached else math.inf


@dataclass(frozen=True)
class Interval:
    low: float
    high: float

    def __contains__(self, value: float) -> bool:
        return self.low <= value <= self.high


ANYTHING = Interval(0.0, math.inf)


def median_time(times: Sequence[Time]) -> float:
    """Infinite where half of the runs or more missed the target."""
    return median(time.value for time in times)


def olympic_mean(times: Sequence[Time]) -> float | None:
    """Without the fastest and the slowest; infinite if a second run missed, None of under three."""
    values = sorted(time.value for time in times)
    return fmean(values[1:-1]) if len(values) > 2 else None


def median_interval(times: Sequence[Time], seed: int = 0) -> Interval:
    """Where medians of other runs of the same kind would lie: a bootstrap, 95 % of it."""
    values = np.array([time.value for time in times])
    chosen = np.random.default_rng(seed).integers(len(values), size=(_DRAWS, len(values)))
    medians = np.median(values[chosen], axis=1)
    tail = (1 - CONFIDENCE) / 2
    low, high = np.quantile(medians, [tail, 1 - tail], method="inverted_cdf")
    return Interval(float(low), float(high))


def arrivals(times: Sequence[Time]) -> list[tuple[float, float]]:
    """Kaplan and Meier's curve: by each second, the share of runs that have arrived.

    Runs that were given up count for as long as they ran.
    """
    missing, curve = 1.0, [(0.0, 0.0)]
    for second in sorted({time.seconds for time in times if time.reached}):
        still_on = sum(time.seconds >= second for time in times)
        arrive = sum(time.reached and time.seconds == second for time in times)
        missing *= 1 - arrive / still_on
        curve.append((second, 1 - missing))
    return curve


def mean_interval(values: Sequence[float], confidence: float) -> Interval | None:
    """Student's, of the mean; None where one value alone does not tell how much they scatter."""
    if len(values) < 2:
        return None
    middle = fmean(values)  # and no stdev(), which breaks where a value is not a number
    spread = math.sqrt(fmean((value - middle) ** 2 for value in values) / (len(values) - 1))
    width = student_quantile(confidence, len(values) - 1) * spread
    return Interval(middle - width, middle + width)


# -- two kinds of runs, seed by seed ----------------------------------------------------------


@dataclass(frozen=True)
class Comparison:
    """How many times as long the other takes, over seeds that both have run."""

    ratio: float
    interval: Interval
    pairs: int  # of runs of which one at least reached the target
    faster: int  # of these
    slower: int

    @property
    def is_faster(self) -> bool:
        return self.interval.low > 1 and self.ratio > MATTERS

    @property
    def is_slower(self) -> bool:
        return self.interval.high < 1 and self.ratio < 1 / MATTERS

    @property
    def is_tie(self) -> bool:
        """The interval says so; or the difference, however sure, is not worth a word."""
        return not (self.is_faster or self.is_slower)


def compare(
    mine: Mapping[int, Time], others: Mapping[int, Time], comparisons: int = 1
) -> Comparison:
    """Pair by pair; where `comparisons` are made at once, all intervals hold together."""
    ratios = [_ratio(mine[seed], others[seed]) for seed in sorted(mine.keys() & others.keys())]
    known = [ratio for ratio in ratios if not math.isnan(ratio)]
    confidence = 1 - (1 - CONFIDENCE) / comparisons
    is_complete = all(0 < ratio < math.inf for ratio in known)
    ratio, interval = (_geometric if is_complete else _middle)(known, confidence)
    faster, slower = (sum(map(test, known)) for test in ((1.0).__lt__, (1.0).__gt__))
    return Comparison(ratio, interval, len(known), faster, slower)


def _ratio(mine: Time, other: Time) -> float:
    """Not a number where neither arrived: such a pair says nothing."""
    if not (mine.reached or other.reached):
        return math.nan
    if mine.value == other.value:
        return 1.0
    return other.value / mine.value if mine.value else math.inf


def _geometric(ratios: Sequence[float], confidence: float) -> tuple[float, Interval]:
    """The mean of logarithms, and Student's interval of it."""
    if not ratios:
        return math.nan, ANYTHING
    logs = [math.log(ratio) for ratio in ratios]
    middle = fmean(logs)
    if len(logs) == 1:
        return math.exp(middle), ANYTHING
    width = student_quantile(confidence, len(logs) - 1) * stdev(logs) / math.sqrt(len(logs))
    return math.exp(middle), Interval(math.exp(middle - width), math.exp(middle + width))


def _middle(ratios: Sequence[float], confidence: float) -> tuple[float, Interval]:
    """The median, which bears infinite ratios, and its interval by order alone."""
    return median(ratios), order_interval(ratios, confidence)


def order_interval(values: Sequence[float], confidence: float) -> Interval:
    """Of the median, whatever the distribution; anything where there are too few values."""
    ordered, n = sorted(values), len(values)
    tails = [sum(math.comb(n, k) for k in range(cut)) / 2**n for cut in range(1, n // 2 + 1)]
    cuts = [cut for cut, tail in enumerate(tails) if 2 * tail <= 1 - confidence]
    return Interval(ordered[cuts[-1]], ordered[n - 1 - cuts[-1]]) if cuts else ANYTHING


def student_quantile(confidence: float, freedom: int) -> float:
    """How many standard errors either way hold so much of Student's distribution."""
    low, high = 0.0, 1.0
    while _student_between(high, freedom) < confidence:
        high *= 2
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (
            (middle, high) if _student_between(middle, freedom) < confidence else (low, middle)
        )
    return high


def _student_between(t: float, freedom: int) -> float:
    """The share between -t and t, as a finite sum (Abramowitz & Stegun 26.7.3 and 26.7.4)."""
    angle = math.atan(t / math.sqrt(freedom))
    cosine, sine = math.cos(angle), math.sin(angle)
    is_odd = freedom % 2
    term = cosine if is_odd else 1.0
    total = term if freedom > 1 else 0.0
    for k in range(3 if is_odd else 2, freedom - 1, 2):
        term *= cosine * cosine * (k - 1) / k
        total += term
    return 2 / math.pi * (angle + sine * total) if is_odd else sine * total
