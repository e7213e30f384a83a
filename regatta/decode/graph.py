"""A language model as decoders read it: contexts that back off to shorter ones.

Whatever the model, the probability of a word in a context is that of the context's own entry, or
the context's back-off weight times the probability in the next shorter context. Natural logarithms.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from regatta.decode.compiled import compiled, inner

_TRUSTED = 1e-13  # less is hardly left of differences between sums near 1: one word may say more

CONTEXT = np.dtype(
    [
        ("first", np.int64),  # of its entries; they end where those of the next context begin
        ("shorter", np.int64),  # the context that it backs off to
        ("backoff", np.float64),
        ("end", np.float64),  # log P(</s>), 0 in a model that has none
    ],
    align=True,
)
ENTRY = np.dtype(
    [
        ("word", np.int64),  # sorted within a context
        ("after", np.int64),  # the context after that word
        ("logp", np.float64),
        ("gained", np.float64),  # P of the entries so far, less what backing off would have given
    ],
    align=True,
)
ALONE = np.dtype(
    [
        ("after", np.int64),
        ("logp", np.float64),
        ("before", np.float64),  # P of all words before
    ],
    align=True,
)


class Graph(NamedTuple):
    """Context 0 knows no word before and has an entry for every word; the others for a few."""

    begin: int  # the context of the first word
    contexts: NDArray[np.void]  # CONTEXT, and one more that says where the last entries end
    entries: NDArray[np.void]  # ENTRY
    alone: NDArray[np.void]  # ALONE: words in context 0, and one more for the sum of all


def begin(graph: Graph) -> int:
    """The context of the first word of an utterance."""
    return graph.begin


def end(graph: Graph, context: int) -> float:
    """log P(the utterance ends here), or 0 where the model does not say."""
    return float(graph.contexts["end"][context])


@inner
def place(entries: np.ndarray, low: int, high: int, word: int) -> int:
    """Of the first in entries[low:high] that is not of a lesser word."""
    while low < high:
        middle = (low + high) >> 1
        if entries[middle].word < word:
            low = middle + 1
        else:
            high = middle
    return low


@inner
def scored(graph: Graph, context: int, word: int) -> tuple[float, int]:
    """log P(word | context), and the context after it."""
    logp = 0.0
    while context:
        stop = graph.contexts[context + 1].first
        at = place(graph.entries, graph.contexts[context].first, stop, word)
        if at < stop and graph.entries[at].word == word:
            return logp + graph.entries[at].logp, graph.entries[at].after
        logp += graph.contexts[context].backoff
        context = graph.contexts[context].shorter
    return logp + graph.alone[word].logp, graph.alone[word].after


@inner
def massed(graph: Graph, context: int, lo: int, hi: int) -> float:
    """log P(one of the words lo <= word < hi | context), without a look at each of them."""
    if hi <= lo:
        return -math.inf
    if hi - lo == 1:
        return scored(graph, context, lo)[0]
    total, weight, at = 0.0, 1.0, context
    while at:
        first, stop = graph.contexts[at].first, graph.contexts[at + 1].first
        low = place(graph.entries, first, stop, lo)
        high = place(graph.entries, low, stop, hi)
        if high > low:
            before = graph.entries[low - 1].gained if low > first else 0.0
            total += weight * (graph.entries[high - 1].gained - before)
        weight *= math.exp(graph.contexts[at].backoff)
        at = graph.contexts[at].shorter
    total += weight * (graph.alone[hi].before - graph.alone[lo].before)
    if total > _TRUSTED:
        return math.log(total)
    one = scored(graph, context, lo)[0]
    return math.log(total) if total > 0 and math.log(total) > one else one


@compiled
def score(graph: Graph, context: int, word: int) -> tuple[float, int]:
    """`scored`, for Python."""
    return scored(graph, context, word)


@compiled
def mass(graph: Graph, context: int, lo: int, hi: int) -> float:
    """`massed`, for Python."""
    return massed(graph, context, lo, hi)
