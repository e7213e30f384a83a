"""Times to levels of several results, from hand-made events of races on speech."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from racing import events_of, write_events
from typer.testing import CliRunner

from regatta.cli import app
from regatta.events import Evaluated, Started
from regatta.race.entries import VIRTUAL, Lane, Race, declare, home_of
from regatta.race.outcome import of_race, of_run
from regatta.report import forms, tables
from regatta.report.page import html
from regatta.report.tta import asked_levels, levels_of, reached_levels, tta

ONE, TWO, RING = Lane("single", 1, 32), Lane("all-reduce", 2, 32), Lane("ring", 2, 32)
HOUR = 36.0  # of money an hour: 0.01 a second

Curve = list[tuple[float, float, float]]  # seconds of training, wer, cer


def falling(step: float, *levels: tuple[float, float]) -> Curve:
    return [(step * n, wer, cer) for n, (wer, cer) in enumerate(levels, 1)]


PATH = (1.0, 0.9), (0.8, 0.7), (0.6, 0.5), (0.4, 0.3), (0.2, 0.1)


def spoken(curve: Curve, lane: Lane, seed: int = 0, price: float | None = None, **more: object):
    """Events of a run whose evaluations found word and letter errors; one takes half a second."""
    found = {time: {"wer": wer, "cer": cer, "loss": 100 * wer} for time, wer, cer in curve}
    made = events_of([(time, 1 - wer) for time, wer, _ in curve], lane, seed, price=price,
                     target=None, **more)  # fmt: skip
    for event in made:
        if isinstance(event, Started):
            event = replace(event, metric="wer", higher_is_better=False)
        elif isinstance(event, Evaluated):
            event = replace(event, results=found[event.training])
        yield event


def race(folder: Path, curves: dict[Lane, list[Curve]], last: int = 1, price: float | None = None):
    seeds = tuple(range(max(map(len, curves.values()))))
    folder.mkdir()
    declare(Race("speech", tuple(curves), seeds, None, last), folder, "regatta race speech")
    for lane, of_seeds in curves.items():
        for seed, curve in enumerate(of_seeds):
            events = spoken(curve, lane, seed, price, last=last)
            write_events(home_of(folder, lane, seed), events)
    return of_race(folder)


@pytest.fixture
def known(tmp_path):
    """Three seeds; one worker takes 10 s a step, two 6 s and stop half-way, a ring 5 s in one."""
    alone = [falling(10.0 + seed, *PATH) for seed in range(3)]
    two = [falling(6.0 + seed, *PATH[:3]) for seed in range(3)]
    ring = [falling(5.0, *PATH), falling(5.0, *PATH[:2]), falling(5.0, *PATH[:2])]
    return race(tmp_path / "race", {ONE: alone, TWO: two, RING: ring}, price=HOUR)


def test_times_relative_times_and_costs(known):
    asked = asked_levels(known, ["wer=0.6,0.2", "cer=0.5"])
    table = tta(replace(known, levels=asked))
    assert table.headings == ["strategy", "", "wer 0.6", "wer 0.2", "cer 0.5"]
    # The middle seed of one worker: 11 s a step; the third step ends after three half seconds.
    assert table.rows == [
        ["single", "s", "33.00", "55.00", "33.00"],
        ["", "relative", "100%", "100%", "100%"],
        ["", "cost", "0.345", "0.575", "0.345"],
        ["all-reduce", "s", "21.00", "–", "21.00"],
        ["", "relative", "64%", "", "64%"],
        ["", "cost", "0.225", "–", "0.225"],
        ["ring", "s", "–", "–", "–"],
        ["", "relative", "", "", ""],
        ["", "cost", "–", "–", "–"],
    ]


def test_without_prices_there_are_no_costs(tmp_path):
    outcome = race(tmp_path / "race", {ONE: [falling(10.0, *PATH)]})
    assert [row[1] for row in tta(outcome).rows] == ["s", "relative"]
    assert {reached.cost for reached in reached_levels(outcome)} == {None}


def test_long_times_are_told_in_minutes(tmp_path):
    outcome = race(tmp_path / "race", {ONE: [falling(600.0, *PATH)]})
    outcome = replace(outcome, levels=asked_levels(outcome, ["wer=0.9,0.2"]))
    assert tta(outcome).rows[0] == ["single", "min", "20.0", "50.0"]


def test_levels_are_round_and_were_reached(known):
    """From 1 (wer) and 0.9 (cer) on; the last of each is the best that a lane had in the median."""
    found = [(level.metric, level.target.value) for level in levels_of(known)]
    assert found == [("wer", 0.8), ("wer", 0.6), ("wer", 0.4), ("wer", 0.2),
                     ("cer", 0.8), ("cer", 0.6), ("cer", 0.4), ("cer", 0.2)]  # fmt: skip


def test_levels_that_rise_are_found_too(tmp_path):
    events = events_of([(10.0, 0.31), (20.0, 0.42), (30.0, 0.58)], ONE, target=None)
    write_events(tmp_path / "run", events)
    outcome = of_run(tmp_path / "run")
    levels = levels_of(outcome)
    assert [level.target.value for level in levels] == [0.4, 0.5]
    assert {level.metric for level in levels} == {"accuracy"}
    assert all(level.target.higher_is_better for level in levels)


def test_a_level_must_last(tmp_path):
    """TTA(0.5, 3): the median of three evaluations."""
    curve = falling(10.0, (1.0, 1.0), (0.4, 0.4), (0.9, 0.9), (0.45, 0.4), (0.45, 0.4))
    outcome = race(tmp_path / "race", {ONE: [curve]}, last=3)
    outcome = replace(outcome, levels=asked_levels(outcome, ["wer=0.5"]))
    assert [reached.seconds for reached in reached_levels(outcome)] == [40.0]


def test_worlds_have_a_first_lane_each(tmp_path):
    virtual = Lane("ring", 2, 32, VIRTUAL)
    outcome = race(tmp_path / "race", {ONE: [falling(10.0, *PATH)], virtual: [falling(2.0, *PATH)]})
    outcome = replace(outcome, levels=asked_levels(outcome, ["wer=0.2"]))
    assert [reached.relative for reached in reached_levels(outcome)] == [1.0, 1.0]


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("wer", "is not of the form wer=0.5,0.4"),
        ("wer=a", "numbers with commas between them"),
        ("wer=nan", "numbers with commas between them"),
        ("were=0.5", "did you mean wer?"),
    ],
)
def test_levels_that_make_no_sense_are_refused(known, text, complaint):
    with pytest.raises(ValueError, match=complaint.replace("?", r"\?")):
        asked_levels(known, [text])


def test_a_name_that_tells_no_direction_needs_one(tmp_path):
    events = [
        replace(e, results=e.results | {"sparsity": 0.1}) if isinstance(e, Evaluated) else e
        for e in spoken(falling(10.0, *PATH), ONE)
    ]
    write_events(tmp_path / "run", events)
    outcome = of_run(tmp_path / "run")
    with pytest.raises(ValueError, match=r"Write sparsity>=\.\.\. or sparsity<="):
        asked_levels(outcome, ["sparsity=0.1"])
    (level,) = asked_levels(outcome, ["sparsity>=0.1"])
    assert level.target.higher_is_better
    assert "sparsity" not in {level.metric for level in levels_of(outcome)}


def test_all_forms_of_the_report_have_it(known):
    assert "## Time to levels of wer and cer" in forms.as_markdown(known)
    assert "Time to levels of wer and cer" in html(known)
    levels = json.loads(forms.as_json(known))["levels"]
    assert levels[0] == {"lane": "single", "metric": "wer", "level": 0.8, "seconds": 22.0,
                         "relative": 1.0, "cost": 0.23}  # fmt: skip
    assert levels[-1]["seconds"] is None


def test_one_metric_on_its_way_to_a_target_is_told_once(tmp_path):
    write_events(tmp_path / "run", events_of([(1.0, 0.1), (2.0, 0.95)], ONE))
    titles = [table.title for table in tables.all_tables(of_run(tmp_path / "run"))]
    assert "Time to several levels of accuracy" in titles
    assert "Time to levels of accuracy" not in titles


def test_a_run_that_learnt_nothing_has_no_levels(tmp_path):
    write_events(tmp_path / "run", spoken(falling(10.0, (1.0, 1.0), (1.0, 1.0)), ONE))
    assert tta(of_run(tmp_path / "run")) is None
    result = CliRunner().invoke(app, ["report", str(tmp_path / "run"), "--tta"])
    assert "no evaluation was better than the first" in str(result.exception)


def test_the_command_prints_it(known, tmp_path):
    def told(*options: str) -> str:
        given = ["report", str(tmp_path / "race"), "--tta", "--level", "wer=0.6", *options]
        result = CliRunner().invoke(app, given)
        assert result.exit_code == 0, result.exception
        return result.stdout

    assert "| single | s | 33.00 |" in told("--markdown")
    assert "33.00" in told()
    assert not (tmp_path / "race" / "report.html").exists()
    result = CliRunner().invoke(app, ["report", str(tmp_path / "race"), "--tta", "--csv"])
    assert "--tta prints one table" in str(result.exception)
