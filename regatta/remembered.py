"""The numbers that a checkpoint has of a rank: what there must be, and of which types."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from regatta import plain
from regatta.checkpoint import BadCheckpoint


@dataclass(frozen=True)
class _Part:
    steps: int
    version: int
    optimiser_steps: float


@dataclass(frozen=True)
class _Scores:
    results: dict[str, float]
    best: float | None
    best_results: dict[str, float] = field(default_factory=dict)
    since_best: int = 0
    values: list[float] = field(default_factory=list)


@dataclass(frozen=True)
class _Pace:
    found: float
    score: float | None


@dataclass(frozen=True)
class _Traffic:
    messages: int
    nbytes: int
    computing: float
    waiting: float
    dropped: int
    staleness: list[tuple[int, int]]


@dataclass(frozen=True)
class _Rank(_Part):
    turns: int
    counters: dict[str, int]
    parts: dict[str, Any]
    segment: int
    epochs: float
    time: float
    paused: float
    scores: dict[str, Any]
    pace: dict[str, Any]
    samples: int
    audio: float | None
    scored_version: int
    evaluations: int
    traffic: dict[str, Any]


@contextmanager
def checked(numbers: dict[str, Any], path: Path, rank: int) -> Iterator[None]:
    """While a rank takes them up: what does not fit is a bad checkpoint."""
    try:
        _check(numbers)
        yield
    except (ValueError, KeyError, TypeError, RuntimeError) as error:
        raise BadCheckpoint(
            f"{path} is not what rank {rank} of this run would have saved: {error}"
        ) from None


def _check(numbers: dict[str, Any]) -> None:
    """Raises ValueError, naming what is missing or of another type."""
    rank = plain.made(_Rank, numbers)
    plain.made(_Scores, rank.scores)
    plain.made(_Pace, rank.pace)
    plain.made(_Traffic, rank.traffic)
    for name, part in rank.parts.items():
        if not isinstance(part, dict):
            raise ValueError(plain.misfit(f"part {plain.shown(name)}", dict, part))
        plain.made(_Part, part)
    if min(rank.segment, rank.turns, rank.steps, rank.version, rank.samples) < 0:
        raise ValueError("segments, turns, steps, versions and samples are counted from 0")
