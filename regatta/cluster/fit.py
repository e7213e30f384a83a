"""Latency and bandwidth from measured times: a line through (bytes, seconds), never below zero."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from regatta.comm import Seconds


@dataclass(frozen=True)
class Line:
    """seconds = fixed + nbytes / bandwidth. None: the measurements do not tell."""

    fixed: Seconds | None
    bandwidth: float | None
    error: float  # of the line, in the median of the measurements, as a share of each
    remarks: tuple[str, ...] = ()


_SPAN = 16.0  # sizes must be this far apart, the largest over the least, to tell both
_SEEN = 0.05  # a part of the time that is less than this share everywhere is not seen


def fit_line(points: Sequence[tuple[float, Seconds]]) -> Line:
    """By relative errors: a microsecond counts as much at 1 KB as a millisecond at 1 GB."""
    if not points:
        raise ValueError("nothing was measured")
    for nbytes, seconds in points:
        if nbytes <= 0 or seconds <= 0:
            raise ValueError(f"{nbytes:g} bytes in {seconds:g} s: both must be more than 0")
    sizes = [nbytes for nbytes, _ in points]
    if max(sizes) < _SPAN * min(sizes):
        return _one_size(points)
    fixed, slope = _least_squares(points)
    if fixed < 0:
        fixed, slope = 0.0, _slope_alone(points)
    if slope <= 0:
        fixed, slope = _fixed_alone(points), 0.0
    remarks = []
    known_fixed: float | None = fixed
    known_bandwidth: float | None = 1 / slope if slope else None
    if max(fixed / seconds for _, seconds in points) < _SEEN:
        known_fixed = None
        remarks.append("the latency could not be told: no message was small enough")
    if max(slope * nbytes / seconds for nbytes, seconds in points) < _SEEN:
        known_bandwidth = None
        remarks.append("the bandwidth could not be told: no message was large enough")
    error = median(abs(fixed + slope * n - s) / s for n, s in points)
    return Line(known_fixed, known_bandwidth, error, tuple(remarks))


def _one_size(points: Sequence[tuple[float, Seconds]]) -> Line:
    bandwidth = median(nbytes / seconds for nbytes, seconds in points)
    error = median(abs(nbytes / bandwidth - seconds) / seconds for nbytes, seconds in points)
    remark = f"the latency could not be told: sizes are less than a factor of {_SPAN:g} apart"
    return Line(None, bandwidth, error, (remark,))


def _least_squares(points: Sequence[tuple[float, Seconds]]) -> tuple[float, float]:
    """Of (fixed + slope n) / s against 1."""
    aa = sum(1 / s**2 for _, s in points)
    ab = sum(n / s**2 for n, s in points)
    bb = sum((n / s) ** 2 for n, s in points)
    a1, b1 = sum(1 / s for _, s in points), sum(n / s for n, s in points)
    determinant = aa * bb - ab * ab
    if determinant <= 1e-12 * aa * bb:
        return 0.0, _slope_alone(points)
    return (a1 * bb - b1 * ab) / determinant, (aa * b1 - ab * a1) / determinant


def _slope_alone(points: Sequence[tuple[float, Seconds]]) -> float:
    return sum(n / s for n, s in points) / sum((n / s) ** 2 for n, s in points)


def _fixed_alone(points: Sequence[tuple[float, Seconds]]) -> float:
    return sum(1 / s for _, s in points) / sum(1 / s**2 for _, s in points)
