"""A folder of recordings, each with a .txt of the same name, or with names that tell the text.

`--name "{text}_{speaker}_{index}"` reads the text and the speaker from file names; underscores that
are left in a text are spaces. Otherwise the speaker is the folder that the file lies in.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from regatta.data.corpora import Reading, audio_below, folder_of
from regatta.data.manifest import Utterance
from regatta.data.problems import Problems

root = folder_of
_FIELDS = ("text", "speaker", "language", "split", "index")


def matches(path: Path) -> bool:
    return path.is_dir() and next(audio_below(path), None) is not None


def read(path: Path, problems: Problems, reading: Reading) -> Iterator[Utterance]:
    pattern = _pattern(reading.name) if reading.name else None
    heard: set[Path] = set()
    for file in audio_below(path):
        inner = file.relative_to(path)
        heard.add(file.with_suffix(""))
        told: dict[str, Any] = {
            "speaker": "" if inner.parent == Path() else inner.parent.as_posix()
        }
        if pattern is not None:
            match = pattern.fullmatch(inner.stem)
            if match is None:
                problems.note("no transcript", inner.as_posix(), f"not named {reading.name}")
                continue
            told |= {k: v for k, v in match.groupdict().items() if k != "index"}
        if "text" in told:
            told["text"] = told["text"].replace("_", " ")
        else:
            text = _text_beside(file, inner, problems)
            if text is None:
                continue
            told["text"] = text
        yield Utterance(inner.with_suffix("").as_posix(), inner.as_posix(), **told)
    if pattern is None:
        for text_file in sorted(path.rglob("*.txt")):
            alone = text_file.with_suffix("") not in heard
            if alone and text_file.name.lower() not in ("readme.txt", "license.txt"):
                name = text_file.relative_to(path).as_posix()
                problems.note("missing file", name, "a text without audio")


def _pattern(name: str) -> re.Pattern[str]:
    parts = re.split(r"\{(\w+)\}", name)
    for field in parts[1::2]:
        if field not in _FIELDS:
            raise ValueError(f"--name knows {', '.join(_FIELDS)}, not {field}")
    if len(set(parts[1::2])) < len(parts[1::2]) or len(parts) == 1:
        raise ValueError("--name must name each field once, as in {text}_{speaker}_{index}")
    return re.compile("".join(
        f"(?P<{part}>.+{'?' if part != 'text' else ''})" if number % 2 else re.escape(part)
        for number, part in enumerate(parts)
    ))  # fmt: skip


def _text_beside(file: Path, inner: Path, problems: Problems) -> str | None:
    beside = file.with_suffix(".txt")
    if not beside.is_file():
        problems.note("no transcript", inner.as_posix(), f"no {beside.name} beside it")
        return None
    try:
        return " ".join(beside.read_text(encoding="utf-8-sig").split())
    except UnicodeDecodeError as error:
        problems.note("not UTF-8", inner.with_suffix(".txt").as_posix(), error.reason)
    except OSError as error:
        problems.note("unreadable file", inner.with_suffix(".txt").as_posix(), error.strerror or "")
    return None
