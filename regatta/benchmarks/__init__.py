"""Regatta measured against a peer, both in the same run.

A benchmark times blocks of ours (A) and of the peer's (B) in the order ABBA ABBA ..., on pinned
cores, and reports the median of the pairwise ratios with its 90 % interval. A bar holds when the
lower end of that interval does.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.table import Table

from regatta.config import nearest


@dataclass(frozen=True)
class Case:
    """One comparison: ours in multiples of the peer's."""

    name: str
    ratios: list[float]
    bar: float
    ours: str  # what was measured, in its own unit
    peer: str
    ratio: float = field(init=False)
    low: float = field(init=False)
    high: float = field(init=False)

    def __post_init__(self) -> None:
        low, high = median_interval(self.ratios)
        for name, value in (("ratio", median(self.ratios)), ("low", low), ("high", high)):
            object.__setattr__(self, name, value)

    @property
    def holds(self) -> bool:
        return self.low >= self.bar


@dataclass(frozen=True)
class Result:
    name: str
    versus: str  # what stands against what
    cases: list[Case]

    @property
    def worst(self) -> Case:
        return min(self.cases, key=lambda case: case.low / case.bar)

    @property
    def holds(self) -> bool:
        return all(case.holds for case in self.cases)


def median_interval(values: Sequence[float], confidence: float = 0.9) -> tuple[float, float]:
    """A distribution-free interval of the median, from order statistics (binomial tails)."""
    ordered, n = sorted(values), len(values)
    weights = [1.0]
    for k in range(n):
        weights.append(weights[-1] * (n - k) / (k + 1))
    tail, k = 0.0, 0
    while k < n // 2 and tail + weights[k] / 2.0**n <= (1 - confidence) / 2:
        tail += weights[k] / 2.0**n
        k += 1
    k = max(k - 1, 0)
    return ordered[k], ordered[n - 1 - k]


def abba(pairs: int) -> Iterator[str]:
    """A B B A A B B A ...: drift falls on both sides alike."""
    for pair in range(pairs):
        yield from ("AB" if pair % 2 == 0 else "BA")


def pin(core: int) -> None:
    """Stay on one core, where the system allows it."""
    if hasattr(os, "sched_setaffinity"):
        cores = sorted(os.sched_getaffinity(0))
        os.sched_setaffinity(0, {cores[core % len(cores)]})


def registry() -> dict[str, Callable[[int], Result]]:
    from regatta.benchmarks.all_reduce import all_reduce
    from regatta.benchmarks.pipeline import pipeline
    from regatta.benchmarks.virtual import virtual

    return {"virtual": virtual, "all-reduce": all_reduce, "pipeline": pipeline}


def run(name: str, pairs: int, show: Callable[[Any], None] | None) -> list[Result]:
    known = registry()
    if name != "all" and name not in known:
        raise ValueError(nearest(name, ["all", *known], "benchmark"))
    if pairs < 2:
        raise ValueError("--pairs must be 2 or more")
    results: list[Result] = []
    for each in known if name == "all" else [name]:
        result = known[each](pairs)
        results.append(result)
        if show is not None:
            show(table(result))
            show(f"{each} ratio={result.worst.ratio:.3f} bar={result.worst.bar:g}")
    return results


def table(result: Result) -> Table:
    title = f"{result.name}: {result.versus}\nmedian ratio and its 90 % interval"
    rows = Table(title=title, box=SIMPLE_HEAD, show_edge=False, padding=(0, 1, 0, 0))
    rows.add_column("case")
    for heading in ("ratio", "interval", "bar", ""):
        rows.add_column(heading, justify="right", no_wrap=True)
    rows.add_column("ours", justify="right")
    rows.add_column("peer", justify="right")
    for case in result.cases:
        rows.add_row(
            case.name,
            f"{case.ratio:.3f}",
            f"{case.low:.3f}-{case.high:.3f}",
            f"{case.bar:g}",
            "holds" if case.holds else "MISSED",
            case.ours,
            case.peer,
        )
    return rows
