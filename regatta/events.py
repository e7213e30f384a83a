"""Typed events: the only output of training. Reports, metrics and exports read them.

One JSON object a line in `events.jsonl`: `{"event": NAME, "rank": R, "time": T, ...}`. `time` is
seconds since the run began, on the wall or the virtual clock; `training` is the same clock stopped
during evaluation. The first line names the version of this vocabulary; fields may be added within a
version, never changed or removed.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any, ClassVar, TypeAlias

VERSION = 1


@dataclass(frozen=True, kw_only=True)
class Started:
    name: ClassVar[str] = "started"
    rank: int
    time: float
    version: int = VERSION
    world: str  # processes or virtual
    strategy: str
    workers: int
    ranks: int
    minibatch: int
    seed: int
    metric: str
    higher_is_better: bool
    target: float | None
    vector_bytes: int


@dataclass(frozen=True, kw_only=True)
class Progress:
    """Where a rank stands; at most about one a second and rank."""

    name: ClassVar[str] = "progress"
    rank: int
    time: float
    turns: int
    samples: int  # of this rank
    loss: float | None
    computing: float
    waiting: float
    messages: int
    bytes: int


@dataclass(frozen=True, kw_only=True)
class Evaluated:
    name: ClassVar[str] = "evaluated"
    rank: int
    time: float
    training: float
    samples: int  # of all ranks, in the weights that were scored
    epoch: float
    seconds: float  # that scoring took, while the training clock stood still
    results: dict[str, float]


@dataclass(frozen=True, kw_only=True)
class Checkpointed:
    name: ClassVar[str] = "checkpointed"
    rank: int
    time: float
    segment: int
    path: str


@dataclass(frozen=True, kw_only=True)
class Resumed:
    """The run goes on from a checkpoint; what was written after that moment does not count."""

    name: ClassVar[str] = "resumed"
    rank: int
    time: float
    segment: int
    target: float | None = None


@dataclass(frozen=True, kw_only=True)
class RankEnded:
    name: ClassVar[str] = "rank_ended"
    rank: int
    time: float
    role: str
    turns: int
    steps: int
    samples: int
    computing: float
    waiting: float
    messages: int
    bytes: int
    dropped: int = 0  # gradients that were computed but not used
    staleness: dict[int, int] = field(default_factory=dict)
    digest: str | None = None  # of the final weights


@dataclass(frozen=True, kw_only=True)
class Ended:
    name: ClassVar[str] = "ended"
    rank: int
    time: float
    training: float
    reason: str  # budget, target, seconds or interrupt
    samples: int
    results: dict[str, float]


Event: TypeAlias = Started | Progress | Evaluated | Checkpointed | Resumed | RankEnded | Ended
KINDS: dict[str, type[Event]] = {
    kind.name: kind
    for kind in (Started, Progress, Evaluated, Checkpointed, Resumed, RankEnded, Ended)
}


class Writer:
    """Appends events, a whole line a write, so ranks of one host may share the file."""

    def __init__(
        self, path: Path | None, watch: Callable[[Event], None] = lambda event: None
    ) -> None:
        self.events: list[Event] = []  # what was written, where there is no file
        self._watch = watch
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT
        self._file = None if path is None else os.open(path, flags, 0o644)

    def __call__(self, event: Event) -> None:
        if self._file is None:
            self.events.append(event)
        else:
            os.write(self._file, (to_line(event) + "\n").encode())
        self._watch(event)

    def close(self) -> None:
        if self._file is not None:
            os.close(self._file)
            self._file = None


def to_line(event: Event) -> str:
    return json.dumps({"event": event.name} | asdict(event), separators=(",", ":"))


def from_line(line: str) -> Event:
    values = json.loads(line)
    if not isinstance(values, dict):
        raise ValueError("no JSON object")
    kind = KINDS.get(values.pop("event", None))
    if kind is None:
        raise ValueError("no event of this vocabulary")
    if kind is Started and values.get("version", VERSION) > VERSION:
        raise ValueError(f"events of version {values['version']}; this Regatta reads {VERSION}")
    known = {f.name for f in fields(kind)}
    arguments: dict[str, Any] = {k: v for k, v in values.items() if k in known}
    if "staleness" in arguments:  # JSON has only text keys
        arguments["staleness"] = {int(k): v for k, v in arguments["staleness"].items()}
    return kind(**arguments)


def read(path: Path) -> list[Event]:
    """All events that count: those of a broken-off stretch are left out."""
    return standing(_parse(path.read_text(), path))


def standing(events: Iterator[Event] | list[Event]) -> list[Event]:
    kept: list[Event] = []
    for event in events:
        if isinstance(event, Resumed):
            kept = [earlier for earlier in kept if _stands(earlier, event)]
        kept.append(event)
    return kept


def _stands(earlier: Event, resumed: Resumed) -> bool:
    if isinstance(earlier, Checkpointed):  # told a moment after the state was saved
        return earlier.segment <= resumed.segment
    return earlier.time <= resumed.time


def _parse(text: str, path: Path) -> Iterator[Event]:
    lines = text.split("\n")
    for number, line in enumerate(lines[:-1], 1):  # what follows the last newline is half a line
        try:
            yield from_line(line)
        except (ValueError, TypeError) as error:
            raise ValueError(f"{path}:{number} is not an event ({error})") from None


class Tail:
    """New events of a file that is still being written."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._offset = path.stat().st_size if path.exists() else 0

    def __call__(self) -> list[Event]:
        if not self._path.exists():
            return []
        with self._path.open("rb") as file:
            file.seek(self._offset)
            text = file.read()
        whole = text[: text.rfind(b"\n") + 1]
        self._offset += len(whole)
        return list(_parse(whole.decode(), self._path))
