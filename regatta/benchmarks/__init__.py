"""Regatta measured against a peer or a limit, both in the same run.

A benchmark times blocks of ours (A) and of the peer's (B) in the order ABBA ABBA ..., on pinned
cores, and reports the median of the pairwise ratios with its 90 % interval. A bar holds when the
near end of that interval does.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from importlib import import_module
from statistics import median
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.table import Table

from regatta.config import nearest
from regatta.statistics import ANYTHING, order_interval


@dataclass(frozen=True)
class Case:
    """One comparison: ours in multiples of the peer's, unless the result names another measure."""

    name: str
    ratios: list[float]
    bar: float | None  # None: reported, but not judged
    ours: str  # what was measured, in its own unit
    peer: str
    at_most: bool = False  # less is better: the bar is the most that is allowed
    ratio: float = field(init=False)
    low: float = field(init=False)
    high: float = field(init=False)

    def __post_init__(self) -> None:
        low, high = median_interval(self.ratios)
        for name, value in (("ratio", median(self.ratios)), ("low", low), ("high", high)):
            object.__setattr__(self, name, value)

    @property
    def holds(self) -> bool:
        return self.margin >= 1

    @property
    def margin(self) -> float:
        """How far the bar is cleared; 1 is just so."""
        if self.bar is None or (self.at_most and self.high <= 0):
            return float("inf")
        return self.bar / self.high if self.at_most else self.low / self.bar


@dataclass(frozen=True)
class Result:
    name: str
    versus: str  # what stands against what
    cases: list[Case]
    measure: str = "ratio"
    details: list[dict[str, str | float]] = field(default_factory=list)  # rows of a second table

    @property
    def worst(self) -> Case:
        return min(self.cases, key=lambda case: (case.margin, case.ratio))

    @property
    def holds(self) -> bool:
        return all(case.holds for case in self.cases)


def median_interval(values: Sequence[float], confidence: float = 0.9) -> tuple[float, float]:
    """Of the median, whatever the distribution; the extremes, where there are too few values."""
    found = order_interval(values, confidence)
    return (min(values), max(values)) if found == ANYTHING else (found.low, found.high)


def abba(pairs: int) -> Iterator[str]:
    """A B B A A B B A ...: drift falls on both sides alike."""
    for pair in range(pairs):
        yield from ("AB" if pair % 2 == 0 else "BA")


@contextmanager
def _cores_given_back() -> Iterator[None]:
    """One benchmark pins this process; the ranks of the next are to have all cores again."""
    cores = os.sched_getaffinity(0) if hasattr(os, "sched_setaffinity") else set()
    try:
        yield
    finally:
        if cores:
            os.sched_setaffinity(0, cores)


NAMES = (
    "all-reduce", "limit", "server", "one-worker", "transport", "memory", "start-up", "account",
    "virtual", "pipeline", "overhead", "features", "loader", "ng-sgd", "speech", "decode",
    "images", "prediction", "faults",
)  # fmt: skip


def load(name: str) -> Callable[[int], Result]:
    """A benchmark is a function in a module of its name; others are not imported."""
    module = name.replace("-", "_")
    found: Callable[[int], Result] = getattr(import_module(f"regatta.benchmarks.{module}"), module)
    return found


def run(
    name: str,
    pairs: int,
    show: Callable[[Any], None] | None,
    keep: Callable[[list[Result]], None] = lambda results: None,
) -> list[Result]:
    """One benchmark or all; `keep` is given the results so far whenever there is another."""
    if name != "all" and name not in NAMES:
        raise ValueError(nearest(name, ["all", *NAMES], "benchmark"))
    if pairs < 2:
        raise ValueError("--pairs must be 2 or more")
    results: list[Result] = []
    for each in NAMES if name == "all" else [name]:
        with _cores_given_back():
            result = load(each)(pairs)
        results.append(result)
        keep(results)
        if show is not None:
            for part in report(result):
                show(part)
    return results


def tracked(results: list[Result], pairs: int) -> dict[str, Any]:
    """Results for a file: what was measured, with what, on what, when."""
    from regatta.folders import environment

    return {
        "regatta_bench": 1,
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "environment": environment(),
        "pairs": pairs,
        "results": [asdict(result) | {"holds": result.holds} for result in results],
    }


# -- what is said ----------------------------------------------------------------------------


def report(result: Result) -> Iterator[Any]:
    if result.cases:
        yield table(result)
    if result.details:
        yield detail_table(result)
    if result.cases:
        worst = result.worst
        bar = "none" if worst.bar is None else f"{worst.bar:g}"
        yield f"{result.name} ratio={worst.ratio:.3f} bar={bar}"


def table(result: Result) -> Table:
    title = f"{result.name}: {result.versus}\nmedian {result.measure} and its 90 % interval"
    rows = Table(title=title, box=SIMPLE_HEAD, show_edge=False, padding=(0, 1, 0, 0))
    rows.add_column("case", min_width=18)
    for heading in (result.measure.split()[0], "interval", "bar", ""):
        rows.add_column(heading, justify="right", no_wrap=True)
    rows.add_column("ours", justify="right", no_wrap=True)
    rows.add_column("peer", justify="right", no_wrap=True)
    for case in result.cases:
        rows.add_row(
            case.name,
            f"{case.ratio:.3f}",
            f"{case.low:.3f}-{case.high:.3f}",
            _bar(case),
            "" if case.bar is None else "holds" if case.holds else "MISSED",
            case.ours,
            case.peer,
        )
    return rows


def _bar(case: Case) -> str:
    return "" if case.bar is None else ("<= " if case.at_most else "") + f"{case.bar:g}"


def detail_table(result: Result) -> Table:
    title = "" if result.cases else f"{result.name}: {result.versus}"
    rows = Table(title=title, box=SIMPLE_HEAD, show_edge=False, padding=(0, 1, 0, 0))
    for heading, value in result.details[0].items():
        rows.add_column(heading, justify="left" if isinstance(value, str) else "right")
    for row in result.details:
        rows.add_row(*map(_number, row.values()))
    return rows


def _number(value: str | float) -> str:
    return value if isinstance(value, str) else f"{value:,.{1 if abs(value) >= 100 else 2}f}"
