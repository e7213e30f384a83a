"""Outputs of a recogniser as decoders read them."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from torch import Tensor, float64

from regatta.data.alphabet import Alphabet


def as_numbers(outputs: Tensor, alphabet: Alphabet) -> np.ndarray:
    """[frame, symbol] in double precision; what is no number is impossible.

    A network that has diverged puts out no numbers: its texts are to be empty, not an error.
    """
    if outputs.ndim != 2 or outputs.shape[1] != alphabet.outputs:
        raise ValueError(
            f"outputs of an utterance are [frame, {alphabet.outputs}]: the alphabet's symbols and "
            f"the blank, not {list(outputs.shape)}"
        )
    numbers: np.ndarray = outputs.detach().to("cpu", float64).contiguous().numpy()
    return np.where(np.isnan(numbers), -math.inf, numbers)


def utterances(outputs: Tensor, frames: Sequence[int] | Tensor) -> Iterator[Tensor]:
    """The frames of each utterance that count."""
    if outputs.ndim != 3 or len(frames) != len(outputs):
        raise ValueError(
            f"outputs are [utterance, frame, symbol] with a number of frames an utterance, not "
            f"{list(outputs.shape)} with {len(frames)}"
        )
    for utterance, count in zip(outputs, frames, strict=True):
        if not 0 <= int(count) <= len(utterance):
            raise ValueError(f"an utterance of {int(count)} frames in outputs of {len(utterance)}")
        yield utterance[: int(count)]


@dataclass(frozen=True)
class Pruning:
    """What a beam search need not look at: it is taken as impossible."""

    least: float = 0.0  # symbols that are less probable than this
    symbols: int = 0  # symbols but the so many most probable ones of a frame; 0: none
    sure: float = 1.0  # all but the blank where the blank is more probable than this

    def __post_init__(self) -> None:
        for name, value in (("least", self.least), ("sure", self.sure)):
            if not 0 <= value <= 1:
                raise ValueError(f"{name} must be a probability, 0 to 1, not {value:g}")
        if self.symbols < 0:
            raise ValueError(f"symbols must be 1 or more, or 0 for all, not {self.symbols}")

    def apply(self, numbers: np.ndarray, blank: int) -> None:
        """In place. The blank itself always remains."""
        symbols = np.delete(numbers, blank, 1) if self.symbols else numbers
        keep = np.ones_like(numbers, bool)
        if self.least > 0:
            keep &= numbers >= math.log(self.least)
        if 0 < self.symbols < symbols.shape[1]:
            keep &= numbers >= np.partition(symbols, -self.symbols, 1)[:, -self.symbols, None]
        if self.sure < 1:
            keep &= numbers[:, blank, None] <= math.log(self.sure)
        keep[:, blank] = True
        numbers[~keep] = -math.inf


NO_PRUNING = Pruning()
