"""Look on at a run, or at all runs of a race, that were started elsewhere."""

from __future__ import annotations

import time
from pathlib import Path

from rich.console import Console
from rich.markup import escape

from regatta.display import Display
from regatta.events import Died, Ended, Event, Resumed, Started, Tail
from regatta.folders import read_stored
from regatta.race.course import FAILURE
from regatta.race.entries import FILE, declared, home_of

_EVERY_SECONDS = 0.5


def look_on(folder: Path, console: Console) -> None:
    """Show what has happened so far and what happens, until the run or the race ends."""
    if not folder.is_dir():
        raise ValueError(f"{folder} does not exist: name the folder of a run or a race")
    if (folder / FILE).exists():
        _look_on_race(folder, console)
    elif any((folder / name).exists() for name in ("run.json", "events.jsonl")):
        _look_on_run(folder, console)
    else:
        raise ValueError(f"{folder} holds neither a run nor a race")


def _look_on_race(folder: Path, console: Console) -> None:
    """Run by run, trials of learning rates among them, until every lane has run every seed."""
    race, _ = declared(folder)
    left = {home_of(folder, lane, seed) for lane, seed in race.starts()}
    seen: set[Path] = set()
    while left:
        found = {path.parent for path in folder.glob("*/*/*/events.jsonl")} - seen
        for home in sorted(found, key=lambda home: (home / "events.jsonl").stat().st_mtime):
            console.print(f"[bold]{escape(str(home.relative_to(folder)))}[/bold]")
            _look_on_run(home, console)
            seen.add(home)
            left.discard(home)
        left -= {home for home in left if (home / FAILURE).exists()}
        if left and not found:
            time.sleep(_EVERY_SECONDS)


def _look_on_run(folder: Path, console: Console) -> None:
    tail = Tail(folder / "events.jsonl", from_start=True)
    display: Display | None = None
    try:
        while True:
            events = tail()
            if display is None:
                display = _display(folder, events, console)
            if display is not None:
                display(events)
            if _is_over(events) or (folder / FAILURE).exists():
                return
            time.sleep(_EVERY_SECONDS)
    finally:
        if display is not None:
            display.close()


def _display(folder: Path, events: list[Event], console: Console) -> Display | None:
    started = next((e for e in events if isinstance(e, Started)), None)
    if started is None:
        return None
    workers = f"{started.workers} worker" + ("" if started.workers == 1 else "s")
    return Display(console, f"{started.spec or started.strategy} on {workers}", _epochs(folder))


def _epochs(folder: Path) -> float | None:
    try:
        return float(read_stored(folder)["run"]["stop"]["epochs"])
    except (ValueError, KeyError, TypeError, OverflowError):
        return None


def _is_over(events: list[Event]) -> bool:
    """An end that was gone on from is none."""
    kinds = (Ended, Resumed, Started, Died)
    last = next((e for e in reversed(events) if isinstance(e, kinds)), None)
    return isinstance(last, Ended) or (isinstance(last, Died) and last.then == "stop")
