"""Outputs of a recogniser as decoders read them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

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
    numbers = outputs.detach().to("cpu", float64).contiguous().numpy()
    if np.isnan(numbers).any():
        numbers = np.where(np.isnan(numbers), -np.inf, numbers)
    return np.ascontiguousarray(numbers)


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
