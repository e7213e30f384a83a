"""Beam search over one utterance or many: memory, threads, and what is told."""

from __future__ import annotations

import math
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np
from torch import Tensor

from regatta.data.alphabet import Alphabet
from regatta.decode import Hypothesis, Word
from regatta.decode.advance import BEAMS, ROWS, advance, complete
from regatta.decode.graph import Graph
from regatta.decode.lexicon import Tree
from regatta.decode.outputs import NO_PRUNING, Pruning, as_numbers, utterances
from regatta.decode.prefixes import BEAM, ROW, empty_text, forget, spelled
from regatta.decode.rules import Rules

_ROOM = 64  # times the width: rows of texts to begin with


@dataclass(frozen=True)
class BeamSearch:
    """A decoder: every utterance is searched by itself."""

    alphabet: Alphabet
    rules: Rules
    tree: Tree
    graph: Graph | None  # None: nobody judges words
    seed: int | None  # of the mode `sample` alone
    longest: int  # symbols of a word, where words are completed
    pruning: Pruning = NO_PRUNING
    spelled: bool = True  # words have their separators; else these are dropped like blanks
    ends: bool = False  # the language model judges that the utterance ends
    nbest: int = 1
    jobs: int = 1  # threads

    def __post_init__(self) -> None:
        for name, value in (
            ("width", self.rules.width),
            ("nbest", self.nbest),
            ("jobs", self.jobs),
        ):
            if value < 1:
                raise ValueError(f"{name} must be 1 or more, not {value}")

    def decode(self, outputs: Tensor, frames: Sequence[int] | Tensor) -> list[list[Hypothesis]]:
        every = list(utterances(outputs, frames))
        if self.jobs < 2 or len(every) < 2:
            return [self._decoded(utterance) for utterance in every]
        with ThreadPoolExecutor(self.jobs) as threads:
            return list(threads.map(self._decoded, every))

    def listen(self) -> Search:
        return Search(self)

    def with_width(self, width: int) -> BeamSearch:
        """The same with so many beams; the lexicon and the language model are shared."""
        return replace(self, rules=self.rules._replace(width=width))

    def _decoded(self, utterance: Tensor) -> list[Hypothesis]:
        search = Search(self)
        search.take(utterance)
        return search.finish()

    def read(self, outputs: Tensor) -> np.ndarray:
        """[frame, symbol], with a space that is impossible where the alphabet has none."""
        numbers, blank = as_numbers(outputs, self.alphabet), self.alphabet.blank
        if self.alphabet.separator and not self.spelled:
            separator = blank - 1
            numbers[:, blank] = np.logaddexp(numbers[:, blank], numbers[:, separator])
            numbers[:, separator] = -math.inf
        self.pruning.apply(numbers, blank)
        if self.rules.space < self.alphabet.outputs:
            return numbers
        return np.column_stack((numbers, np.full(len(numbers), -math.inf)))

    @cached_property
    def last(self) -> np.ndarray:
        """A frame whose space is sure: it ends last words, and brings together what is alike."""
        frame = np.full((1, max(self.alphabet.outputs, self.rules.space + 1)), -math.inf)
        frame[0, self.rules.space] = 0.0
        return frame


