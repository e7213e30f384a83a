"""Long recordings cut where nobody speaks, so that a piece is about as long as an utterance."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from regatta.data.audio import Samples

Levels = NDArray[np.float64]

LEVELS_A_SECOND = 100
_NOTHING = -80.0  # dB of full scale: nobody is heard below
_CONTRAST = 6.0  # dB between the loud and the quiet: with less there is no telling them apart
_SHARE = 0.3  # of that contrast: the louder is speech
_SMOOTHED = 10  # levels: a place is as quiet as its surroundings


@dataclass(frozen=True)
class Cutting:
    """All in seconds."""

    most: float = 15.0  # of a piece
    least: float = 1.0
    pause: float = 0.2  # shorter ones are within words


class Piece(NamedTuple):
    start: int  # its first sample
    samples: Samples


def pieces(blocks: Iterable[Samples], rate: int, by: Cutting) -> Iterator[Piece]:
    """Every sample belongs to one piece; where the cuts are does not depend on the blocks."""
    most, least = round(by.most * rate), round(by.least * rate)
    held, start = np.zeros(0, np.float32), 0
    for block in blocks:
        held = np.concatenate((held, block))
        while len(held) >= most + least:
            cut = place(held[: most + least], rate, by)
            yield Piece(start, held[:cut])
            held, start = held[cut:], start + cut
    while len(held) > most:
        cut = place(held, rate, by)
        yield Piece(start, held[:cut])
        held, start = held[cut:], start + cut
    if len(held):
        yield Piece(start, held)


def place(samples: Samples, rate: int, by: Cutting) -> int:
    """The middle of the longest pause; the quietest place where there is none."""
    loudness = levels(samples, rate)
    first = round(by.least * LEVELS_A_SECOND)
    last = min(round(by.most * LEVELS_A_SECOND), len(loudness) - first)
    begins, ends = _runs(silent(loudness)[first:last])
    lengths = ends - begins
    if len(lengths) and lengths.max() >= by.pause * LEVELS_A_SECOND:
        longest = np.flatnonzero(lengths == lengths.max())[-1]
        at = first + float(begins[longest] + ends[longest]) / 2
    else:
        first = max(first, last // 2)
        around = np.convolve(loudness, np.ones(_SMOOTHED) / _SMOOTHED, "same")[first:last]
        at = last - 1 - float(np.argmin(around[::-1]))
    return round(at * rate / LEVELS_A_SECOND)


def levels(samples: Samples, rate: int) -> Levels:
    """How loud every hundredth of a second is, in dB of full scale."""
    count = len(samples) * LEVELS_A_SECOND // rate
    edges = np.arange(count + 1) * rate // LEVELS_A_SECOND
    if not count:
        return np.zeros(0)
    exact = samples[: edges[-1]].astype(np.float64)
    power = np.add.reduceat(np.square(exact), edges[:-1]) / np.diff(edges)
    decibels: Levels = 10 * np.log10(power + 1e-12)
    return decibels


def silent(loudness: Levels) -> NDArray[np.bool_]:
    """Which levels are no speech, judged by how loud and how quiet it is around them."""
    if not len(loudness):
        return np.zeros(0, bool)
    low, high = np.percentile(loudness, (10, 95))
    limit = low + _SHARE * (high - low) if high - low >= _CONTRAST else _NOTHING
    return loudness <= max(limit, _NOTHING)


def _runs(marked: NDArray[np.bool_]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Where stretches of marks begin, and where they end."""
    turns = np.diff(np.concatenate(([0], marked.astype(np.int8), [0])))
    return np.flatnonzero(turns == 1), np.flatnonzero(turns == -1)
