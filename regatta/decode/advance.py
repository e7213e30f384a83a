"""A beam search over the frames of an utterance.

In each frame every text may stay as it is, or grow by a symbol. A text that grows into another
beam's text adds to that beam; every other way to grow leads to a text of its own, so that nothing
else has to be compared. The best of all become the next beams.
"""

from __future__ import annotations

import math

import numpy as np

from regatta.decode.compiled import compiled, inner
from regatta.decode.graph import Graph, massed, scored
from regatta.decode.lexicon import Tree
from regatta.decode.prefixes import add_row, row_of, set_times
from regatta.decode.rules import FORECAST, SAMPLE, Rules

BEAMS, ROWS, FRAME = range(3)  # of `counts`
_DRAWN = 20  # words of the mode `sample`: Scheidl et al.


@inner
def log_sum(a: float, b: float) -> float:
    """log(exp a + exp b)"""
    if a < b:
        a, b = b, a
    if b - a < -40 or a == -math.inf:  # below the last digit
        return a
    return a + math.log1p(math.exp(b - a))


@compiled
def advance(
    outputs: np.ndarray,
    counts: np.ndarray,
    rows: np.ndarray,
    beams: np.ndarray,
    candidates: np.ndarray,
    scores: np.ndarray,
    tree: Tree,
    graph: Graph | None,
    seed: int | None,
    rules: Rules,
) -> int:
    """Takes frames while the table has room for what they may bring; tells how many it took.

    Without a language model nothing of one is compiled, and without a seed nothing that draws.
    """
    for number in range(len(outputs)):
        if counts[ROWS] + rules.width > len(rows):
            return number
        frame = outputs[number]
        kept = _stay(frame, counts, rows, beams, candidates, rules)
        kept = _extend(
            frame, counts[BEAMS], kept, rows, beams, candidates, scores, tree, graph, seed, rules
        )
        if kept > rules.width:
            _best(candidates, kept, rules.width, scores)
            kept = rules.width
        if kept:  # a frame in which nothing is possible says nothing
            _settle(kept, counts, rows, beams, candidates, tree, graph, rules)
        counts[FRAME] += 1
    return len(outputs)


@inner
def _stay(
    frame: np.ndarray,
    counts: np.ndarray,
    rows: np.ndarray,
    beams: np.ndarray,
    candidates: np.ndarray,
    rules: Rules,
) -> int:
    """Every beam by a blank or its last symbol again, or by a shorter beam that grows into it."""
    kept, silent = 0, frame[rules.blank]
    for number in range(counts[BEAMS]):
        beam = beams[number]
        row = rows[beam.row]
        again, spoken = -math.inf, -math.inf
        if row.symbol >= 0:
            again = frame[row.symbol]
            merges = row.symbol == rules.space and not rules.paper  # spaces are one
            spoken = (beam.total if merges else beam.spoken) + again
        best = again if again > silent else silent
        if best > -math.inf:  # else nothing is said here, or words are ended
            row.entered += best
        if row.parent >= 0 and rows[row.parent].slot >= 0:
            before = beams[rows[row.parent].slot]
            enters = (before.blank if before.symbol == row.symbol else before.total) + again
            spoken = log_sum(spoken, enters)
            if enters > row.entered:
                set_times(rows, int(beam.row), counts[FRAME], enters, rules.space)
        if again == best > -math.inf and row.end == counts[FRAME] and row.symbol != rules.space:
            row.end += 1
        blank = beam.total + silent
        total = log_sum(blank, spoken)
        if total > -math.inf:
            to = candidates[kept]
            to.row, to.parent, to.symbol, to.node = beam.row, -1, beam.symbol, beam.node
            to.blank, to.spoken, to.total = blank, spoken, total
            to.language, to.score = beam.language, total + beam.language
            kept += 1
    return kept


@inner
def _extend(
    frame: np.ndarray,
    count: int,
    kept: int,
    rows: np.ndarray,
    beams: np.ndarray,
    candidates: np.ndarray,
    scores: np.ndarray,
    tree: Tree,
    graph: Graph | None,
    seed: int | None,
    rules: Rules,
) -> int:
    """Every beam by every symbol that may follow. Only who beats the `floor` can be of the best."""
    loudest, floor, low = -math.inf, -math.inf, math.inf
    for symbol in range(len(frame)):
        if symbol != rules.blank:
            loudest = frame[symbol] if frame[symbol] > loudest else loudest
    for number in range(kept):
        low = candidates[number].score if candidates[number].score < low else low
    if kept == rules.width:
        floor = low
    # A language model only takes away, but for the bonus of a word, unless it takes means.
    gain = rules.beta if rules.beta > 0 else 0.0
    if rules.paper or rules.mode == SAMPLE:
        gain = math.inf
    for number in range(count):
        beam = beams[number]
        if beam.score + loudest + gain <= floor:
            continue
        first, last = tree.nodes[beam.node].first, tree.nodes[beam.node + 1].first
        ends = tree.nodes[beam.node].word >= 0 or (rules.paper and beam.node == 0)
        for place in range(first, last + ends):
            symbol = tree.children[place].symbol if place < last else rules.space
            node = tree.children[place].node if place < last else 0
            total = (beam.blank if beam.symbol == symbol else beam.total) + frame[symbol]
            if total + beam.language + gain <= floor:
                continue
            row = row_of(rows, int(beam.row), int(symbol))
            if row >= 0 and rows[row].slot >= 0:  # it has grown into that beam
                continue
            language = rows[row].language if row >= 0 else beam.language
            if graph is not None:  # noqa: SIM102  a branch by itself is compiled only if it is taken
                if row < 0:
                    language = _judged(rows, int(beam.row), int(node), tree, graph, seed, rules)
            if total + language <= floor:
                continue
            if kept == len(candidates):
                floor = _best(candidates, kept, rules.width, scores)
                kept = rules.width
            to = candidates[kept]
            to.row, to.parent, to.symbol, to.node = row, beam.row, symbol, node
            to.blank, to.spoken, to.total = -math.inf, total, total
            to.language, to.score = language, total + language
            kept += 1
    return kept


