"""What a person sees while runs go on: a live line on a terminal, plain lines in a pipe."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from statistics import median
from typing import TYPE_CHECKING

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.markup import escape
from rich.status import Status
from rich.table import Table

from regatta.events import (
    Checkpointed,
    Died,
    Ended,
    Evaluated,
    Event,
    Progress,
    Resumed,
    Sampled,
    Started,
    StoodStill,
    Warned,
)
from regatta.metrics import Summary
from regatta.outlook import Share, about, about_bytes

if TYPE_CHECKING:
    from regatta.race.course import Start
    from regatta.race.outcome import Outcome, Standing
    from regatta.report.cells import Table as ReportTable

_IDLE = 0.5  # of a stretch of time: who computes less than that, mostly waits
_SELDOM = 30.0  # seconds from one plain line about a simulation's share to the next


class Display:
    """Watches events; every evaluation is a line, and progress between them a live one."""

    def __init__(self, console: Console, title: str, epochs: float | None = None) -> None:
        self._console = console
        self._title = escape(title)
        self._epochs = epochs
        self._status: Status | None = None
        self._now: dict[int, Progress] = {}
        self._before: dict[int, Progress] = {}
        self._started: Started | None = None
        self._last: Evaluated | None = None
        self._share: Share | None = None
        self._line_due = _SELDOM
        if console.is_terminal:
            self._status = console.status(f"{self._title}: starting")
            self._status.start()

    def __call__(self, events: Sequence[Event | Share]) -> None:
        for event in events:
            if isinstance(event, Share):
                self._hear(event)
            elif isinstance(event, Started):
                self._started = event
            elif isinstance(event, Progress):
                self._before[event.rank] = self._now.get(event.rank, event)
                self._now[event.rank] = event
                self._update()
            elif isinstance(event, Evaluated):
                self._last = event
                self._line(event)
                self._update()
            elif isinstance(event, Sampled):
                written = escape(event.hypothesis) or "nothing"
                text = f"  [dim]{escape(event.reference)} -> {written}[/dim]"
                self._console.print(text, highlight=False, soft_wrap=True)
            elif isinstance(event, Warned):
                text = f"  [yellow]warning:[/yellow] {escape(event.text)}"
                self._console.print(text, highlight=False, soft_wrap=True)
            elif isinstance(event, Checkpointed):
                self._console.print(f"  [dim]checkpoint {escape(event.path)}[/dim]")
            elif isinstance(event, Died):
                self._console.print(f"  [red]{escape(told_death(event))}[/red]", highlight=False)
            elif isinstance(event, StoodStill):
                text = escape(told_stillness(event))
                self._console.print(f"  [yellow]{text}[/yellow]", highlight=False)
            elif isinstance(event, Resumed):
                workers = f" with {_number_of(event.workers)}" if event.workers else ""
                self._console.print(
                    f"  resumed at {event.time:.1f} s, segment {event.segment}{workers}"
                )
            elif isinstance(event, Ended):
                self.close()

    def close(self) -> None:
        if self._status is not None:
            self._status.stop()
            self._status = None

    def _hear(self, share: Share) -> None:
        """On a terminal the live line tells it; in a pipe a line now and then."""
        self._share = share
        self._update()
        if self._status is None and share.seconds >= self._line_due:
            self._line_due = share.seconds + _SELDOM
            self._console.print(f"  {self._simulated()}", highlight=False)

    def _simulated(self) -> str:
        share = self._share
        if share is None or share.left is None:
            return ""
        return (
            f"{share.done:.0%} simulated, {about(share.left)} left at most, "
            f"{about_bytes(share.resident)}"
        )

    def _update(self) -> None:
        if self._status is None or not self._now:
            return
        newest = max(self._now.values(), key=lambda event: event.time)
        done = sum(event.samples for event in self._now.values())
        parts = [text for text in (self._simulated(),) if text]  # a line may be cut off
        parts.append(f"{newest.time:.0f} s, {done:,} samples")
        if newest.loss is not None:
            parts.append(f"loss {newest.loss:.4f}")
        more = (self._goal(), self._rest(), self._ranks(), self._held_up())
        parts += [text for text in more if text]
        self._status.update(f"{self._title}: {', '.join(parts)}")

    def _goal(self) -> str:
        """How the last evaluation stands to the target."""
        started, last = self._started, self._last
        if started is None or last is None or started.metric not in last.results:
            return ""
        text = f"{escape(started.metric)} {last.results[started.metric]:.4f}"
        return text if started.target is None else f"{text} of {started.target:g}"

    def _rest(self) -> str:
        """How long it takes at most, as things go: the target may come sooner."""
        last = self._last if self._share is None else None
        if last is None or self._epochs is None or not 0 < last.epoch < self._epochs:
            return ""
        return f"{last.training * (self._epochs / last.epoch - 1):.0f} s left at most"

    def _ranks(self) -> str:
        """A sign each: computing, or mostly waiting."""
        if not 1 < len(self._now) <= 32:
            return ""
        return "ranks " + "".join(self._sign(rank) for rank in sorted(self._now))

    def _sign(self, rank: int) -> str:
        computes = self._computes(rank)
        return "·" if computes is None else "▮" if computes else "▯"

    def _computes(self, rank: int) -> bool | None:
        """Most of the time, of late; None where there is nothing to tell by."""
        now, before = self._now[rank], self._before[rank]
        passed = now.time - before.time
        return now.computing - before.computing >= _IDLE * passed if passed else None

    def _held_up(self) -> str:
        """By whom, if all others wait for one."""
        computing = {rank: self._computes(rank) for rank in self._now}
        busy = [rank for rank, computes in computing.items() if computes]
        if len(busy) != 1 or len(computing) < 2 or None in computing.values():
            return ""
        return f"the others wait for rank {busy[0]}"

    def _line(self, event: Evaluated) -> None:
        results = "  ".join(f"{name} {value:.4f}" for name, value in event.results.items())
        epochs = "" if self._epochs is None else f" of {self._epochs:g}"
        self._console.print(
            f"  {event.training:8.2f} s  epoch {event.epoch:6.2f}{epochs}  {results}",
            markup=False,
            highlight=False,
            soft_wrap=True,
        )


def _number_of(workers: int) -> str:
    return f"{workers} worker" + ("" if workers == 1 else "s")


def told_death(event: Died) -> str:
    again = f", {event.lost:.1f} s of work are done again" if event.lost else ""
    told = {"go on": "the others go on"}.get(event.then, event.then)
    return f"rank {event.rank} ({event.role}) {event.how} at {event.time:.1f} s: {told}{again}"


def told_stillness(event: StoodStill) -> str:
    if event.then == "went on":
        return f"rank {event.rank} goes on, after {event.seconds:.1f} s"
    how = f"rank {event.rank} has been stopped by a signal for {event.seconds:.1f} s"
    return f"{how}: it is {event.then}"


class Commentary:
    """On a race: a heading a run, with how many are left and about how long they take."""

    def __init__(self, console: Console, silent: bool = False) -> None:
        self._console = console
        self._silent = silent
        self._display: Display | None = None
        self._began = time.monotonic()

    def __call__(self, start: Start) -> Callable[[Sequence[Event | Share]], None]:
        self.close()
        if self._silent:
            return lambda events: None
        lane, run = start.lane, start.run
        workers = _number_of(lane.workers)
        what = f"learning rate {run.optimiser.lr:g}" if start.is_trial else f"seed {run.seed}"
        where = ", simulated" if lane.world == "virtual" else ""
        settings = "".join(f", {name}={value}" for name, value in lane.values.items())
        self._console.print(
            f"[bold]{escape(lane.spec)}[/bold], {workers}{where}{escape(settings)}, {what}  "
            f"[dim]{start.number} of {start.of}{self._left(start)}[/dim]"
        )
        self._display = Display(self._console, f"{lane.spec}, {what}", run.stop.epochs)
        return self._display

    def close(self) -> None:
        if self._display is not None:
            self._display.close()
            self._display = None

    def _left(self, start: Start) -> str:
        done = start.number - 1
        if not done:
            return ""
        left = (time.monotonic() - self._began) / done * (start.of - done)
        return f", {about(left)} left"


def race_table(outcome: Outcome) -> Table:
    goal = "" if outcome.target is None else escape(f"to {outcome.metric} {outcome.target:g}")
    table = Table(title=goal, box=SIMPLE_HEAD, show_edge=False, padding=(0, 1, 0, 0))
    # Of several lines if it must be, rather than that numbers are cut off.
    table.add_column("strategy", overflow="fold", min_width=12)
    for heading in ["workers", "hit", "median", "speedup", "samples/s", "final", "wait"]:
        table.add_column(heading, justify="right", no_wrap=True)
    for standing in outcome.standings:
        sooner, summaries = outcome.speedup(standing), [f.summary for f in standing.finishes]
        waiting = median(summary.waiting_share for summary in summaries)
        table.add_row(
            escape(standing.label),
            str(standing.lane.workers),
            "" if outcome.target is None else f"{standing.reached}/{len(standing.times)}",
            _time(outcome, standing),
            "" if sooner is None else f"{sooner:.2f}",
            f"{standing.throughput:,.0f}",
            "" if standing.final is None else f"{standing.final:.4f}",
            f"{waiting:.0%}",
        )
    return table


def shown(table: ReportTable) -> Table:
    """A table of the report, as a terminal shows it."""
    made = Table(title=escape(table.title), box=SIMPLE_HEAD, show_edge=False, padding=(0, 1, 0, 0))
    for number, heading in enumerate(map(escape, table.headings)):
        if number < table.words:
            made.add_column(heading, overflow="fold", min_width=min(8, len(heading)))
        else:
            made.add_column(heading, justify="right", no_wrap=True)
    for row in table.rows:
        if table.is_grouped and row[0]:
            made.add_section()
        made.add_row(*map(escape, row))
    return made


def _time(outcome: Outcome, standing: Standing) -> str:
    if outcome.target is None:
        return ""
    return "missed" if standing.median == math.inf else f"{standing.median:.2f} s"


def _reached(s: Summary, clock: str) -> str:
    if s.time_to_target is None:
        return "not reached"
    text = f"{s.time_to_target:.2f} {clock}, {s.interpolated_time:.2f} by a straight line"
    if s.last == 1:
        return text
    lasting = "never" if s.lasting_time is None else f"{s.lasting_time:.2f} {clock}"
    return f"{text}; in the median of {s.last} evaluations {lasting}"


def summary_lines(s: Summary) -> list[str]:
    clock = "virtual s" if s.world == "virtual" else "s"
    workers = _number_of(s.workers)
    lines = [
        f"{s.strategy}, {workers}: {s.samples:,} samples in {s.seconds:.2f} {clock} of "
        f"training, {s.throughput:,.0f} samples/s, workers waited {s.waiting_share:.1%} "
        f"(ended by {s.reason})"
    ]
    if s.start:
        lines.append(f"began with {s.start}")
    if s.final is not None:
        best = "" if s.best is None else f", best {s.best:.4f}"
        lines.append(f"{s.metric} {s.final:.4f}{best}")
    if s.target is not None:
        lines.append(f"time to {s.metric} {s.target:g}: {_reached(s, clock)}")
    if s.mean_staleness is not None:
        lines.append(
            f"staleness: mean {s.mean_staleness:.2f}, 95 % at most {s.p95_staleness}, "
            f"most {s.max_staleness}"
        )
    if s.dropped_share:
        lines.append(f"dropped: {s.dropped_share:.1%} of the gradients came too late")
    if s.slowest is not None:
        lines.append(
            f"slowest: rank {s.slowest.rank} computed {s.slowest.times:.2f} times as long a turn "
            "as the other workers"
        )
    if s.deaths:
        ranks = f"{s.deaths} rank" + ("" if s.deaths == 1 else "s")
        lines.append(f"died: {ranks}; {s.lost_seconds:.2f} {clock} of work were done again")
    lines.append(f"exchanged: {s.messages:,} messages, {s.bytes / 1e6:,.1f} MB")
    if s.cpu_cores is not None:
        lines.append(f"a rank kept {s.cpu_cores:.2f} cores busy")
    if s.joules is not None:
        lines.append(f"energy: {s.joules:,.4g} J")
    if s.cost is not None:
        lines.append(f"cost: {s.cost:.4g} at {s.price_per_hour:g} an hour")
    return lines
