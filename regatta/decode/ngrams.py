"""n-grams of words and their probabilities, as a tree: each hangs on its first n - 1 words.

Node 0 is the empty one, and nodes stand in the order of (length, parent, word). Natural logarithms.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

BEGIN, END, UNKNOWN = "<s>", "</s>", "<unk>"
NEVER = -99 * np.log(10)  # what ARPA files write for a probability of 0

Numbers = NDArray[np.int64]
Reals = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Ngrams:
    """The nodes 1 to len(words) are the single words, in the order of `words`."""

    words: tuple[str, ...]
    parent: Numbers  # [node]; -1 of node 0
    word: Numbers  # [node]; -1 of node 0
    logp: Reals  # [node]: of the last word after the others
    backoff: Reals  # [node]: what a word that does not follow it has to pay
    levels: tuple[int, ...]  # the nodes of length n are levels[n]:levels[n + 1]

    @property
    def order(self) -> int:
        return len(self.levels) - 2

    def level(self, length: int) -> slice:
        return slice(self.levels[length], self.levels[length + 1])

    def counts(self) -> list[int]:
        """How many n-grams there are of each order."""
        return [b - a for a, b in zip(self.levels[1:], self.levels[2:], strict=False)]

    @cached_property
    def keys(self) -> Numbers:
        """Sorted; one for each node."""
        return self.parent * len(self.words) + self.word

    def child(self, parent: Numbers, word: Numbers) -> Numbers:
        """The nodes that words lead to, 0 where there are none."""
        wanted = parent * len(self.words) + word
        place = np.minimum(np.searchsorted(self.keys, wanted), len(self.keys) - 1)
        return np.where(self.keys[place] == wanted, place, 0)

    @cached_property
    def _shorter(self) -> tuple[Numbers, Reals]:
        shorter = np.zeros(len(self.word), np.int64)
        backed = np.zeros(len(self.word))
        for length in range(2, self.order + 1):
            nodes = np.arange(self.levels[length], self.levels[length + 1])
            at, paid = shorter[self.parent[nodes]], np.zeros(len(nodes))
            waiting = np.arange(len(nodes))
            while len(waiting):
                found = self.child(at[waiting], self.word[nodes[waiting]])
                shorter[nodes[waiting]] = found
                waiting = waiting[found == 0]
                paid[waiting] += self.backoff[at[waiting]]
                at[waiting] = shorter[at[waiting]]
            backed[nodes] = paid + self.logp[shorter[nodes]]
        return shorter, backed

    @property
    def shorter(self) -> Numbers:
        """Of each node: the longest other end of its words that is a node too."""
        return self._shorter[0]

    @property
    def backed(self) -> Reals:
        """log P that a node's word would have after the shorter context, for two words and more."""
        return self._shorter[1]


@dataclass(frozen=True, eq=False)
class Counts:
    """How often n-grams stand in texts, in a tree as that of `Ngrams`, by length."""

    words: tuple[str, ...]
    parent: list[Numbers]  # of [length - 1]: numbers within the level before
    word: list[Numbers]
    count: list[Numbers]
    shorter: list[Numbers]  # without the first word: numbers within the level before
    begins: list[NDArray[np.bool_]]  # with <s>


def count(sentences: Sequence[Sequence[str]], order: int, extra: Sequence[str] = ()) -> Counts:
    """Within sentences. `extra` are words that count though no sentence may have them."""
    words = tuple(dict.fromkeys([*(w for sentence in sentences for w in sentence), *extra]))
    number = {word: place for place, word in enumerate(words)}
    tokens = np.array([number[w] for sentence in sentences for w in sentence], np.int64)
    lengths = np.array([len(sentence) for sentence in sentences])
    place = np.arange(len(tokens)) - np.repeat(np.cumsum(lengths) - lengths, lengths)
    first = np.array([word == BEGIN for word in words])
    made = Counts(
        words,
        [np.zeros(len(words), np.int64)],
        [np.arange(len(words))],
        [np.bincount(tokens, minlength=len(words))],
        [np.zeros(len(words), np.int64)],
        [first],
    )
    here = tokens  # at each token: the number of the n-gram that ends there
    for length in range(2, order + 1):
        ends = np.flatnonzero(place >= length - 1)
        keys = here[ends - 1] * len(words) + tokens[ends]
        unique, one, inverse, counts = np.unique(
            keys, return_index=True, return_inverse=True, return_counts=True
        )
        made.parent.append(unique // len(words))
        made.word.append(unique % len(words))
        made.count.append(counts)
        made.shorter.append(here[ends[one]])
        made.begins.append(made.begins[-1][made.parent[-1]])
        here = np.full(len(tokens), -1)
        here[ends] = inverse
    return made


def ngrams_of(counts: Counts, logp: Sequence[Reals], backoff: Sequence[Reals]) -> Ngrams:
    """With probabilities and back-offs by length, in one tree; there may be fewer back-offs."""
    sizes = [1, *map(len, counts.word)]
    levels = (0, *map(int, np.cumsum(sizes)))
    parent = [np.full(1, -1), *(p + levels[n] for n, p in enumerate(counts.parent))]
    rest = np.zeros(levels[-1] - 1 - sum(map(len, backoff)))
    return Ngrams(
        counts.words,
        np.concatenate(parent),
        np.concatenate([np.full(1, -1), *counts.word]),
        np.concatenate([np.zeros(1), *logp]),
        np.concatenate([np.zeros(1), *backoff, rest]),
        levels,
    )
