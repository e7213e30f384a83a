"""From counts of n-grams to probabilities: add-k, Kneser-Ney, and word beam search's own form."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain

import numpy as np
from numpy.typing import NDArray

from regatta.decode.ngrams import BEGIN, END, NEVER, Counts, Ngrams, count, ngrams_of

Reals = NDArray[np.float64]

SMOOTHINGS = ("kneser-ney", "add-k")
FLOOR = 1e-8  # the probability of a word that nothing is known of
_FALLBACK = (0.5, 1.0, 1.5)  # discounts where a text is too small to estimate them


@dataclass(frozen=True)
class Estimation:
    """How a model is made of counts."""

    order: int = 3  # 1 to 5
    smoothing: str = "kneser-ney"  # or add-k
    k: float = 0.01  # of add-k
    paper: bool = False  # as word beam search was published: order 2, add-k, one running text

    def __post_init__(self) -> None:
        if not 1 <= self.order <= 5:
            raise ValueError(f"the order of a language model is 1 to 5, not {self.order}")
        if self.smoothing not in SMOOTHINGS:
            raise ValueError(
                f"there is no smoothing {self.smoothing!r}: name one of {', '.join(SMOOTHINGS)}"
            )
        if not 0 < self.k < np.inf:
            raise ValueError(f"k must be more than 0, not {self.k}: else some words can never be")

    def of(self, sentences: Sequence[Sequence[str]], extra: Sequence[str] = ()) -> Ngrams:
        """`extra` are words that the model is to know though no sentence may have them."""
        if not any(sentences):
            raise ValueError("there are no words to make a language model of: name other texts")
        if self.paper:
            return as_published(sentences, extra, self.k)
        marked = [[BEGIN, *words, END] for words in sentences if words]
        counts = count(marked, self.order, extra)
        return add_k(counts, self.k) if self.smoothing == "add-k" else kneser_ney(counts)


def add_k(counts: Counts, k: float) -> Ngrams:
    """P(w | u) = (c(u, w) + k) / (c(u) + k V) for whole contexts u, seen or not.

    Shorter contexts that do not begin a sentence are only met after a context that was never seen:
    what they say is uniform, as the formula has it.
    """
    order = len(counts.word)
    known = ~counts.begins[0]
    size = int(known.sum())
    logp, backoff = [], []
    for n in range(order):
        parents = len(counts.word[n - 1]) if n else 1
        whole = counts.begins[n - 1] if n else np.zeros(1, bool)
        if n == order - 1:
            whole = np.ones(parents, bool)
        times = counts.count[n] * known if n == 0 else counts.count[n]
        total = np.bincount(counts.parent[n], weights=times, minlength=parents)
        p = (times + k) / (total + k * size)[counts.parent[n]]
        p = np.where(whole[counts.parent[n]], p, 1 / size)
        logp.append(np.log(p))
        if n:
            rest = np.log(k * size / (total + k * size))
            backoff.append(np.where(whole, rest, 0.0))
    logp[0][~known] = NEVER
    return ngrams_of(counts, logp, backoff)


def kneser_ney(counts: Counts) -> Ngrams:
    """Interpolated and modified: three discounts an order (Chen and Goodman, 1998)."""
    known = ~counts.begins[0]
    lower: Reals = np.full(1, 1 / int(known.sum()))  # uniform, below the single words
    logp, backoff = [], []
    for n, times in enumerate(_adjusted(counts)):
        parents = len(counts.word[n - 1]) if n else 1
        parent = counts.parent[n]
        total = np.bincount(parent, weights=times, minlength=parents)
        taken = np.array([0.0, *discounts(times)])[np.minimum(times, 3)]
        left = np.bincount(parent, weights=taken, minlength=parents)
        rest = np.divide(left, total, out=np.ones(parents), where=total > 0)
        p = (times - taken) / np.maximum(total, 1)[parent] + rest[parent] * lower[counts.shorter[n]]
        if n:
            backoff.append(np.log(rest))
        logp.append(np.log(p))
        lower = p
        if n == 0:
            logp[0][~known] = NEVER
    return ngrams_of(counts, logp, backoff)


def _adjusted(counts: Counts) -> list[NDArray[np.int64]]:
    """Below the highest order: how many different words stand before an n-gram.

    Nothing stands before <s>, so what begins with it keeps its count.
    """
    made = []
    for n, times in enumerate(counts.count):
        if n + 1 < len(counts.count):
            before = np.bincount(counts.shorter[n + 1], minlength=len(times))
            times = np.where(counts.begins[n], times, before)
        if n == 0:
            times = np.where(counts.begins[0], 0, times)
        made.append(times)
    return made


def discounts(times: NDArray[np.int64]) -> tuple[float, float, float]:
    """For n-grams seen once, twice, and more often, by how many there are of each."""
    once, twice, thrice, four = (int((times == number).sum()) for number in range(1, 5))
    if not (once and twice and thrice):
        return _FALLBACK
    share = once / (once + 2 * twice)
    found = (1 - 2 * share * twice / once, 2 - 3 * share * thrice / twice,
             3 - 4 * share * four / thrice)  # fmt: skip
    usable = all(0 < amount < number for number, amount in enumerate(found, 1))
    return found if usable else _FALLBACK


def as_published(texts: Sequence[Sequence[str]], extra: Sequence[str], k: float) -> Ngrams:
    """As word beam search was published with: one running text, pairs of words with add-k.

    The first word has its relative frequency, unsmoothed; only a word that the text has not gets
    `FLOOR` there, since a probability of 0 could never be made good.
    """
    running = list(chain.from_iterable(texts))
    frequency = Counter(running)
    # Every word once after the mark: only the tree is wanted of that, not the counts.
    counts = count([running, *([BEGIN, word] for word in frequency)], 2, extra)
    known = ~counts.begins[0]
    size = int(known.sum())
    start = counts.begins[1]
    times = np.where(start, 0, counts.count[1])
    total = np.bincount(counts.parent[1], weights=times, minlength=len(counts.words))
    p = (times + k) / (total + k * size)[counts.parent[1]]
    alone = np.array([frequency[word] for word in counts.words]) / len(running)
    p = np.where(start, alone[counts.word[1]], p)
    backoff = np.log(k * size / (total + k * size))
    backoff[~known] = np.log(FLOOR * size)
    single = np.where(known, -np.log(size), NEVER)
    return ngrams_of(counts, [single, np.log(p)], [backoff])
