"""Prefix beam search: texts, each with all of its paths, without any knowledge of words."""

from __future__ import annotations

import numpy as np

from regatta.data.alphabet import Alphabet
from regatta.decode.lexicon import CHILD, NODE, Tree
from regatta.decode.outputs import NO_PRUNING, Pruning
from regatta.decode.rules import WORDS, Rules
from regatta.decode.search import BeamSearch


def prefix_beam(
    alphabet: Alphabet,
    width: int = 64,
    pruning: Pruning = NO_PRUNING,
    nbest: int = 1,
    jobs: int = 1,
) -> BeamSearch:
    """Spaces count once, and not at all before the first word and after the last."""
    rules = Rules(width, WORDS, False, 0.0, 0.0, alphabet.blank, space_of(alphabet))
    return BeamSearch(
        alphabet, rules, _any_text(alphabet), None, None, 0, pruning, False, False, nbest, jobs
    )


def space_of(alphabet: Alphabet) -> int:
    """The number of the space; one after all others where the alphabet has none."""
    space = alphabet.symbols.find(" ")
    return space if space >= 0 else alphabet.outputs


def _any_text(alphabet: Alphabet) -> Tree:
    """A lexicon of all strings: after its first letter a word may end, or go on with any letter."""
    letters = [n for n, symbol in enumerate(alphabet.symbols) if symbol != " "]
    size = len(letters)
    tree = Tree(np.zeros(3, NODE), np.zeros(2 * size, CHILD))
    tree.nodes[:] = [(0, 0, 1, -1), (size, 0, 1, 0), (2 * size, 0, 0, 0)]
    tree.children["symbol"] = 2 * letters
    tree.children["node"] = 1
    return tree
