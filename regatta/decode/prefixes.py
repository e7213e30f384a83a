"""The texts that a beam search has begun: a table, a row a text, which names the text before it.

A text has one row for as long as any beam comes of it, so that equal texts are equal numbers. All
that follows from a text alone is kept in its row: where it stands in the lexicon, and what the
language model says of it.
"""

from __future__ import annotations

import math

import numpy as np

from regatta.decode.compiled import compiled, inner

ROW = np.dtype(
    [
        ("parent", np.int64),
        ("symbol", np.int64),
        ("child", np.int64),  # the latest of those that name this row as their parent, or -1
        ("sibling", np.int64),  # the next of them
        ("slot", np.int64),  # which beam it is, or -1
        ("node", np.int64),  # of the lexicon: 0 between words
        ("context", np.int64),  # of the language model, after the finished words
        ("words", np.int64),  # finished ones
        ("start", np.int64),  # first frame of the word, after a space of the word before it
        ("end", np.int64),  # the frame after its last
        ("finished", np.float64),  # log P of the finished words
        ("language", np.float64),  # the language part of the score
        ("entered", np.float64),  # of the best path: to know whether another is better
    ],
    align=True,
)

# A beam, or what may become one in the next frame.
BEAM = np.dtype(
    [
        ("row", np.int64),  # -1: it has none yet
        ("parent", np.int64),  # the row that it extends, or -1 where it stays
        ("symbol", np.int64),
        ("node", np.int64),
        ("blank", np.float64),  # log P of the paths that end in a blank
        ("spoken", np.float64),  # and of those that end in the last symbol
        ("total", np.float64),  # of both
        ("language", np.float64),
        ("score", np.float64),  # total and language
    ],
    align=True,
)


def empty_text(rows: np.ndarray, beams: np.ndarray, symbol: int, context: int) -> None:
    """The first row and the first beam. The empty text counts as ending in that symbol."""
    rows[0] = (-1, symbol, -1, -1, 0, 0, context, 0, 0, 0, 0.0, 0.0, 0.0)
    beams[0] = (0, -1, symbol, 0, 0.0, -math.inf, 0.0, 0.0, 0.0)


@inner
def row_of(rows: np.ndarray, parent: int, symbol: int) -> int:
    """Of a text and one symbol more, or -1."""
    row = int(rows[parent].child)
    while row >= 0 and rows[row].symbol != symbol:
        row = int(rows[row].sibling)
    return row


@inner
def add_row(
    rows: np.ndarray, used: int, parent: int, symbol: int, node: int, language: float
) -> None:
    row, before = rows[used], rows[parent]
    row.parent, row.symbol, row.child, row.slot = parent, symbol, -1, -1
    row.sibling, before.child = before.child, used
    row.node, row.context, row.words = node, before.context, before.words
    row.start, row.end = before.start, before.end
    row.finished, row.language, row.entered = before.finished, language, -math.inf


@inner
def set_times(rows: np.ndarray, row: int, frame: int, entered: float, space: int) -> None:
    """The best path enters a text in this frame."""
    to = rows[row]
    before = rows[to.parent]
    to.entered, to.start, to.end = entered, before.start, before.end
    if to.symbol != space:
        to.end = frame + 1
        if to.parent == 0 or before.symbol == space:
            to.start = frame


@compiled
def forget(rows: np.ndarray, used: int, beams: np.ndarray, count: int) -> int:
    """Drop the rows that no beam comes of; tells how many are left."""
    place = np.full(used, -1, np.int32)
    place[0] = 0
    for beam in range(count):
        row = beams[beam].row
        while place[row] < 0:
            place[row] = 1
            row = rows[row].parent
    kept = 0
    for row in range(used):  # a parent stands before its children
        if place[row] < 0:
            continue
        place[row] = kept
        rows[kept] = rows[row]
        moved = rows[kept]
        moved.child = -1
        if row:
            moved.parent = place[moved.parent]
            moved.sibling = rows[moved.parent].child
            rows[moved.parent].child = kept
        kept += 1
    for beam in range(count):
        beams[beam].row = place[beams[beam].row]
    return kept


def spelled(rows: np.ndarray, row: int, space: int) -> tuple[list[int], list[tuple[int, int]]]:
    """The symbols of a text, and the first frame and the one after the last of each word."""
    parents, symbols = rows["parent"], rows["symbol"]
    letters: list[int] = []
    times: list[tuple[int, int]] = []
    after, inside = row, False
    while row > 0:
        letters.append(symbols.item(row))
        if letters[-1] == space:
            inside = False
        elif not inside:  # a space knows the times of the word before it
            times.append((int(rows["start"][after]), int(rows["end"][after])))
            inside = True
        after, row = row, parents.item(row)
    return letters[::-1], times[::-1]
