"""A run's events in the form of other tools: MLPerf, TensorBoard, Chrome's trace, DAWNBench."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from regatta.config import nearest
from regatta.events import Event, Started, read_what_there_is
from regatta.folders import read_stored
from regatta.metrics import Summary, summarise

UNKNOWN = "unknown"


@dataclass(frozen=True)
class Source:
    """A run as it lies in its folder."""

    folder: Path
    events: list[Event]
    summary: Summary
    started: Started
    stored: dict[str, Any]  # run.json, if it can be read
    began: float  # seconds since 1970; 0 under a virtual clock
    complaints: list[str]  # what could not be read

    @property
    def task(self) -> str:
        return self.name_of("task")

    def name_of(self, part: str) -> str:
        """Of a component of the run, if run.json tells it."""
        value = self.stored.get("run", {}).get(part)
        return str(value.get("name", UNKNOWN)) if isinstance(value, dict) else UNKNOWN


def source(folder: Path) -> Source:
    log = read_what_there_is(folder / "events.jsonl")
    try:
        summary = summarise(log.events)
    except ValueError as error:
        reasons = "; ".join([str(error), *log.complaints])
        raise ValueError(f"{folder} holds no run that can be converted: {reasons}") from None
    started = next(e for e in log.events if isinstance(e, Started))
    complaints, stored = list(log.complaints), {}
    try:
        stored = read_stored(folder)
    except ValueError as error:
        complaints.append(str(error))
    began = (stored.get("began") or 0.0) if started.world == "processes" else 0.0
    return Source(folder, log.events, summary, started, stored, began, complaints)


@dataclass(frozen=True)
class Converted:
    files: list[Path]
    complaints: list[str]  # what could not be read, and so was not written


def convert(folder: Path, to: str, out: Path, benchmark: str | None = None) -> Converted:
    """Write a run in another form."""
    from regatta.exports import dawnbench, mlperf, tensorboard, trace

    if benchmark is not None and to != "mlperf":
        raise ValueError("--benchmark is for --to mlperf")
    forms: dict[str, Callable[[Source, Path], list[Path]]] = {
        "mlperf": lambda run, path: mlperf.write(run, path, benchmark),
        "tensorboard": tensorboard.write,
        "trace": trace.write,
        "dawnbench": dawnbench.write,
    }
    if to not in forms:
        raise ValueError(nearest(to, list(forms), "form"))
    run = source(folder)
    try:
        return Converted(forms[to](run, out), run.complaints)
    except OSError as error:
        reason = f"cannot write to {out} ({error.strerror})"
        raise ValueError(f"{reason}: choose another --out") from None
