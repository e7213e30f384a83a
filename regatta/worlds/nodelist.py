"""Slurm's lists of nodes: `gpu[01-03,7],login` stands for five names."""

from __future__ import annotations

import re
from collections.abc import Iterator

_PART = re.compile(r"([^,\[\]]*)(?:\[([^\]]*)\])?")
_RANGE = re.compile(r"(\d+)(?:-(\d+))?")
_MOST = 65_536  # names; Slurm itself has no more nodes


def expanded(text: str) -> list[str]:
    """Every node, in order."""
    return [name for part in _parts(text) for name in _names(part, text)]


def _parts(text: str) -> Iterator[str]:
    """At commas, except inside brackets."""
    depth, start = 0, 0
    for place, sign in enumerate(text):
        depth += (sign == "[") - (sign == "]")
        if depth not in (0, 1):
            raise _unreadable(text)
        if sign == "," and not depth:
            yield text[start:place]
            start = place + 1
    if depth:
        raise _unreadable(text)
    yield text[start:]


def _names(part: str, text: str) -> list[str]:
    """Several brackets in one part are multiplied: `rack[0-1]node[1-2]`."""
    names = [""]
    for match in _PART.finditer(part):
        stem, inside = match.groups()
        endings = [""] if inside is None else list(_numbers(inside, text))
        if len(names) * len(endings) > _MOST:
            raise _unreadable(text)
        names = [name + stem + ending for name in names for ending in endings]
    if "" in names:
        raise _unreadable(text)
    return names


def _numbers(inside: str, text: str) -> Iterator[str]:
    """As many digits as written: 08-10 is 08, 09, 10."""
    for piece in inside.split(","):
        match = _RANGE.fullmatch(piece)
        if match is None:
            raise _unreadable(text)
        first, last = match[1], match[2] or match[1]
        if not 0 <= int(last) - int(first) < _MOST:
            raise _unreadable(text)
        for number in range(int(first), int(last) + 1):
            yield str(number).zfill(len(first))


def _unreadable(text: str) -> ValueError:
    return ValueError(f"{text!r} is no list of nodes as Slurm writes them: node[1-4,7],other")
