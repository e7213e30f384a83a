"""The symbols that a recogniser writes, and texts brought to them."""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

from regatta.data.problems import BadUtterance

ENGLISH = "abcdefghijklmnopqrstuvwxyz' "
_APOSTROPHES = dict.fromkeys(map(ord, "’‘`´ʼ"), "'")
_SPOKEN = frozenset("&%@#+=$€£§°")  # nobody knows as what
_SPACES = frozenset("-–—_/\\…\t\n\r\u00a0")


@dataclass(frozen=True)
class Alphabet:
    """Texts are lower-cased; punctuation that is no symbol here is dropped.

    The numbers of the symbols come first, then the separator's if there is one, then the blank's.
    """

    symbols: str = ENGLISH  # in the order of their numbers
    fold: bool = True  # é to e, where é is no symbol
    separator: str = ""  # a recogniser writes it between two letters that are alike; none: a blank

    def __post_init__(self) -> None:
        if len(set(self.symbols)) < len(self.symbols) or not self.symbols:
            raise ValueError(f"an alphabet names every symbol once, not {self.symbols!r}")
        if len(self.separator) > 1 or self.separator in tuple(self.symbols):
            raise ValueError(
                f"a separator is one character that is no symbol, not {self.separator!r}"
            )

    @property
    def outputs(self) -> int:
        """Of a recogniser: all symbols, the separator, and the blank."""
        return len(self.symbols) + len(self.separator) + 1

    @property
    def blank(self) -> int:
        return self.outputs - 1

    @cached_property
    def _numbers(self) -> dict[str, int]:
        return {symbol: number for number, symbol in enumerate(self.symbols)}

    def normalised(self, text: str) -> str:
        """A text in these symbols alone. Raises BadUtterance where that cannot be."""
        plain = text.lower()
        if not self._numbers.keys() >= set(plain):  # most are written so
            composed = unicodedata.normalize("NFC", plain).translate(_APOSTROPHES)
            plain = "".join(map(self._symbol, composed))
        written = " ".join(word for word in plain.split() if word.strip("'"))
        unknown = sorted(set(written) - set(self.symbols) - {" "})
        if unknown:
            raise BadUtterance("unknown symbols", " ".join(unknown))
        if not written:
            raise BadUtterance("empty transcript", repr(text) if text else "")
        return written if " " in self._numbers else written.replace(" ", "")

    def encoded(self, text: str) -> list[int]:
        """The numbers that a recogniser has to write for a normalised text."""
        numbers = [self._numbers[symbol] for symbol in text]
        if not self.separator:
            return numbers
        apart = numbers[:1]
        for before, number in pairwise(numbers):
            apart += [len(self.symbols), number] if number == before else [number]
        return apart

    def decoded(self, numbers: Iterable[int]) -> str:
        """The text of such numbers, without separators."""
        known = len(self.symbols)
        return "".join(self.symbols[number] for number in numbers if number < known)

    def _symbol(self, character: str) -> str:
        if character in self._numbers:
            return character
        if character in _SPACES:
            return " "
        if unicodedata.category(character)[0] in "PSC" and character not in _SPOKEN:
            return ""
        if self.fold:
            bare = unicodedata.normalize("NFKD", _SPELLED.get(character, character))
            bare = "".join(c for c in bare if not unicodedata.combining(c))
            if all(c in self._numbers for c in bare):  # a mark without a letter is nothing
                return bare
        return character


_SPELLED = {"ß": "ss", "æ": "ae", "œ": "oe", "ø": "o", "ł": "l", "đ": "d", "ð": "d", "þ": "th"}


def alphabet_of(texts: Iterable[str]) -> Alphabet:
    """All letters that texts are written in, and the space and the apostrophe."""
    letters: set[str] = set()
    for text in texts:
        letters |= set(unicodedata.normalize("NFC", text).lower())
    kept = sorted(c for c in letters if unicodedata.category(c)[0] in "LMN")
    return Alphabet("".join(kept) + "' ", fold=False)


def frames_needed(text: str) -> int:
    """For CTC: a frame a symbol, and a blank or a separator between two that are alike."""
    return len(text) + sum(a == b for a, b in pairwise(text))