@inner
def _judged(
    rows: np.ndarray, row: int, node: int, tree: Tree, graph: Graph, seed: int | None, rules: Rules
) -> float:
    """The language part of the score of a text and a letter that leads to a node, or a space: 0."""
    text = rows[row]
    context, words = int(text.context), text.words
    low, high = int(tree.nodes[node].lo), int(tree.nodes[node].hi)
    if node == 0:
        low = int(tree.nodes[text.node].word)
        high = low + 1
        words += low >= 0
    if low < 0 or (node and rules.mode < FORECAST):
        return float(text.language)
    logp = text.finished
    if seed is None:
        logp += massed(graph, context, low, high)
    else:
        logp += _drawn(graph, context, low, high, (context * 2654435761 + node) * 40503 + seed)
    if rules.paper:  # the geometric mean of the factors
        return float(logp / (text.words + 1))
    return float(rules.alpha * logp + rules.beta * words)


@inner
def _drawn(graph: Graph, context: int, low: int, high: int, state: int) -> float:
    """`massed`, judged by a few of the words.

    What is drawn follows from context and node alone: equal texts must score alike.
    """
    if high - low < _DRAWN:
        return massed(graph, context, low, high)
    total = 0.0
    for _ in range(_DRAWN):
        state = state * 6364136223846793005 + 1442695040888963407
        drawn = low + (state >> 33 & 0x3FFFFFFF) % (high - low)
        total += math.exp(scored(graph, context, drawn)[0])
    total *= (high - low) / _DRAWN
    return math.log(total) if total < 1 else 0.0


@inner
def _best(candidates: np.ndarray, count: int, width: int, scores: np.ndarray) -> float:
    """Moves the best to the front, in their order; of equals the first. Tells the least score."""
    for number in range(count):
        scores[number] = candidates[number].score
    low, high, rank = 0, count - 1, width - 1
    while low < high:  # until the score of that rank stands in its place
        pivot, left, right = scores[(low + high) >> 1], low, high
        while left <= right:
            while scores[left] > pivot:
                left += 1
            while scores[right] < pivot:
                right -= 1
            if left <= right:
                scores[left], scores[right] = scores[right], scores[left]
                left += 1
                right -= 1
        low, high = (left if rank > right else low), (right if rank < left else high)
    least, equals, kept = scores[rank], width, 0
    for number in range(count):
        equals -= candidates[number].score > least
    for number in range(count):
        if candidates[number].score < least or (candidates[number].score == least and equals == 0):
            continue
        equals -= candidates[number].score == least
        if kept < number:
            candidates[kept] = candidates[number]
        kept += 1
    return float(least)


@inner
def _settle(
    kept: int,
    counts: np.ndarray,
    rows: np.ndarray,
    beams: np.ndarray,
    candidates: np.ndarray,
    tree: Tree,
    graph: Graph | None,
    rules: Rules,
) -> None:
    """The best are the beams now; new texts get rows."""
    for number in range(counts[BEAMS]):
        rows[beams[number].row].slot = -1
    for number in range(kept):
        beams[number] = candidates[number]
        beam = beams[number]
        if beam.row < 0:
            beam.row, parent = counts[ROWS], int(beam.parent)
            counts[ROWS] += 1
            add_row(rows, int(beam.row), parent, int(beam.symbol), int(beam.node), beam.language)
            word = int(tree.nodes[rows[parent].node].word)
            if beam.symbol == rules.space and word >= 0:
                row = rows[beam.row]
                row.words += 1
                if graph is not None:
                    logp, row.context = scored(graph, row.context, word)
                    row.finished += logp
        if beam.parent >= 0:
            set_times(rows, int(beam.row), counts[FRAME], beam.total, rules.space)
        rows[beam.row].slot = number
    counts[BEAMS] = kept


@compiled
def complete(counts: np.ndarray, rows: np.ndarray, beams: np.ndarray, tree: Tree) -> None:
    """Write the rest of last words that are begun by the letters of one word alone.

    The table must have room for these letters. Texts that become equal become one beam.
    """
    kept = 0
    for number in range(counts[BEAMS]):
        rows[beams[number].row].slot = -1
    for number in range(counts[BEAMS]):
        beams[kept] = beams[number]
        beam = beams[kept]
        row, node = int(beam.row), int(beam.node)
        while node and tree.nodes[node].word < 0 and tree.nodes[node].hi - tree.nodes[node].lo == 1:
            place = tree.nodes[node].first
            symbol, node = int(tree.children[place].symbol), int(tree.children[place].node)
            longer = row_of(rows, row, symbol)
            if longer < 0:
                longer = int(counts[ROWS])
                counts[ROWS] += 1
                add_row(rows, longer, row, symbol, node, beam.language)
            row = longer
        beam.row, beam.symbol, beam.node = row, rows[row].symbol, node
        if rows[row].slot < 0:
            rows[row].slot = kept
            kept += 1
        else:
            other = beams[rows[row].slot]
            other.blank = log_sum(other.blank, beam.blank)
            other.spoken = log_sum(other.spoken, beam.spoken)
            other.total = log_sum(other.total, beam.total)
            other.score = other.total + other.language
    counts[BEAMS] = kept
