"""The best path: the most probable symbol of every frame."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from torch import Tensor

from regatta.data.alphabet import Alphabet
from regatta.decode import Hypothesis, Word
from regatta.decode.outputs import as_numbers, utterances


@dataclass(frozen=True)
class Greedy:
    """Knows one text only, and no words but by the space between them."""

    alphabet: Alphabet

    def decode(self, outputs: Tensor, frames: Sequence[int] | Tensor) -> list[list[Hypothesis]]:
        found = []
        for utterance in utterances(outputs, frames):
            listener = self.listen()
            listener.take(utterance)
            found.append(listener.finish())
        return found

    def listen(self) -> BestPath:
        return BestPath(self.alphabet)


@dataclass
class BestPath:
    """Frames in which nothing is possible are passed over, as by beam searches."""

    alphabet: Alphabet
    _taken: int = 0  # frames
    _frames: list[np.ndarray] = field(default_factory=list)  # those that count
    _symbols: list[np.ndarray] = field(default_factory=list)  # the best of each
    _scores: list[np.ndarray] = field(default_factory=list)

    def step(self, outputs: Tensor) -> Hypothesis:
        self.take(outputs)
        return self.finish()[0]

    def take(self, outputs: Tensor) -> None:
        numbers = as_numbers(outputs, self.alphabet)
        (counts,) = np.nonzero(numbers.max(1) > -math.inf)
        best = numbers[counts].argmax(1)
        self._frames.append(counts + self._taken)
        self._symbols.append(best)
        self._scores.append(numbers[counts, best])
        self._taken += len(numbers)

    def finish(self) -> list[Hypothesis]:
        if not self._symbols:
            return [Hypothesis("", 0.0, 0.0, 0.0, ())]
        frames, path = np.concatenate(self._frames), np.concatenate(self._symbols)
        words = _words(path, frames, self.alphabet)
        score = float(np.concatenate(self._scores).sum())
        return [Hypothesis(" ".join(word.text for word in words), score, score, 0.0, words)]


def _words(path: np.ndarray, frames: np.ndarray, alphabet: Alphabet) -> tuple[Word, ...]:
    """Of the runs of equal symbols: each is one symbol."""
    turns = np.flatnonzero(np.diff(path)) + 1
    begins = np.concatenate(([0], turns)) if len(path) else turns
    ends = np.concatenate((turns, [len(path)]))
    words: list[Word] = []
    text, start, end = "", 0, 0
    for begin, stop in zip(begins.tolist(), ends.tolist(), strict=False):
        symbol = alphabet.decoded([int(path[begin])])
        if symbol == " " and text:
            words.append(Word(text, start, end))
            text = ""
        elif symbol.strip():
            start, end = start if text else int(frames[begin]), int(frames[stop - 1]) + 1
            text += symbol
    return (*words, Word(text, start, end)) if text else tuple(words)
