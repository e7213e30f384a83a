"""A manifest of Regatta's own: .jsonl, an utterance a line with `id` and `audio`."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from regatta.data import manifest
from regatta.data.corpora import Reading, folder_of
from regatta.data.manifest import SUFFIX, Utterance, json_lines
from regatta.data.problems import Problems

root = folder_of
NAME = "manifest" + SUFFIX


def first_row(path: Path) -> Any:
    """The first object of a file of JSON lines, or of a folder's manifest."""
    path = files(path)
    if not path.is_file() or not path.name.endswith((SUFFIX, SUFFIX + ".gz", ".json")):
        return None
    try:
        return next((row for _, row in json_lines(path, Problems())), None)
    except ValueError:
        return None


def files(path: Path) -> Path:
    return path / NAME if path.is_dir() else path


def matches(path: Path) -> bool:
    row = first_row(path)
    return isinstance(row, dict) and "audio" in row


def read(path: Path, problems: Problems, reading: Reading) -> Iterator[Utterance]:
    return manifest.read(files(path), problems)
