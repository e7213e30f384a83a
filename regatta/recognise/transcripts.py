"""What was said in a recording, when, and how sure that is."""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product

from regatta.decode import Hypothesis
from regatta.recognise.trained import Trained


@dataclass(frozen=True)
class Spoken:
    """A word, in seconds of the whole recording."""

    word: str
    start: float
    end: float


@dataclass(frozen=True)
class Guess:
    text: str
    score: float


@dataclass(frozen=True)
class Part:
    """What was said between two silences."""

    start: float  # seconds of the whole recording
    end: float
    words: tuple[Spoken, ...] = ()
    guesses: tuple[Guess, ...] = (Guess("", 0.0),)  # the best first

    @property
    def text(self) -> str:
        return self.guesses[0].text

    @classmethod
    def of(
        cls, trained: Trained, start: float, end: float, hypotheses: Sequence[Hypothesis]
    ) -> Part:
        words = tuple(
            Spoken(
                word.text,
                min(end, start + trained.when(word.start)),
                min(end, start + trained.when(word.end)),
            )
            for word in hypotheses[0].words
        )
        return cls(start, end, words, tuple(Guess(h.text, h.score) for h in hypotheses))


@dataclass(frozen=True)
class Transcript:
    file: str
    seconds: float
    parts: tuple[Part, ...]
    nbest: int = 1
    between: str = " "  # parts; nothing in an alphabet without a space

    @property
    def text(self) -> str:
        return self.guesses[0].text

    @property
    def words(self) -> list[Spoken]:
        return [word for part in self.parts for word in part.words]

    @property
    def guesses(self) -> list[Guess]:
        """Of the whole, the best first: every choice of a guess for each part is one."""
        best = [Guess("", 0.0)]
        for part in self.parts:
            both = (self._joined(a, b) for a, b in product(best, part.guesses))
            best = heapq.nlargest(self.nbest, both, key=lambda guess: guess.score)
        return best

    def _joined(self, first: Guess, second: Guess) -> Guess:
        text = self.between.join(filter(None, (first.text, second.text)))
        return Guess(text, first.score + second.score)
