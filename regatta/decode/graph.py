"""A language model as decoders read it: contexts that back off to shorter ones.

Whatever the model, the probability of a word in a context is that of the context's own entry, or
the context's back-off weight times the probability in the next shorter context. Natural logarithms.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from regatta.decode.compiled import compiled

Numbers = NDArray[np.int32]
Reals = NDArray[np.float64]


class Graph(NamedTuple):
    """Context 0 knows no word before and has an entry for every word; the others for a few."""

    begin: int  # the context of the first word
    first: Numbers  # [context + 1]: its entries are first[context]:first[context + 1]
    backoff: Reals  # [context]
    shorter: Numbers  # [context]: where it backs off to
    end: Reals  # [context]: log P(</s>), 0 in a model that has none
    word: Numbers  # [entry], sorted within a context
    logp: Reals  # [entry]
    after: Numbers  # [entry]: the context after that word
    gained: Reals  # [entry]: P of the entries so far, less what backing off would have given them
    alone: Reals  # [word]: log P in context 0
    after_alone: Numbers  # [word]
    summed: Reals  # [word + 1]: P in context 0 of all words before


@compiled
def begin(graph: Graph) -> int:
    """The context of the first word of an utterance."""
    return graph.begin


@compiled
def end(graph: Graph, context: int) -> float:
    """log P(the utterance ends here), or 0 where the model does not say."""
    return float(graph.end[context])


@compiled
def _place(graph: Graph, context: int, word: int) -> int:
    """Of a context's first entry for that word or a later one."""
    low, high = graph.first[context], graph.first[context + 1]
    while low < high:
        middle = (low + high) >> 1
        if graph.word[middle] < word:
            low = middle + 1
        else:
            high = middle
    return int(low)


@compiled
def score(graph: Graph, context: int, word: int) -> tuple[float, int]:
    """log P(word | context), and the context after it."""
    logp = 0.0
    while context:
        place = _place(graph, context, word)
        if place < graph.first[context + 1] and graph.word[place] == word:
            return logp + graph.logp[place], int(graph.after[place])
        logp += graph.backoff[context]
        context = graph.shorter[context]
    return logp + graph.alone[word], int(graph.after_alone[word])


@compiled
def mass(graph: Graph, context: int, lo: int, hi: int) -> float:
    """log P(one of the words lo <= word < hi | context), without a look at each of them."""
    if hi - lo == 1:
        return score(graph, context, lo)[0]
    if hi <= lo:
        return -math.inf
    total, weight, at = 0.0, 1.0, context
    while at:
        first = graph.first[at]
        low, high = _place(graph, at, lo), _place(graph, at, hi)
        if high > low:
            before = graph.gained[low - 1] if low > first else 0.0
            total += weight * (graph.gained[high - 1] - before)
        weight *= math.exp(graph.backoff[at])
        at = graph.shorter[at]
    total += weight * (graph.summed[hi] - graph.summed[lo])
    if total > 1e-13:
        return math.log(total)
    # So little is left of the differences of sums near 1 that one word may say more.
    return max(math.log(max(total, 1e-300)), score(graph, context, lo)[0])


@compiled
def running_sums(values: Reals, first: Numbers) -> Reals:
    """Within each context by itself: sums over all contexts would lose digits."""
    sums = np.empty_like(values)
    for context in range(len(first) - 1):
        total = 0.0
        for entry in range(first[context], first[context + 1]):
            total += values[entry]
            sums[entry] = total
    return sums


@compiled
def log_probability(graph: Graph, words: Numbers) -> float:
    """Of an utterance and its end. Words numbered -1 are passed over and break the context."""
    total, context = 0.0, begin(graph)
    for word in words:
        if word < 0:
            context = 0
        else:
            logp, context = score(graph, context, word)
            total += logp
    return total + end(graph, context)
