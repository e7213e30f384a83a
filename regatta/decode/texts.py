"""Texts for lexicons and language models, read from files and split into words."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from regatta.data import manifest
from regatta.data.alphabet import Alphabet
from regatta.data.problems import BadUtterance, Problems


def texts_of(path: Path, problems: Problems) -> list[tuple[str, str]]:
    """Where each text stands, and the text: a line of a file, or of an utterance of a manifest."""
    if path.suffix == manifest.SUFFIX:
        return [(utterance.id, utterance.text) for utterance in manifest.read(path, problems)]
    return [(f"{path.name}:{at}", line) for at, line in manifest.lines(path, problems)]


def split_texts(
    named: Iterable[tuple[str, str]], alphabet: Alphabet, problems: Problems
) -> list[list[str]]:
    """Into words that the alphabet can write; a text with others is left out and noted."""
    made = []
    for where, text in named:
        try:
            made.append(alphabet.normalised(text).split())
        except BadUtterance as bad:
            problems.note(bad.kind, where, bad.detail)
    return made


def numbered(texts: Iterable[str]) -> Iterable[tuple[str, str]]:
    return ((f"text {number}", text) for number, text in enumerate(texts, 1))
