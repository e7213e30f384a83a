"""Typed events: the only output of training. Reports, metrics and exports read them.

One JSON object a line in `events.jsonl`: `{"event": NAME, "rank": R, "time": T, ...}`. `time` is
seconds since the run began, on the wall or the virtual clock; `training` is the same clock stopped
during evaluation. The first line names the version of this vocabulary; fields may be added within a
version, never changed or removed.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, ClassVar, TypeAlias, get_args

from regatta import plain
from regatta.aside import append, writing

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
    last: int = 1  # evaluations whose median must reach the target
    spec: str = ""  # the strategy with its options, as a person writes it
    lr: float | None = None
    hosts: int = 1
    worker_hosts: int = 1  # those of them that have workers
    price_per_hour: float | None = None  # of all hosts
    train_samples: int = 0  # an epoch
    eval_samples: int | None = None  # None: the data do not say
    start: str = ""  # where the weights came from, in words; empty: they were drawn


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
    place: int | None = None  # in its own data, where that is not `turns`: it does others' as well


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
class Sampled:
    """What a model that is being trained makes of a sample: a sentence."""

    name: ClassVar[str] = "sampled"
    rank: int
    time: float
    turns: int
    seconds: float  # that it took; training waited
    reference: str
    hypothesis: str


@dataclass(frozen=True, kw_only=True)
class Warned:
    """What an evaluation has found to be wrong with a model."""

    name: ClassVar[str] = "warned"
    rank: int
    time: float
    text: str


@dataclass(frozen=True, kw_only=True)
class Checkpointed:
    name: ClassVar[str] = "checkpointed"
    rank: int
    time: float
    segment: int
    path: str


@dataclass(frozen=True, kw_only=True)
class Died:
    """A rank is gone; the launcher tells, or the virtual world."""

    name: ClassVar[str] = "died"
    rank: int
    time: float
    role: str
    how: str  # that it came about, in words
    then: str  # what followed: stop, restart, shrink or go on
    lost: float = 0.0  # seconds since the checkpoint: what was done then is done again


@dataclass(frozen=True, kw_only=True)
class StoodStill:
    """A signal has stopped a rank; the launcher tells, and tells again what came of it."""

    name: ClassVar[str] = "stood_still"
    rank: int
    time: float
    seconds: float  # so far
    then: str  # waited for, went on or given up


@dataclass(frozen=True, kw_only=True)
class Resumed:
    """The run goes on from a checkpoint; what was written after that moment does not count."""

    name: ClassVar[str] = "resumed"
    rank: int
    time: float
    segment: int
    target: float | None = None
    last: int = 1
    since: float | None = None  # that moment, where the clock has gone on after it
    workers: int | None = None  # that go on


@dataclass(frozen=True, kw_only=True)
class Usage:
    """How busy a rank kept its processors, in samples of one length."""

    name: ClassVar[str] = "usage"
    rank: int
    time: float  # where the first sample begins
    interval: float  # seconds a sample
    cpu: list[float]  # cores that the process kept busy
    gpu: list[float] | None = None  # share of the time that its device worked
    memory: int  # bytes that are resident, in the end


@dataclass(frozen=True, kw_only=True)
class Spans:
    """What a rank did when; only the first stretches of a run are written down."""

    name: ClassVar[str] = "spans"
    rank: int
    time: float
    kinds: str  # a letter each: c computes, s sends, w waits, e evaluates
    starts: list[float]
    ends: list[float]


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
    audio: float | None = None  # seconds of speech in the samples
    joules: float | None = None  # that its host took, told by one rank of a host if it can be read
    preempted: bool = False  # it had to leave, and is to go on later


@dataclass(frozen=True, kw_only=True)
class Ended:
    name: ClassVar[str] = "ended"
    rank: int
    time: float
    training: float
    reason: str  # budget, target, patience, seconds, interrupt or preempted
    samples: int
    results: dict[str, float]


Event: TypeAlias = (
    Started
    | Progress
    | Evaluated
    | Sampled
    | Warned
    | Checkpointed
    | Died
    | StoodStill
    | Resumed
    | Usage
    | Spans
    | RankEnded
    | Ended
)
_MOST_RANKS = 1_000_000
KINDS: dict[str, type[Event]] = {kind.name: kind for kind in get_args(Event)}


class Writer:
    """Appends events, a whole line a write, so ranks of one host may share the file."""

    def __init__(
        self, path: Path | None, watch: Callable[[Event], None] = lambda event: None
    ) -> None:
        self.events: list[Event] = []  # what was written, where there is no file
        self._watch = watch
        self._path = path
        self._file: int | None = None
        if path is not None:
            with writing(path):
                self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)

    def __call__(self, event: Event) -> None:
        if self._file is None or self._path is None:
            self.events.append(event)
        else:
            append(self._file, (to_line(event) + "\n").encode(), self._path)
        self._watch(event)

    def close(self) -> None:
        if self._file is not None:
            os.close(self._file)
            self._file = None


def to_line(event: Event) -> str:
    return json.dumps({"event": event.name} | asdict(event), separators=(",", ":"))


def from_line(line: str) -> Event:
    values = plain.loads(line)
    if not isinstance(values, dict):
        raise ValueError("no JSON object")
    name = values.get("event")
    kind = KINDS.get(name) if isinstance(name, str) else None
    if kind is None:
        raise ValueError("no event of this vocabulary")
    version = values.get("version", VERSION)
    if kind is Started and isinstance(version, int) and version > VERSION:
        raise ValueError(f"events of version {version}; this Regatta reads {VERSION}")
    ages = values.get("staleness")
    if isinstance(ages, dict):  # JSON has only text keys
        values["staleness"] = {int(age): count for age, count in ages.items()}
    for field_name, value in values.items():
        if not plain.is_measured(value) and field_name != "loss":  # the only one that may be lost
            raise ValueError(f"{plain.printable(field_name)} cannot be {plain.shown(value)}")
    if "\\" in line or not line.isprintable():
        values = _printable(values)
    made: Callable[[Any, dict[str, Any]], Event] = plain.made
    event = made(kind, values)
    if isinstance(event, Started) and not 1 <= event.workers <= event.ranks <= _MOST_RANKS:
        raise ValueError(f"{event.workers} workers of {event.ranks} ranks cannot be")
    return event


def _printable(values: dict[str, Any]) -> dict[str, Any]:
    """Texts of events are shown on terminals and pages: what is no letter there is left out."""

    def cleaned(value: Any) -> Any:
        if isinstance(value, str):
            return plain.printable(value)
        if isinstance(value, dict):  # results by name
            return {cleaned(name): inner for name, inner in value.items()}
        return value

    return {name: cleaned(value) for name, value in values.items()}


def read(path: Path) -> list[Event]:
    """All events that count: those of a broken-off stretch are left out."""
    try:
        return standing(_parse(path.read_text(), path))
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} is damaged: {error}") from None


@dataclass(frozen=True)
class Log:
    """What could be read of a file of events, and what could not."""

    events: list[Event]
    complaints: list[str]


def read_what_there_is(path: Path) -> Log:
    """For who only looks: a file may have been damaged, cut short or written by another version.

    Lines that are no events are left out and named; what a killed run wrote last is half a line.
    """
    try:
        text = path.read_bytes().decode(errors="replace")
    except OSError as error:
        return Log([], [f"{path}: {error.strerror}"])
    *lines, rest = text.split("\n")
    events, complaints = [], []
    for number, line in enumerate(lines, 1):
        try:
            events.append(from_line(line))
        except ValueError as error:
            complaints.append(f"{path}:{number} is not an event ({error}); it is left out")
    if rest:
        complaints.append(f"{path}:{len(lines) + 1} breaks off; half a line is left out")
    return Log(standing(events), _bundled(complaints, path))


def _bundled(complaints: list[str], path: Path) -> list[str]:
    """Of very many alike the first few say enough."""
    few = 3
    if len(complaints) <= few:
        return complaints
    return [*complaints[:few], f"{path}: and {len(complaints) - few} more lines like these"]


def standing(events: Iterable[Event]) -> list[Event]:
    """Without what was done after a moment that the run later went on from."""
    kept: list[Event] = []
    time = segment = math.inf  # of what was gone on from
    for event in reversed(list(events)):
        if _stands(event, time, segment):
            kept.append(event)
        if isinstance(event, Resumed):
            since = event.time if event.since is None else event.since
            time, segment = min(time, since), min(segment, event.segment)
        elif isinstance(event, Started):  # the very beginning
            time = segment = -math.inf
    return kept[::-1]


def _stands(event: Event, time: float, segment: float) -> bool:
    if isinstance(event, Checkpointed):  # told a moment after the state was saved
        return event.segment <= segment
    return event.time <= time or isinstance(event, Died | StoodStill)  # what befell ranks


def _parse(text: str, path: Path) -> Iterator[Event]:
    lines = text.split("\n")
    for number, line in enumerate(lines[:-1], 1):  # what follows the last newline is half a line
        try:
            yield from_line(line)
        except ValueError as error:
            raise ValueError(f"{path}:{number} is not an event ({error})") from None


class Tail:
    """New events of a file that is still being written; lines that are none are passed over."""

    def __init__(self, path: Path, from_start: bool = False) -> None:
        self._path = path
        self._offset = path.stat().st_size if path.exists() and not from_start else 0

    def __call__(self) -> list[Event]:
        if not self._path.exists():
            return []
        with self._path.open("rb") as file:
            if os.fstat(file.fileno()).st_size < self._offset:  # another run has taken its place
                self._offset = 0
            file.seek(self._offset)
            text = file.read()
        whole = text[: text.rfind(b"\n") + 1]
        self._offset += len(whole)
        lines = whole.decode(errors="replace").split("\n")
        return [event for line in lines if (event := _event_or_none(line)) is not None]


def _event_or_none(line: str) -> Event | None:
    try:
        return from_line(line)
    except ValueError:
        return None
