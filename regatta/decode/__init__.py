"""From what a recogniser puts out to texts.

Outputs are natural logarithms of probabilities, [utterance, frame, symbol], the blank last, in the
order of an `Alphabet`'s numbers. A decoder reads them whole, or piece by piece as a stream.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:  # language models are made without PyTorch, which takes seconds to import
    from torch import Tensor


@dataclass(frozen=True)
class Word:
    text: str
    start: int  # its first frame
    end: int  # the frame after its last


@dataclass(frozen=True)
class Hypothesis:
    """What may have been said, the best first where there are several."""

    text: str
    score: float  # what hypotheses are ordered by: the acoustic and the language part together
    acoustic: float  # natural logarithm
    language: float  # natural logarithm, weighted as in the score; 0 without a language model
    words: tuple[Word, ...]


class Listener(Protocol):
    """A decoder in the middle of an utterance."""

    def step(self, outputs: Tensor) -> Hypothesis:
        """Take further frames, [frame, symbol]; tells the best so far."""
        ...

    def finish(self) -> list[Hypothesis]:
        """The utterance is over: the best hypotheses, as many as were asked for."""
        ...


class Decoder(Protocol):
    def decode(self, outputs: Tensor, frames: Sequence[int] | Tensor) -> list[list[Hypothesis]]:
        """A list of hypotheses an utterance; `frames` are how many of each count."""
        ...

    def listen(self) -> Listener: ...
