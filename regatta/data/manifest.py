"""Utterances and the form in which they are listed: JSON lines, paths relative to the file."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from regatta.aside import write_aside
from regatta.data.problems import BadUtterance, Problems

SUFFIX = ".jsonl"
_LONGEST = 1e7  # seconds of a recording: a hundred days


class Label(NamedTuple):
    """A word or a phone, in seconds from the start of its utterance."""

    start: float
    end: float
    name: str

    def faster(self, speed: float) -> Label:
        return Label(self.start / speed, self.end / speed, self.name)


@dataclass(frozen=True, slots=True)
class Utterance:
    id: str
    audio: str  # a path relative to the corpus, or a command that ends with |
    text: str = ""
    speaker: str = ""
    language: str = ""
    split: str = ""  # train, dev, test, or what the corpus calls it
    start: float = 0.0  # seconds into the audio
    duration: float | None = None  # None: to the end, not measured yet
    channel: int | None = None  # None: the mean of all
    words: tuple[Label, ...] = ()
    phones: tuple[Label, ...] = ()
    about: Mapping[str, Any] = field(default_factory=dict)  # how it was made; nobody's business

    @property
    def is_command(self) -> bool:
        return self.audio.rstrip().endswith("|")

    def to_json(self) -> dict[str, Any]:
        row: dict[str, Any] = {"id": self.id, "audio": self.audio, "text": self.text}
        for name in ("speaker", "language", "split", "start", "duration", "channel", "about"):
            value = getattr(self, name)
            if value not in ("", None, {}) and not (name == "start" and not value):
                row[name] = value
        for name in ("words", "phones"):
            if getattr(self, name):
                row[name] = [list(label) for label in getattr(self, name)]
        return row

    @classmethod
    def from_json(cls, row: Mapping[str, Any]) -> Utterance:
        """Raises BadUtterance for a row that is none."""
        if not isinstance(row, dict):
            raise BadUtterance("broken line", "not a JSON object")
        unknown = set(row) - set(cls.__slots__)
        if unknown:
            raise BadUtterance("broken line", f"unknown field {sorted(unknown)[0]}")
        values = {name: value for name, value in row.items() if value is not None}
        for name in ("id", "audio"):
            values.setdefault(name, "")
        for name in {"start", "duration"} & values.keys():
            values[name] = seconds(values[name], name)
        for name in ("words", "phones"):
            given = values.get(name, [])
            if not isinstance(given, list):
                raise BadUtterance("broken line", f"{name} is not a list")
            values[name] = tuple(label_of(label, name) for label in given)
        return cls(**values).checked()

    def checked(self) -> Utterance:
        """Itself, if it makes sense. Raises BadUtterance if not."""
        for name in ("id", "audio"):
            if not getattr(self, name):
                raise BadUtterance("broken line", f"{name} is missing")
        for name in ("id", "audio", "text", "speaker", "language", "split"):
            _check_text(getattr(self, name), name)
        seconds(self.start, "start")
        if self.duration is not None:
            seconds(self.duration, "duration")
        is_number = isinstance(self.channel, int) and not isinstance(self.channel, bool)
        if self.channel is not None and (not is_number or self.channel < 0):
            raise BadUtterance("broken line", f"channel is {self.channel!r}, not 0 or more")
        for name in ("words", "phones"):
            for label in getattr(self, name):
                label_of(label, name)
        return self


def seconds(value: Any, name: str) -> float:
    """A time that makes sense, whatever form it came in."""
    try:
        number = float(value)
    except (TypeError, ValueError, OverflowError):
        raise BadUtterance("broken line", f"{name} is no number") from None
    if not 0 <= number < _LONGEST:
        raise BadUtterance("broken line", f"{name} is {number:g}, not a number of seconds")
    return number


def _check_text(value: Any, name: str) -> None:
    if not isinstance(value, str):
        raise BadUtterance("broken line", f"{name} is {value!r:.50}, not a text")
    try:
        value.encode()
    except UnicodeEncodeError:
        raise BadUtterance("not UTF-8", name) from None
    if "\0" in value:
        raise BadUtterance("broken line", f"{name} has a zero byte")


def label_of(label: Any, name: str) -> Label:
    """Raises BadUtterance for what is none."""
    if not isinstance(label, list | tuple) or len(label) != 3 or not isinstance(label[2], str):
        raise BadUtterance("broken line", f"{name} must be [start, end, name], not {label!r:.50}")
    _check_text(label[2], name)
    start, end = seconds(label[0], name), seconds(label[1], name)
    if end < start:
        raise BadUtterance("broken line", f"{name} end before they start: {label!r}")
    return Label(start, end, label[2])


@dataclass
class Corpus:
    """Utterances below one folder, and what was wrong with others."""

    root: Path
    utterances: list[Utterance]
    problems: Problems = field(default_factory=Problems)
    allow_outside: bool = False  # paths that leave the folder
    allow_pipes: bool = False  # programs that write audio

    def splits(self) -> dict[str, list[Utterance]]:
        found: dict[str, list[Utterance]] = {}
        for utterance in self.utterances:
            found.setdefault(utterance.split, []).append(utterance)
        return found

    def source(self, utterance: Utterance) -> Path | str:
        """Where its audio is, or the command that makes it. Raises BadUtterance if that may not be.

        All who read audio ask here, so that nobody runs or reads what was not allowed.
        """
        if utterance.is_command:
            if not self.allow_pipes:
                raise BadUtterance("command refused", utterance.audio)
            return utterance.audio
        return inside(self.root, utterance.audio, self.allow_outside)


def inside(root: Path, name: str, allow_outside: bool = False) -> Path:
    """A path below `root`; links that the owner of the corpus made may lead anywhere."""
    path = Path(os.path.abspath(root / name))
    if not allow_outside and not path.is_relative_to(os.path.abspath(root)):
        raise BadUtterance("path outside the corpus", name)
    return path


def lines(path: Path, problems: Problems) -> Iterator[tuple[int, str]]:
    """The lines of a text file, numbered from 1, without those that are not UTF-8 or empty."""
    import gzip
    import zlib

    opened = gzip.open if path.suffix == ".gz" else open
    try:
        with opened(path, "rb") as file:
            for number, raw in enumerate(file, start=1):
                try:
                    line = raw.decode("utf-8-sig" if number == 1 else "utf-8").strip("\r\n")
                except UnicodeDecodeError as error:
                    problems.note("not UTF-8", f"{path.name}:{number}", str(error.reason))
                    continue
                if line.strip():
                    yield number, line
    except (OSError, EOFError, zlib.error) as error:
        raise ValueError(f"cannot read {path}: {error.args[-1]}") from None


def json_lines(path: Path, problems: Problems) -> Iterator[tuple[str, Any]]:
    """Objects and where they stand."""
    for number, line in lines(path, problems):
        where = f"{path.name}:{number}"
        try:
            yield where, json.loads(line)
        except (ValueError, RecursionError) as error:
            problems.note("broken line", where, str(error))


def read(path: Path, problems: Problems) -> Iterator[Utterance]:
    """A manifest of our own."""
    for where, row in json_lines(path, problems):
        try:
            yield Utterance.from_json(row)
        except BadUtterance as error:
            problems.add([error.of(where)])


def write(path: Path, utterances: Iterable[Utterance], root: Path) -> None:
    """A manifest at `path` of audio below `root`; all of it, or nothing."""
    if path.suffix != SUFFIX:
        raise ValueError(f"{path}: a manifest's name ends with {SUFFIX}")
    there = os.path.relpath(root, path.parent)
    rows = [utterance.to_json() for utterance in map(partial(_seen_from, there), utterances)]
    text = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ValueError(f"cannot write to {path}: {error.strerror}") from None
    try:
        write_aside(path, text.encode())
    except OSError as error:
        raise ValueError(error.strerror) from None


def _seen_from(there: str, utterance: Utterance) -> Utterance:
    """With its audio named from a folder that sees the corpus as `there`."""
    if there == "." or utterance.is_command:
        return utterance
    return replace(
        utterance, audio=Path(os.path.normpath(Path(there) / utterance.audio)).as_posix()
    )


def unique(utterances: Iterable[Utterance], problems: Problems) -> Iterator[Utterance]:
    """The first of every id."""
    seen: dict[str, str] = {}
    for utterance in utterances:
        if utterance.id in seen:
            first = seen[utterance.id]
            problems.note("duplicate id", utterance.id, f"{utterance.audio}, first {first}")
            continue
        seen[utterance.id] = utterance.audio
        yield utterance