@dataclass
class Search:
    """A beam search in the middle of an utterance."""

    by: BeamSearch
    _frames: int = 0  # that were taken
    _counts: np.ndarray = field(init=False)  # beams, rows, frames
    _rows: np.ndarray = field(init=False)
    _beams: np.ndarray = field(init=False)
    _candidates: np.ndarray = field(init=False)
    _scores: np.ndarray = field(init=False)

    def __post_init__(self) -> None:
        rules = self.by.rules
        self._counts = np.array([1, 1, 0])
        self._rows = np.empty(_ROOM * rules.width, ROW)
        self._beams = np.empty(rules.width, BEAM)
        self._candidates = np.empty(2 * rules.width, BEAM)
        self._scores = np.empty(2 * rules.width)
        # Spaces before the first word change nothing: the empty text ends in one.
        last = -1 if rules.paper else rules.space
        context = self.by.graph.begin if self.by.graph else 0
        empty_text(self._rows, self._beams, last, context)

    def step(self, outputs: Tensor) -> Hypothesis:
        self.take(outputs)
        return self._told(1)[0]

    def take(self, outputs: Tensor) -> None:
        numbers = self.by.read(outputs)
        self._frames += len(numbers)
        taken = self._advance(numbers)
        while taken < len(numbers):
            self._make_room()
            taken += self._advance(numbers[taken:])

    def finish(self) -> list[Hypothesis]:
        by = self.by
        room = self._counts[BEAMS] * by.longest + by.rules.width
        self._grow(int(self._counts[ROWS] + room))
        if by.rules.paper:  # what was chosen is completed
            self._choose(by.nbest)
            self._complete()
            return self._told(by.nbest)
        if not self._end_words():
            self._complete()  # letters that nobody has heard: only where there is nothing else
            if not self._end_words():
                beams = self._beams[: self._counts[BEAMS]]
                return [self._whole_words(beams[beams["score"].argmax()])]
        if by.ends and by.graph is not None:
            beams = self._beams[: self._counts[BEAMS]]
            contexts = self._rows["context"][beams["row"]]
            beams["language"] += by.rules.alpha * by.graph.contexts["end"][contexts]
            beams["score"] = beams["total"] + beams["language"]
        return self._told(by.nbest)

    def _end_words(self) -> bool:
        """Beams that can end here do, and are judged; the others go, unless all would."""
        self._advance(self.by.last)
        return bool(self._beams[0]["symbol"] == self.by.rules.space)

    def _complete(self) -> None:
        complete(self._counts, self._rows, self._beams, self.by.tree)

    def _advance(self, numbers: np.ndarray) -> int:
        by = self.by
        return advance(
            numbers, self._counts, self._rows, self._beams, self._candidates, self._scores,
            by.tree, by.graph, by.seed, by.rules,
        )  # fmt: skip

    def _make_room(self) -> None:
        """Half of the table at least, so that it is seldom done."""
        used, count = self._counts[ROWS], self._counts[BEAMS]
        self._counts[ROWS] = forget(self._rows, used, self._beams, count)
        if 2 * self._counts[ROWS] > len(self._rows):
            self._grow(2 * len(self._rows))

    def _grow(self, size: int) -> None:
        if size > len(self._rows):
            more = np.empty(size - len(self._rows), ROW)
            self._rows = np.concatenate((self._rows, more))

    def _choose(self, count: int) -> None:
        best = np.argsort(-self._beams["score"][: self._counts[BEAMS]], kind="stable")[:count]
        self._rows["slot"][: self._counts[ROWS]] = -1
        self._beams[: len(best)] = self._beams[best]
        self._counts[BEAMS] = len(best)

    def _whole_words(self, beam: np.void) -> Hypothesis:
        """What a beam has written before its last word."""
        row = int(beam["row"])
        while row > 0 and self._rows[row]["symbol"] != self.by.rules.space:
            row = int(self._rows[row]["parent"])
        told = beam.copy()
        told["row"], told["language"] = row, self._rows[row]["language"]
        told["score"] = told["total"] + told["language"]
        return self._hypothesis(told)

    def _told(self, count: int) -> list[Hypothesis]:
        """The best; of equals the first by their texts."""
        beams = self._beams[: self._counts[BEAMS]]
        scores = beams["score"]
        count = min(count, len(beams))
        least = np.partition(scores, -count)[-count]
        found = [self._hypothesis(beam) for beam in beams[scores >= least]]
        return sorted(found, key=lambda told: (-told.score, told.text))[:count]

    def _hypothesis(self, beam: np.void) -> Hypothesis:
        rules, alphabet = self.by.rules, self.by.alphabet
        letters, times = spelled(self._rows, int(beam["row"]), rules.space)
        text = alphabet.decoded(letters)
        total, language = float(beam["total"]), float(beam["language"])
        return Hypothesis(
            text if rules.paper else text.strip(),
            float(beam["score"]),
            total,
            language,
            _timed(text.split(), times, self._frames),
        )


def _timed(texts: list[str], times: list[tuple[int, int]], frames: int) -> tuple[Word, ...]:
    """The best path to a text changes as frames come: words are kept from overlapping.

    Each gets a frame at least, within the utterance.
    """
    words: list[Word] = []
    latest = 0
    for number, (text, (start, end)) in enumerate(zip(texts, times, strict=True)):
        stop = frames - (len(texts) - number - 1)  # the words after it need the rest
        start = min(max(start, latest), stop - 1)
        if number + 1 < len(times):
            end = min(end, times[number + 1][0])
        latest = min(max(end, start + 1), stop)
        words.append(Word(text, start, latest))
    return tuple(words)
