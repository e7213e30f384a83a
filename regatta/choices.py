"""The outcomes of chance: recorded by a run, obeyed by its replay.

Chance enters a run in three places only: which message `recv(ANY)` takes, what `poll` finds, and
the turn at which a stream is stopped from outside (seconds, target, interrupt). One line of
`choices.jsonl` holds a few hundred outcomes of one rank in one segment (the stretch between two
meetings), in the order in which the rank met them.
"""

from __future__ import annotations

import json
import os
from collections import defaultdict, deque
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Protocol

from regatta import plain
from regatta.aside import append, write_aside, writing

Kind = Literal["recv", "poll", "stop"]
KINDS: tuple[Kind, ...] = ("recv", "poll", "stop")
NOTHING = -1  # a poll that found no message
_LINE_LENGTH = 256  # outcomes a line, and the most that a killed rank has not written yet


class Chance(Protocol):
    """One rank's view of chance."""

    replaying: bool

    def begin(self, segment: int) -> None: ...
    def note(self, kind: Kind, outcome: int) -> None: ...
    def take(self, kind: Kind) -> int | None:
        """The recorded outcome, or None where chance is to decide (or recorded nothing more)."""
        ...

    def flush(self) -> None: ...


class Live:
    """Chance decides; nobody records."""

    replaying = False

    def begin(self, segment: int) -> None: ...
    def note(self, kind: Kind, outcome: int) -> None: ...
    def flush(self) -> None: ...
    def take(self, kind: Kind) -> int | None:
        return None


class Recorder(Live):
    """Chance decides, and every outcome is written down.

    No file stays open meanwhile: a process may have thousands of virtual ranks, but not of files.
    """

    def __init__(self, path: Path, rank: int) -> None:
        self._path, self._rank = path, rank
        self._write("")  # a run without chance has a record, too
        self._segment = 0
        self._pending: dict[Kind, list[int]] = defaultdict(list)

    def begin(self, segment: int) -> None:
        self.flush()
        self._segment = segment

    def note(self, kind: Kind, outcome: int) -> None:
        pending = self._pending[kind]
        pending.append(outcome)
        if len(pending) >= _LINE_LENGTH:
            self.flush()

    def flush(self) -> None:
        for kind, outcomes in self._pending.items():
            line = {"segment": self._segment, "rank": self._rank, kind: outcomes}
            self._write(json.dumps(line, separators=(",", ":")) + "\n")
        self._pending.clear()

    def close(self) -> None:
        self.flush()

    def _write(self, text: str) -> None:
        """At once: the kernel appends it whole, whatever other ranks write."""
        with writing(self._path):
            file = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        try:
            append(file, text.encode(), self._path)
        finally:
            os.close(file)


class Replayer:
    """What was recorded happens again."""

    replaying = True

    def __init__(self, recorded: Recorded, rank: int) -> None:
        self._recorded = recorded
        self._rank = rank
        self._left: dict[Kind, deque[int]] = {}

    def begin(self, segment: int) -> None:
        self._left = {
            kind: deque(self._recorded.get((segment, self._rank, kind), [])) for kind in KINDS
        }

    def note(self, kind: Kind, outcome: int) -> None: ...
    def flush(self) -> None: ...
    def take(self, kind: Kind) -> int | None:
        left = self._left[kind]
        if kind == "stop":  # asked every turn, true once
            return left[0] if left else None
        if not left:
            raise ValueError(
                f"choices.jsonl holds no further {kind} of rank {self._rank}: "
                "the recording is incomplete, or the run was changed since"
            )
        return left.popleft()


Recorded = dict[tuple[int, int, Kind], list[int]]


@dataclass(frozen=True)
class _Line:
    segment: int
    rank: int
    recv: list[int] | None = None
    poll: list[int] | None = None
    stop: list[int] | None = None


def read(path: Path) -> Recorded:
    recorded: Recorded = defaultdict(list)
    try:
        lines = path.read_text().splitlines()
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} is damaged: {error}") from None
    except FileNotFoundError:
        raise ValueError(f"{path} is missing: without it nobody knows what chance did") from None
    for number, text in enumerate(lines, 1):
        try:
            line = _parsed(text)
        except ValueError as error:
            raise ValueError(f"{path}:{number} is not a record of choices ({error})") from None
        for kind in KINDS:
            recorded[line.segment, line.rank, kind] += getattr(line, kind) or ()
    return recorded


def _parsed(text: str) -> _Line:
    values = plain.loads(text)
    if not isinstance(values, dict):
        raise ValueError("no JSON object")
    line = plain.made(_Line, values)
    outcomes = [line.recv, line.poll, line.stop]
    if all(each is None for each in outcomes):
        raise ValueError(f"it holds none of {', '.join(KINDS)}")
    if min(line.segment, line.rank, *(line.recv or ())) < 0:
        raise ValueError("segments and ranks are numbered from 0")
    return line


def forget_from(path: Path, segment: int) -> list[str]:
    """Drop what a broken-off run recorded after its last checkpoint; tells what is damaged."""
    if not path.exists():
        return []
    kept, damaged = [], 0
    for text in path.read_bytes().split(b"\n")[:-1]:  # what a kill has cut short came last
        try:
            if _parsed(text.decode()).segment < segment:
                kept.append(text + b"\n")
        except ValueError:
            damaged += 1
    write_aside(path, b"".join(kept))
    if not damaged:
        return []
    return [f"{path}: {damaged} damaged lines are left out: this run cannot be replayed any more"]
