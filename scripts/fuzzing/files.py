"""Files that a run or a race has written, or somebody who says so."""

from __future__ import annotations

import io
import json
import shutil
from contextlib import closing
from dataclasses import asdict, replace
from pathlib import Path

from rich.console import Console

from fuzzing import mutate
from fuzzing.target import Target, of_runs
from regatta import choices as of_chance
from regatta import events as of_run
from regatta import folders, lock
from regatta.choices import KINDS, Replayer
from regatta.display import Display, race_table, shown, summary_lines
from regatta.exports import convert
from regatta.fingerprint import run_digest
from regatta.mending import mend
from regatta.metrics import summarise
from regatta.race.entries import FILE, Lane, Race, declared, home_of, label_lanes
from regatta.race.outcome import of_run as outcome_of
from regatta.report.figures import all_figures
from regatta.report.forms import as_csv, as_json, as_markdown
from regatta.report.tables import all_tables
from regatta.start import file_of

_SHOWN = 100  # events on a terminal: a line each takes long, and does not get longer


def events(folder: Path) -> Target:
    """Read as by those who only look and as by a replay; and mended, as before a run goes on."""
    seeds, home = of_runs(folder, "events.jsonl"), folder / "shown"
    home.mkdir()
    path = home / "events.jsonl"

    def feed(data: bytes) -> None:
        path.write_bytes(data)
        log = of_run.read_what_there_is(path)
        assert len(log.complaints) <= 5
        if len(data) % 4 == 0:
            assert len(log.events) <= len(of_run.Tail(path, from_start=True)())
            mend(path)
        if len(data) % 32 == 0:
            _show(home, log)
        summarise(of_run.read(path))

    return Target("events.jsonl", seeds, mutate.lines, feed)


def _show(home: Path, log: of_run.Log) -> None:
    outcome = outcome_of(home)
    terminal = Console(file=io.StringIO(), force_terminal=True, width=100)
    with closing(Display(terminal, "a run", 3.0)) as display:
        display(log.events[:_SHOWN])
    for table in (race_table(outcome), *map(shown, all_tables(outcome))):
        terminal.print(table)
    for standing in outcome.standings:
        summary_lines(standing.finishes[0].summary)
    all_figures(outcome)
    for form in (as_csv, as_json, as_markdown):
        form(outcome).encode()
    for to in ("mlperf", "trace", "dawnbench"):
        convert(home, to, home / to)


def choices(folder: Path) -> Target:
    seeds, path = of_runs(folder, "choices.jsonl"), folder / "choices.jsonl"

    def feed(data: bytes) -> None:
        path.write_bytes(data)
        recorded = of_chance.read(path)
        for rank in range(3):
            replayer = Replayer(recorded, rank)
            replayer.begin(0)
            for kind in KINDS:
                if recorded[0, rank, kind]:
                    replayer.take(kind)
        of_chance.forget_from(path, 1)
        of_chance.read(path)

    return Target("choices.jsonl", seeds, mutate.lines, feed)


def stored(folder: Path) -> Target:
    """Most often with a digest that agrees, as who means harm would see to."""
    seeds, home, again = of_runs(folder, "run.json"), folder / "stored", folder / "again"
    shutil.copytree(folder / "gossip", home)

    def feed(data: bytes) -> None:
        (home / "run.json").write_bytes(_agreeing(data) if len(data) % 4 else data)
        plan, _ = folders.open_plan(home)
        run_digest(plan.run)
        file_of(home)
        if len(data) % 16 == 1:
            folders.write_plan(replace(plan, folder=again), "virtual")
            assert folders.open_plan(again)[0].run == plan.run

    return Target("run.json", seeds, mutate.values, feed)


def _agreeing(data: bytes) -> bytes:
    try:
        values = json.loads(data)
    except (ValueError, RecursionError):
        return data
    if not isinstance(values, dict) or "sha256" not in values:
        return data
    return json.dumps(values | {"sha256": folders._digest(values)}).encode()


def races(folder: Path) -> Target:
    lanes = (
        Lane("single", 1, 8),
        Lane("averaging:period=3", 2, 8, "virtual", "ethernet-1"),
        Lane("ring", 2, 8, settings=("optimiser.lr=0.1",)),
    )
    race = Race("teacher", lanes, (0, 1), 0.5, 1, 2, ("stop.epochs=1",))
    values = {"regatta_race": 3, "command": "regatta race", "environment": {}} | asdict(race)
    home = folder / "race"
    home.mkdir()

    def feed(data: bytes) -> None:
        (home / FILE).write_bytes(data)
        found, _ = declared(home)
        label_lanes(found.lanes)
        for lane in found.lanes:
            for seed in found.seeds[:3]:
                assert home_of(home, lane, seed).resolve().is_relative_to(home.resolve() / "runs")

    return Target("race.json", [json.dumps(values).encode()], mutate.values, feed)


def locks(folder: Path) -> Target:
    """Whatever it says: a file that nobody has locked keeps nobody out."""
    owner = lock.Owner("regatta train teacher", 4711, "anna", 1.7e9)
    home = folder / "locked"
    home.mkdir()

    def feed(data: bytes) -> None:
        (home / lock.FILE).write_bytes(data)
        with (home / lock.FILE).open("rb") as file:
            found = lock._owner(file.fileno())
        with lock.held(home):
            pass
        if found is None:
            raise ValueError("nobody has signed")
        complaint = lock._complaint(home, found)
        assert complaint.isprintable()
        assert len(complaint) < 2000

    return Target("lock.json", [json.dumps(asdict(owner)).encode()], mutate.values, feed)
