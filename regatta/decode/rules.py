"""What a beam search goes by."""

from __future__ import annotations

import math
from typing import NamedTuple

MODES = ("words", "ngrams", "forecast", "sample")  # in the order of their numbers
WORDS, NGRAMS, FORECAST, SAMPLE = range(4)


class Rules(NamedTuple):
    """Plain numbers, for compiled functions."""

    width: int  # beams that go on to the next frame
    mode: int
    paper: bool  # as published
    alpha: float  # weight of the language model
    beta: float  # for every finished word, where there is a language model
    blank: int
    space: int


def check_weights(alpha: float, beta: float, where: str = "") -> None:
    if not 0 <= alpha < math.inf:
        raise ValueError(
            f"{where}alpha must be a number of 0 or more, not {alpha:g}: it weighs the language "
            "model"
        )
    if not math.isfinite(beta):
        raise ValueError(f"{where}beta must be a number, not {beta:g}: it is added for every word")
