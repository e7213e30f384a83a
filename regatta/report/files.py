"""From a folder to a file: which kind of folder it is, and how reports are written."""

from __future__ import annotations

from pathlib import Path

from regatta.aside import write_aside
from regatta.race.entries import FILE
from regatta.race.outcome import Outcome, of_race, of_run


def outcome_of(folder: Path) -> Outcome:
    """Of a race or a run, whichever the folder holds."""
    if (folder / FILE).exists():
        return of_race(folder)
    if (folder / "events.jsonl").exists() or (folder / "run.json").exists():
        return of_run(folder)
    raise ValueError(
        f"{folder} holds neither a run nor a race: name a folder with {FILE} or events.jsonl"
    )


def write_html(outcome: Outcome, path: Path) -> Path:
    from regatta.report.page import html

    return write_text(path, html(outcome))


def write_text(path: Path, text: str) -> Path:
    """Aside first, so that nobody ever sees half a report."""
    try:
        write_aside(path, text.encode(), durable=False)
    except OSError as error:
        raise ValueError(f"{error.strerror}: choose another --out") from None
    return path
