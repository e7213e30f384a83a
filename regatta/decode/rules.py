"""What a beam search goes by."""

from __future__ import annotations

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
    seed: int  # of the mode `sample`
