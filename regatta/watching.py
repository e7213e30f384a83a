"""Look on at a run, or at all runs of a race, that were started elsewhere."""

from __future__ import annotations

import json
import time
from pathlib import Path

from rich.console import Console

from regatta.display import Display
from regatta.events import Ended, Event, Resumed, Started, Tail
from regatta.race.entries import FILE, declared, home_of, trial_of
from regatta.race.tuning import rates_of

_EVERY_SECONDS = 0.5


def look_on(folder: Path, console: Console) -> None:
    """Show what has happened so far and what happens, until the run or the race ends."""
    if not folder.is_dir():
        raise ValueError(f"{folder} does not exist: name the folder of a run or a race")
    if not (folder / FILE).exists():
        _look_on_run(folder, console)
        return
    race, _ = declared(folder)
    left = {home_of(folder, lane, seed) for lane, seed in race.starts()}
    left |= {trial_of(folder, lane, lr) for lane in race.lanes for lr in rates_of(race, lane)}
    while left:
        begun = sorted((home for home in left if _has_begun(home)), key=_age)
        for home in begun:
            console.print(f"[bold]{home.relative_to(folder)}[/bold]")
            _look_on_run(home, console)
            left.remove(home)
        if not begun:
            time.sleep(_EVERY_SECONDS)


def _has_begun(home: Path) -> bool:
    return (home / "events.jsonl").exists()


def _age(home: Path) -> float:
    return (home / "events.jsonl").stat().st_mtime


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
            if _is_over(events):
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
        values = json.loads((folder / "run.json").read_text())
        return float(values["run"]["stop"]["epochs"])
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _is_over(events: list[Event]) -> bool:
    """An end that was gone on from is none."""
    last = next((e for e in reversed(events) if isinstance(e, Ended | Resumed)), None)
    return isinstance(last, Ended)
