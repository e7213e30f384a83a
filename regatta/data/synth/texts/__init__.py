"""What synthetic speakers say: digits, commands and free sentences, from lists of our own."""

from __future__ import annotations

import hashlib
import re
import tomllib
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np

STYLES = ("digits", "commands", "sentences")
LANGUAGES = ("en", "fr", "it")
_MOST_DIGITS = 7


@dataclass(frozen=True)
class Script:
    """A language's lists."""

    accents: tuple[str, ...]
    digits: tuple[str, ...]
    commands: tuple[str, ...]
    sentences: tuple[str, ...]
    lists: dict[str, tuple[str, ...]]

    def draw(self, style: str, random: np.random.Generator) -> str:
        if style == "digits":
            count = int(random.integers(1, _MOST_DIGITS + 1))
            return " ".join(random.choice(self.digits, count))
        frame = str(random.choice(self.commands if style == "commands" else self.sentences))
        fill = re.compile(r"\{(\w+)\}").sub
        return fill(lambda match: str(random.choice(self.lists[match[1]])), frame)


@cache
def script(language: str) -> Script:
    if language not in LANGUAGES:
        raise ValueError(f"there is no script for language {language}: use {', '.join(LANGUAGES)}")
    with (Path(__file__).parent / f"{language}.toml").open("rb") as file:
        told = tomllib.load(file)
    lists = {name: tuple(words) for name, words in told.pop("lists").items()}
    return Script(lists=lists, **{name: tuple(words) for name, words in told.items()})


def split_of(text: str) -> float:
    """A number from 0 to 1 that belongs to a text, so that every text is of one split."""
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:6], "big") / 2**48
