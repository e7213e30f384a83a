"""A table, and how numbers stand in it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import median

from regatta.statistics import Interval

NEVER = "–"


@dataclass(frozen=True)
class Table:
    title: str
    note: str
    headings: Sequence[str]
    rows: Sequence[Sequence[str]]
    words: int = 1  # columns from the left that hold words; the others hold numbers
    is_ranked: bool = True  # the first row is the first of the race
    is_grouped: bool = False  # a row whose first cell is empty belongs to the one above it


def seconds(value: float | None) -> str:
    if value is None:
        return ""
    return f"{value:.2f} s" if math.isfinite(value) else NEVER


def number(value: float | None) -> str:
    return "" if value is None else f"{value:.4f}"


def ratio(value: float | None) -> str:
    if value is None or math.isnan(value):
        return ""
    return f"{value:.2f}x" if math.isfinite(value) else NEVER


def price(value: float | None) -> str:
    if value is None:
        return ""
    return f"{value:.4g}" if math.isfinite(value) else NEVER


def span(interval: Interval) -> str:
    ends = (f"{v:.2f}" if math.isfinite(v) else "no end" for v in (interval.low, interval.high))
    return " to ".join(ends)


def one_or_none(values: Sequence[float | None], form: str) -> str:
    known = [value for value in values if value is not None]
    return form.format(median(known)) if known else ""


def without_empty_columns(table: Table) -> Table:
    kept = [n for n in range(len(table.headings)) if any(row[n] for row in table.rows)]
    return replace(
        table,
        headings=[table.headings[n] for n in kept],
        rows=[[row[n] for n in kept] for row in table.rows],
    )
