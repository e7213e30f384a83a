"""How long minibatches take, as measured: straight lines between (samples, seconds)."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Sequence
from itertools import pairwise
from typing import TypeAlias

from regatta.comm import Seconds

Curve: TypeAlias = tuple[tuple[float, Seconds], ...]


def checked_curve(points: Sequence[Sequence[float]], where: str = "cluster") -> Curve:
    """By samples; what cannot be a measurement is refused."""
    if any(len(point) != 2 for point in points):
        raise ValueError(f"{where}.curve is made of pairs: [samples, seconds]")
    curve = tuple(sorted((float(samples), float(seconds)) for samples, seconds in points))
    for samples, seconds in curve:
        if not (0 < samples < math.inf and 0 < seconds < math.inf):
            raise ValueError(
                f"{where}.curve: {samples:g} samples in {seconds:g} s; both must be more than 0"
            )
    for (samples, _), (more, _) in pairwise(curve):
        if samples == more:
            raise ValueError(f"{where}.curve tells twice how long {samples:g} samples take")
    return curve


def on_curve(curve: Curve, samples: float) -> Seconds:
    """Beyond the ends the lines go on, but never below zero; one point alone is a speed."""
    if len(curve) == 1:
        return curve[0][1] * samples / curve[0][0]
    place = bisect_left(curve, (samples, 0.0))
    left = min(max(place - 1, 0), len(curve) - 2)
    (few, soon), (many, late) = curve[left : left + 2]
    return max(soon + (late - soon) * (samples - few) / (many - few), 0.0)
