"""What a person sees while a run goes on: a live line on a terminal, plain lines in a pipe."""

from __future__ import annotations

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.status import Status
from rich.table import Table

from regatta.events import Checkpointed, Ended, Evaluated, Event, Progress, Resumed
from regatta.metrics import Summary
from regatta.race import Finish, ranking, speedup


class Display:
    """Watches events; every evaluation is a line, and progress between them a live one."""

    def __init__(self, console: Console, title: str, epochs: float) -> None:
        self._console = console
        self._title = title
        self._epochs = epochs
        self._status: Status | None = None
        self._samples: dict[int, int] = {}
        if console.is_terminal:
            self._status = console.status(f"{title}: starting")
            self._status.start()

    def __call__(self, events: list[Event]) -> None:
        for event in events:
            if isinstance(event, Progress):
                self._progress(event)
            elif isinstance(event, Evaluated):
                self._line(event)
            elif isinstance(event, Checkpointed):
                self._console.print(f"  [dim]checkpoint {event.path}[/dim]")
            elif isinstance(event, Resumed):
                self._console.print(f"  resumed at {event.time:.1f} s, segment {event.segment}")
            elif isinstance(event, Ended):
                self.close()

    def close(self) -> None:
        if self._status is not None:
            self._status.stop()
            self._status = None

    def _progress(self, event: Progress) -> None:
        self._samples[event.rank] = event.samples
        if self._status is not None:
            loss = "" if event.loss is None else f", loss {event.loss:.4f}"
            done = sum(self._samples.values())
            self._status.update(f"{self._title}: {event.time:.0f} s, {done:,} samples{loss}")

    def _line(self, event: Evaluated) -> None:
        results = "  ".join(f"{name} {value:.4f}" for name, value in event.results.items())
        self._console.print(
            f"  {event.training:8.2f} s  epoch {event.epoch:6.2f} of {self._epochs:g}  {results}",
            highlight=False,
        )


def race_table(finishes: list[Finish]) -> Table:
    first = finishes[0].summary
    goal = "" if first.target is None else f"to {first.metric} {first.target:g}"
    table = Table(title=goal, box=SIMPLE_HEAD, show_edge=False, padding=(0, 1, 0, 0))
    table.add_column("strategy", no_wrap=True)
    for heading in ("workers", "to target", "speedup", "samples/s", "final", "stale", "wait"):
        table.add_column(heading, justify="right", no_wrap=True)
    for finish in ranking(finishes):
        s, ratio = finish.summary, speedup(finish, finishes)
        table.add_row(
            finish.spec,
            str(s.workers),
            "missed" if s.time_to_target is None else f"{s.time_to_target:.2f} s",
            "" if ratio is None else f"{ratio:.2f}",
            f"{s.throughput:,.0f}",
            "" if s.final is None else f"{s.final:.4f}",
            "" if s.mean_staleness is None else f"{s.mean_staleness:.1f}",
            f"{s.waiting_share:.0%}",
        )
    return table


def _reached(s: Summary, clock: str) -> str:
    if s.time_to_target is None:
        return "not reached"
    return f"{s.time_to_target:.2f} {clock}, {s.interpolated_time:.2f} by a straight line"


def summary_lines(s: Summary) -> list[str]:
    clock = "virtual s" if s.world == "virtual" else "s"
    workers = f"{s.workers} worker" + ("" if s.workers == 1 else "s")
    lines = [
        f"{s.strategy}, {workers}: {s.samples:,} samples in {s.seconds:.2f} {clock} of "
        f"training, {s.throughput:,.0f} samples/s, workers waited {s.waiting_share:.1%} "
        f"(ended by {s.reason})"
    ]
    if s.final is not None:
        lines.append(f"{s.metric} {s.final:.4f}, best {s.best:.4f}")
    if s.target is not None:
        lines.append(f"time to {s.metric} {s.target:g}: {_reached(s, clock)}")
    if s.mean_staleness is not None:
        lines.append(
            f"staleness: mean {s.mean_staleness:.2f}, 95 % at most {s.p95_staleness}, "
            f"most {s.max_staleness}"
        )
    if s.dropped_share:
        lines.append(f"dropped: {s.dropped_share:.1%} of the gradients came too late")
    lines.append(f"exchanged: {s.messages:,} messages, {s.bytes / 1e6:,.1f} MB")
    return lines
