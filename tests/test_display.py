"""What a person sees: on a terminal a live line, in a pipe plain lines."""

from __future__ import annotations

import io
from dataclasses import replace

import pytest
from racing import events_of, make_race, straight, write_events
from rich.console import Console

from regatta.config import Run
from regatta.display import Commentary, Display, race_table, summary_lines
from regatta.events import Progress
from regatta.metrics import summarise
from regatta.race.course import Start
from regatta.race.entries import Lane
from regatta.race.outcome import of_race
from regatta.watching import look_on

LANE = Lane("ring", 2, 32)


def a_console(terminal=False, width=120):
    return Console(file=io.StringIO(), force_terminal=terminal, width=width, highlight=False)


def shown(console):
    return console.file.getvalue()


def progress(rank, time, computing):
    return Progress(rank=rank, time=time, turns=1, samples=100, loss=0.25, computing=computing,
                    waiting=0.0, messages=0, bytes=0)  # fmt: skip


def live_line(*events):
    """The text of the live line after these events."""
    display = Display(a_console(terminal=True), "ring", epochs=8)
    display(list(events))
    text = str(display._status.status)
    display.close()
    return text


def test_every_evaluation_is_a_line_in_a_pipe():
    console = a_console()
    Display(console, "ring", epochs=4)(list(events_of(straight(20.0), LANE)))
    lines = shown(console).splitlines()
    assert len(lines) == 10
    assert lines[-1] == "     20.00 s  epoch   4.00 of 4  accuracy 0.9000  loss 0.1000"


def test_the_live_line_tells_accuracy_target_rest_and_ranks():
    started, *_, evaluated = list(events_of([(10.0, 0.5)], LANE, ended=False))
    text = live_line(
        started, progress(0, 1.0, 0.0), progress(1, 1.0, 0.0), evaluated,
        progress(0, 2.0, 0.9), progress(1, 2.0, 0.1),
    )  # fmt: skip
    assert "accuracy 0.5000 of 0.9" in text
    assert "loss 0.2500" in text
    assert "30 s left at most" in text  # two of eight epochs took ten seconds
    assert "ranks ▮▯" in text


def test_very_many_ranks_are_not_listed():
    assert "ranks" not in live_line(*(progress(rank, 1.0, 0.0) for rank in range(64)))


def test_a_race_says_how_many_runs_are_left():
    console = a_console()
    commentary = Commentary(console)
    run = replace(Run(), seed=3)
    commentary(Start(LANE, run, 1, 4))
    commentary(Start(LANE, run, 3, 4))
    commentary(Start(LANE, run, 4, 4, is_trial=True))
    commentary.close()
    first, third, trial = shown(console).splitlines()
    assert first == "ring, 2 workers, seed 3  1 of 4"
    assert third.startswith("ring, 2 workers, seed 3  3 of 4, a few seconds left")
    assert trial.startswith("ring, 2 workers, learning rate 0.1  4 of 4")


def test_a_silent_commentary_says_nothing():
    console = a_console()
    Commentary(console, silent=True)(Start(LANE, Run(), 1, 4))(list(events_of(straight(1.0), LANE)))
    assert shown(console) == ""


def test_the_table_of_a_race_fits_eighty_columns(tmp_path):
    lanes = {Lane(spec, 2, 32): {0: straight(10.0), 1: straight(11.0)} for spec in
             ("averaging:period=16", "parameter-server")}  # fmt: skip
    make_race(
        tmp_path / "race", lanes | {Lane("single", 1, 32): {0: straight(None), 1: straight(None)}}
    )
    console = a_console(width=80)
    console.print(race_table(of_race(tmp_path / "race")))
    text = shown(console)
    assert "…" not in text
    assert "missed" in text
    assert "2/2" in text


@pytest.mark.parametrize("last", [1, 3])
def test_a_summary_names_what_was_reached(last):
    summary = summarise(list(events_of(straight(20.0), LANE, last=last, price=3.6)))
    text = "\n".join(summary_lines(summary))
    assert "time to accuracy 0.9: 20.00 s, 20.00 by a straight line" in text
    assert ("in the median of 3 evaluations never" in text) is (last == 3)
    assert "a rank kept 0.75 cores busy" in text
    assert "cost: 0.025 at 3.6 an hour" in text


def test_who_looks_on_sees_what_has_happened(tmp_path):
    write_events(tmp_path / "run", events_of(straight(20.0), LANE))
    console = a_console()
    look_on(tmp_path / "run", console)
    assert shown(console).count("accuracy") == 10


def test_who_looks_on_at_a_race_sees_every_run(tmp_path):
    make_race(tmp_path / "race", {LANE: {0: straight(1.0), 1: straight(2.0)}})
    console = a_console()
    look_on(tmp_path / "race", console)
    assert shown(console).count("seed-") == 2
    assert shown(console).count("accuracy") == 20
