"""A timeline for Chrome's and Perfetto's viewers (chrome://tracing, ui.perfetto.dev)."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from regatta.events import Evaluated, Spans, Usage
from regatta.exports import Source

_NAMES = {"c": "computing", "s": "sending", "w": "waiting", "e": "evaluating"}


def write(run: Source, path: Path) -> list[Path]:
    values = {"traceEvents": list(entries(run)), "displayTimeUnit": "ms"}
    path.write_text(json.dumps(values, separators=(",", ":")) + "\n")
    return [path]


def entries(run: Source) -> Iterator[dict[str, Any]]:
    title = f"{run.summary.spec}, {run.started.workers} workers"
    yield {"name": "process_name", "ph": "M", "pid": 0, "tid": 0, "args": {"name": title}}
    for rank in range(run.started.ranks):
        role = "worker" if rank < run.started.workers else "server"
        name = {"name": f"rank {rank}, {role}"}
        yield {"name": "thread_name", "ph": "M", "pid": 0, "tid": rank, "args": name}
    for event in run.events:
        if isinstance(event, Spans):
            for kind, start, end in zip(event.kinds, event.starts, event.ends, strict=False):
                yield {
                    "name": _NAMES.get(kind, kind), "cat": "rank", "ph": "X", "pid": 0,
                    "tid": event.rank, "ts": _micro(start), "dur": _micro(end - start),
                }  # fmt: skip
        elif isinstance(event, Usage):
            for number, cores in enumerate(event.cpu):
                yield {
                    "name": f"cores busy, rank {event.rank}", "ph": "C", "pid": 0,
                    "ts": _micro(event.time + number * event.interval), "args": {"cores": cores},
                }  # fmt: skip
        elif isinstance(event, Evaluated):
            yield {
                "name": "evaluated", "ph": "i", "s": "g", "pid": 0, "tid": event.rank,
                "ts": _micro(event.time), "args": event.results,
            }  # fmt: skip


def _micro(seconds: float) -> float:
    return round(1e6 * seconds, 1)
