"""A language model as decoders read it: contexts that back off to shorter ones.

Whatever the model, the probability of a word in a context is that of the context's own entry, or
the context's back-off weight times the probability in the next shorter context. Natural logarithms.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from regatta.decode.compiled import compiled, place

Numbers = NDArray[np.int32]
Reals = NDArray[np.float64]

_TRUSTED = 1e-13  # less is hardly left of differences between sums near 1: one word may say more


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
def score(graph: Graph, context: int, word: int) -> tuple[float, int]:
    """log P(word | context), and the context after it."""
    logp = 0.0
    while context:
        stop = int(graph.first[context + 1])
        at = place(graph.word, int(graph.first[context]), stop, word)
        if at < stop and graph.word[at] == word:
            return logp + graph.logp[at], int(graph.after[at])
        logp += graph.backoff[context]
        context = int(graph.shorter[context])
    return logp + graph.alone[word], int(graph.after_alone[word])


@compiled
def mass(graph: Graph, context: int, lo: int, hi: int) -> float:
    """log P(one of the words lo <= word < hi | context), without a look at each of them."""
    if hi <= lo:
        return -math.inf
    if hi - lo == 1:
        return score(graph, context, lo)[0]
    total, weight, at = 0.0, 1.0, context
    while at:
        first, stop = int(graph.first[at]), int(graph.first[at + 1])
        low = place(graph.word, first, stop, lo)
        high = place(graph.word, low, stop, hi)
        if high > low:
            before = graph.gained[low - 1] if low > first else 0.0
            total += weight * (graph.gained[high - 1] - before)
        weight *= math.exp(graph.backoff[at])
        at = int(graph.shorter[at])
    total += weight * (graph.summed[hi] - graph.summed[lo])
    if total > _TRUSTED:
        return math.log(total)
    one = score(graph, context, lo)[0]
    return max(math.log(total), one) if total > 0 else one
