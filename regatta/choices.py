"""The outcomes of chance: recorded by a run, obeyed by its replay.

Chance enters a run in three places only: which message `recv(ANY)` takes, what `poll` finds, and
the turn at which a stream is stopped from outside (seconds, target, interrupt). One line of
`choices.jsonl` holds a few hundred outcomes of one rank in one segment (the stretch between two
meetings), in the order in which the rank met them. Where others go on when a rank dies, its death
is chance as well: in which sums it took part (`died`), who inherited what of its data (`heir`), and
who waited for its answer in vain (`mute`).
"""

from __future__ import annotations

import json
import mmap
import os
from collections import defaultdict, deque
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Protocol

from regatta import plain
from regatta.aside import append, write_aside, writing
from regatta.comm import ANY

Kind = Literal["recv", "poll", "stop", "heir", "died", "mute"]
KINDS: tuple[Kind, ...] = ("recv", "poll", "stop", "heir", "died", "mute")
NOTHING = -1  # a poll that found no message
_LINE_LENGTH = 256  # outcomes a line, and the most that a killed rank has not written yet


class Chance(Protocol):
    """One rank's view of chance."""

    replaying: bool

    def begin(self, segment: int) -> None: ...
    def note(self, kind: Kind, outcome: int) -> None: ...
    def bury(self, rank: int, sums: int) -> None:
        """That `rank` is dead, and was in so many of this segment's sums of the world."""
        ...

    def take(self, kind: Kind) -> int | None:
        """The recorded outcome, or None where chance is to decide (or recorded nothing more)."""
        ...

    def took(self, kind: Kind, outcome: int) -> bool:
        """Whether this is the next recorded outcome, which is then over."""
        ...

    def flush(self) -> None: ...


class Live:
    """Chance decides; nobody records."""

    replaying = False

    def begin(self, segment: int) -> None: ...
    def note(self, kind: Kind, outcome: int) -> None: ...
    def bury(self, rank: int, sums: int) -> None: ...
    def flush(self) -> None: ...
    def take(self, kind: Kind) -> int | None:
        return None

    def took(self, kind: Kind, outcome: int) -> bool:
        return False


class Recorder(Live):
    """Chance decides, and every outcome is written down.

    No file stays open meanwhile: a process may have thousands of virtual ranks, but not of files.
    What a `mortal` rank has not written yet is also in a file beside, which survives it.
    """

    def __init__(self, path: Path, rank: int, mortal: bool = False) -> None:
        self._path, self._rank = path, rank
        self._append("")  # a run without chance has a record, too
        self._segment = 0
        self._pending: dict[Kind, list[int]] = defaultdict(list)
        self._beside = Beside(path, rank) if mortal else None

    def begin(self, segment: int) -> None:
        self.flush()
        self._segment = segment
        if self._beside is not None:
            self._beside.begin(segment)

    def note(self, kind: Kind, outcome: int) -> None:
        pending = self._pending[kind]
        pending.append(outcome)
        if self._beside is not None:
            self._beside.note(kind, outcome)
        if len(pending) >= _LINE_LENGTH:
            self.flush()

    def bury(self, rank: int, sums: int) -> None:
        """At once, and by everybody: who is to write it down may be the next to die."""
        self._append(self._line(rank, "died", [sums]))

    def close(self) -> None:
        self.flush()
        if self._beside is not None:
            self._beside.remove()

    def flush(self) -> None:
        """In one write: who is killed has written all of it, or nothing."""
        if self._pending:
            self._append("".join(self._line(self._rank, *each) for each in self._pending.items()))
        self._pending.clear()
        if self._beside is not None:
            self._beside.clear()

    def _line(self, rank: int, kind: Kind, outcomes: list[int]) -> str:
        line = {"segment": self._segment, "rank": rank, kind: outcomes}
        return json.dumps(line, separators=(",", ":")) + "\n"

    def _append(self, text: str) -> None:
        """At once: the kernel appends it whole, whatever other ranks write."""
        with writing(self._path):
            file = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        try:
            append(file, text.encode(), self._path)
        finally:
            os.close(file)


