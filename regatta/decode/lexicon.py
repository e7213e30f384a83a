"""The words that a decoder may write, as a tree of their spellings."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import cached_property
from itertools import chain
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from regatta.data.alphabet import Alphabet
from regatta.data.problems import Problems
from regatta.decode.texts import numbered, split_texts, texts_of

_VARIANT = re.compile(r"\(\d+\)$")


NODE = np.dtype(
    [
        ("first", np.int64),  # of its children; they end where those of the next node begin
        ("lo", np.int64),  # the words under it are those numbered lo <= word < hi
        ("hi", np.int64),
        ("word", np.int64),  # that ends here, or -1
    ],
    align=True,
)
CHILD = np.dtype([("symbol", np.int64), ("node", np.int64)])  # by symbols within a node


class Tree(NamedTuple):
    """Node 0 is the empty spelling."""

    nodes: NDArray[np.void]  # NODE, and one more that says where the last children end
    children: NDArray[np.void]  # CHILD


@dataclass(frozen=True, eq=False)
class Lexicon:
    """Words in the order of their encoded spellings, so that a prefix is an interval of numbers."""

    alphabet: Alphabet
    words: tuple[str, ...]
    problems: Problems = field(default_factory=Problems)  # what could not be spelled

    @classmethod
    def of_words(cls, words: Iterable[str], alphabet: Alphabet) -> Lexicon:
        return cls._of(((repr(word), word) for word in words), alphabet, "the list of words")

    @classmethod
    def of_texts(cls, texts: Iterable[str], alphabet: Alphabet) -> Lexicon:
        """Every word of some texts; a text that the alphabet cannot write is left out whole."""
        return cls._of(numbered(texts), alphabet, "the texts")

    @classmethod
    def of_file(cls, path: Path | str, alphabet: Alphabet) -> Lexicon:
        """A word a line. What follows it, as a spelling, is not used: the alphabet spells.

        Pronouncing dictionaries number the ways to say a word, WORD(2): it is one word.
        """
        path, problems = Path(path), Problems()
        firsts = ((where, line.split()[0]) for where, line in texts_of(path, problems))
        named = ((f"{where} {word!r}", _VARIANT.sub("", word)) for where, word in firsts)
        return cls._of(named, alphabet, str(path), problems)

    @classmethod
    def _of(
        cls,
        named: Iterable[tuple[str, str]],
        alphabet: Alphabet,
        source: str,
        problems: Problems | None = None,
    ) -> Lexicon:
        problems = Problems() if problems is None else problems
        words = set(chain.from_iterable(split_texts(named, alphabet, problems)))
        if not words:
            raise ValueError(
                f"there is no word in {source} that the alphabet {alphabet.symbols!r} can spell"
                f"{problems.why()}: name other words, or an alphabet that has their symbols"
            )
        return cls(alphabet, tuple(sorted(words, key=alphabet.encoded)), problems)

    def __len__(self) -> int:
        return len(self.words)

    @cached_property
    def numbers(self) -> dict[str, int]:
        return {word: number for number, word in enumerate(self.words)}

    @cached_property
    def tree(self) -> Tree:
        return _tree([self.alphabet.encoded(word) for word in self.words])


def _tree(spellings: list[list[int]]) -> Tree:
    """Level by level, so that the children of a node lie side by side."""
    lengths = np.array([len(spelling) for spelling in spellings])
    table = np.full((len(spellings), lengths.max()), -1, np.int32)
    table[np.arange(lengths.max()) < lengths[:, None]] = np.concatenate(spellings)
    everything = np.array([len(spellings)])
    owner = np.zeros(len(spellings), np.int64)  # the node that a word's prefix has come to
    apart = np.zeros(len(spellings), bool)  # from the word before, in the symbols so far
    apart[0] = True
    lo, hi, word = [np.zeros(1, np.int64)], [everything], [np.full(1, -1)]
    parent, symbol = [], []
    nodes = 1
    for depth in range(1, int(lengths.max()) + 1):
        apart[1:] |= table[1:, depth - 1] != table[:-1, depth - 1]
        starts = np.flatnonzero(apart)
        ends = np.append(starts[1:], everything)
        here = lengths[starts] >= depth
        starts, ends = starts[here], ends[here]
        parent.append(owner[starts])
        symbol.append(table[starts, depth - 1])
        lo.append(starts)
        hi.append(ends)
        word.append(np.where(lengths[starts] == depth, starts, -1))
        inside = lengths >= depth
        owner[inside] = nodes + np.searchsorted(starts, np.flatnonzero(inside), "right") - 1
        nodes += len(starts)
    tree = Tree(np.zeros(nodes + 1, NODE), np.zeros(nodes - 1, CHILD))
    tree.nodes["first"] = np.searchsorted(np.concatenate(parent), np.arange(nodes + 1))
    for name, values in (("lo", lo), ("hi", hi), ("word", word)):
        tree.nodes[name][:-1] = np.concatenate(values)
    tree.children["symbol"] = np.concatenate(symbol)
    tree.children["node"] = np.arange(1, nodes)
    return tree
