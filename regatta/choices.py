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
from pathlib import Path
from typing import Literal, Protocol

Kind = Literal["recv", "poll", "stop", "heir", "died"]
KINDS: tuple[Kind, ...] = ("recv", "poll", "stop", "heir", "died")
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


class Recorder(Live):
    """Chance decides, and every outcome is written down."""

    def __init__(self, path: Path, rank: int) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        self._rank = rank
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

    def bury(self, rank: int, sums: int) -> None:
        """At once, and by everybody: who is to write it down may be the next to die."""
        self._write(rank, "died", [sums])

    def close(self) -> None:
        self.flush()
        os.close(self._file)

    def flush(self) -> None:
        for kind, outcomes in self._pending.items():
            if outcomes:
                self._write(self._rank, kind, outcomes)
        self._pending.clear()

    def _write(self, rank: int, kind: Kind, outcomes: list[int]) -> None:
        line = {"segment": self._segment, "rank": rank, kind: outcomes}
        # One write a line: the kernel appends it whole, whatever other ranks write.
        os.write(self._file, (json.dumps(line, separators=(",", ":")) + "\n").encode())


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
            raise LostRecord(
                f"rank {self._rank} died, and with it what chance it had met: "
                "this run cannot be replayed"
            )
        if not left:
            raise ValueError(
                f"choices.jsonl holds no further {kind} of rank {self._rank}: "
                "the recording is incomplete, or the run was changed since"
            )
        return left.popleft()


class LostRecord(ValueError):
    """A rank died before it could write down what chance it had met."""


Recorded = dict[tuple[int, int, Kind], list[int]]


def read(path: Path) -> Recorded:
    recorded: Recorded = defaultdict(list)
    for number, text in enumerate(path.read_text().splitlines(), 1):
        try:
            line = json.loads(text)
            kind = next(kind for kind in KINDS if kind in line)
            recorded[line["segment"], line["rank"], kind] += line[kind]
        except (ValueError, KeyError, StopIteration) as error:
            raise ValueError(f"{path}:{number} is not a record of choices ({error})") from None
    return recorded


def forget_from(path: Path, segment: int) -> None:
    """Drop what a broken-off run recorded after its last checkpoint."""
    if not path.exists():
        return
    kept = [
        line
        for line in path.read_text().splitlines(keepends=True)
        if line.endswith("\n") and json.loads(line)["segment"] < segment
    ]
    aside = path.with_suffix(".tmp")
    aside.write_text("".join(kept))
    aside.replace(path)