class Beside:
    """Outcomes that are not in the record yet, in memory that is a file: a kill does not take them.

    Its numbers are how many there are, their segment, how many of that segment are in the record,
    and each outcome with its kind.
    """

    _HEAD = 3

    def __init__(self, path: Path, rank: int) -> None:
        self._path = self.path_of(path, rank)
        self._numbers: memoryview | None = None  # until there is something to note
        self._segment = 0

    @staticmethod
    def path_of(path: Path, rank: int) -> Path:
        return path.with_name(f"{path.name}.{rank}")

    def begin(self, segment: int) -> None:
        """None of it is in the record."""
        self._segment = segment
        if self._numbers is not None:
            self._numbers[1], self._numbers[2] = segment, 0

    def note(self, kind: Kind, outcome: int) -> None:
        if self._numbers is None:
            self._numbers = self._mapped()
            self.begin(self._segment)
        numbers = self._numbers
        count = numbers[0]
        numbers[self._HEAD + count] = outcome * len(KINDS) + KINDS.index(kind)
        numbers[0] = count + 1

    def clear(self) -> None:
        """They have just been written down."""
        if self._numbers is not None:
            count, self._numbers[0] = self._numbers[0], 0
            self._numbers[2] += count

    def remove(self) -> None:
        self._path.unlink(missing_ok=True)

    def _mapped(self) -> memoryview:
        size = 8 * (self._HEAD + len(KINDS) * _LINE_LENGTH)
        with writing(self._path), self._path.open("w+b") as file:
            os.posix_fallocate(file.fileno(), 0, size)  # who writes where a disk is full is killed
            return memoryview(mmap.mmap(file.fileno(), size)).cast("q")

    @classmethod
    def recover(cls, path: Path, rank: int) -> None:
        """Write down what a rank that has died had still to write."""
        beside = cls.path_of(path, rank)
        try:
            numbers = memoryview(beside.read_bytes()).cast("q")
        except FileNotFoundError:
            return
        if numbers:  # else it has died before it could write any
            count, segment, written = numbers[: cls._HEAD]
            if count and _recorded_of(path, segment, rank) == written:  # else it has just written
                recorder = Recorder(path, rank)
                recorder.begin(segment)
                for coded in numbers[cls._HEAD : cls._HEAD + count]:
                    outcome, kind = divmod(coded, len(KINDS))
                    recorder.note(KINDS[kind], outcome)
                recorder.close()
        beside.unlink()

    @classmethod
    def forget(cls, path: Path) -> None:
        """What a broken-off run has left."""
        for beside in path.parent.glob(f"{path.name}.[0-9]*"):
            beside.unlink()


class Recorders:
    """Those of all ranks of one process."""

    def __init__(self, path: Path, ranks: int) -> None:
        self._path = path
        self._ranks = range(ranks)
        self._open()

    def of(self, rank: int) -> Recorder:
        return self._recorders[rank]

    def forget_from(self, segment: int) -> None:
        self.close()
        forget_from(self._path, segment)
        self._open()

    def close(self) -> None:
        for recorder in self._recorders:
            recorder.close()

    def _open(self) -> None:
        self._recorders = [Recorder(self._path, rank) for rank in self._ranks]


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
    def bury(self, rank: int, sums: int) -> None: ...
    def flush(self) -> None: ...
    def take(self, kind: Kind) -> int | None:
        left = self._left[kind]
        if kind in ("stop", "died"):  # asked often, true once
            return left[0] if left else None
        if kind == "heir":
            return left.popleft() if left else None
        if not left and self._left["died"]:
            raise Over(f"rank {self._rank} died here")
        if not left:
            raise ValueError(
                f"choices.jsonl holds no further {kind} of rank {self._rank}: "
                "the recording is incomplete, or the run was changed since"
            )
        return left.popleft()

    def took(self, kind: Kind, outcome: int) -> bool:
        left = self._left[kind]
        if not left or left[0] != outcome:
            return False
        left.popleft()
        return True


class Over(Exception):
    """A rank has come to where it died when the run was recorded."""


Recorded = dict[tuple[int, int, Kind], list[int]]


@dataclass(frozen=True)
class _Line:
    segment: int
    rank: int
    recv: list[int] | None = None
    poll: list[int] | None = None
    stop: list[int] | None = None
    heir: list[int] | None = None
    died: list[int] | None = None
    mute: list[int] | None = None


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
            if outcomes := getattr(line, kind):
                recorded[line.segment, line.rank, kind] += outcomes
    return recorded


def _recorded_of(path: Path, segment: int, rank: int) -> int:
    """How many outcomes a rank has written down itself of a segment; others may just be writing."""
    own = [kind for kind in KINDS if kind != "died"]
    begins = f'{{"segment":{segment},"rank":{rank},'.encode()  # as a recorder writes it
    found = 0
    for text in path.read_bytes().split(b"\n")[:-1]:
        if text.startswith(begins):
            with suppress(ValueError):
                line = _parsed(text.decode())
                found += sum(len(getattr(line, kind) or ()) for kind in own)
    return found


def _parsed(text: str) -> _Line:
    values = plain.loads(text)
    if not isinstance(values, dict):
        raise ValueError("no JSON object")
    line = plain.made(_Line, values)
    if all(getattr(line, kind) is None for kind in KINDS):
        raise ValueError(f"it holds none of {', '.join(KINDS)}")
    if min(line.segment, line.rank) < 0 or ANY in (line.recv or ()):
        raise ValueError("segments and ranks are numbered from 0")
    return line


def forget_from(path: Path, segment: int) -> list[str]:
    """Drop what a broken-off run recorded after its last checkpoint; tells what is damaged."""
    Beside.forget(path)
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
