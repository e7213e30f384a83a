"""Settings of several values in a race: lanes, folders, labels, and the tables of Hu et al."""

from __future__ import annotations

import csv
import io
import json
import re
from dataclasses import replace
from statistics import fmean, stdev

import pytest
from hypothesis import given
from hypothesis import strategies as st
from racing import events_of, make_race, straight
from rich.console import Console
from typer.testing import CliRunner

from regatta import config
from regatta.cli import app
from regatta.config import Run, assign, full_name, short_name
from regatta.display import race_table, shown
from regatta.events import Ended, Evaluated, RankEnded, read
from regatta.learn.optimisers import Adam
from regatta.metrics import summarise
from regatta.race.course import enter, run_all
from regatta.race.entries import VIRTUAL, Lane, Race, declared, home_of, label_lanes, lanes_of
from regatta.race.grid import Grid, grid_of
from regatta.race.outcome import of_race
from regatta.race.verdict import verdict
from regatta.recipes import load
from regatta.report import forms, tables
from regatta.report.combinations import combinations, families, rows_of
from regatta.report.page import html
from regatta.statistics import mean_interval
from regatta.tasks import registry

SMALL = ["train=512", "dev=128", "stop.epochs=2", "recording.spans=20", "stop.target=none"]
TEACHER = load("teacher")


def quiet(start):
    return lambda events: None


def cells(table):
    return [dict(zip(table.headings, row, strict=True)) for row in table.rows]


# -- names ------------------------------------------------------------------------------------


def test_a_field_of_the_task_needs_no_prefix():
    assert assign(TEACHER, ["hidden=16,8"]).task.hidden == (16, 8)
    assert assign(TEACHER, ["hidden=16,8"]) == assign(TEACHER, ["task.hidden=16,8"])
    assert assign(TEACHER, ["task=vectors", "sizes=3,4"]).task.sizes == (3, 4)


def test_what_the_run_has_too_is_the_runs():
    changed = assign(TEACHER, ["seed=7"])
    assert (changed.seed, changed.task.seed) == (7, TEACHER.task.seed)


def test_an_unknown_name_is_told_both_kinds_that_there_are():
    with pytest.raises(ValueError, match=r"did you mean hidden\? .*workers.*teacher_hidden"):
        assign(TEACHER, ["hiden=3"])


@pytest.mark.parametrize("task", registry().values())
def test_short_names_lead_back_to_where_they_came_from(task):
    run = replace(Run(), task=task())
    paths = [f"task.{f.name}" for f in config.fields(task)] + ["stop.epochs", "optimiser", "seed"]
    for name in paths:
        assert full_name(run, short_name(name)) == name
    assert short_name("task.seed") == "task.seed"


# -- values -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "combinations"),
    [
        ([], [()]),
        (["optimiser.lr=0.1"], [()]),
        (["optimiser.lr=0.1, 0.2"], [("optimiser.lr=0.1",), ("optimiser.lr=0.2",)]),
        (["optimiser.lr=0.1;0.2"], [("optimiser.lr=0.1",), ("optimiser.lr=0.2",)]),
        (["hidden=512,512"], [()]),
        (["hidden=512,512;256"], [("task.hidden=512,512",), ("task.hidden=256",)]),
        (["optimiser=sgd,adam"], [("optimiser=sgd",), ("optimiser=adam",)]),
        (["optimiser=sgd:lr=0.1,momentum=0.9"], [()]),
        (
            ["optimiser=sgd:lr=0.1,momentum=0.9;adam"],
            [("optimiser=sgd:lr=0.1,momentum=0.9",), ("optimiser=adam",)],
        ),
        (
            ["hidden=8;16", "threads=1,2"],
            [
                ("task.hidden=8", "threads=1"), ("task.hidden=8", "threads=2"),
                ("task.hidden=16", "threads=1"), ("task.hidden=16", "threads=2"),
            ],
        ),
    ],
)  # fmt: skip
def test_several_values_are_all_combined(settings, combinations):
    assert list(grid_of(TEACHER, settings).combinations) == combinations


@pytest.mark.parametrize(
    ("settings", "complaint"),
    [
        (["strategy=ring,single"], "in a race use --strategies"),
        (["strategy.period=4"], "in a race use --strategies"),
        (["workers=1,2"], "in a race use --workers"),
        (["minibatch=32,64"], "in a race use --minibatch"),
        (["seed=1,2"], "in a race use --seed and --seeds"),
        (["stop.target=0.5,0.6"], "give one value with --target"),
        (["stop.last=1,2"], "give one value with --last"),
        (["task=teacher;vectors"], "race each task alone"),
        (["optimiser.lr=0.1,x"], "optimiser.lr='x': expected a value of type float"),
        (["optimiser=sgd,adamm"], "did you mean adam"),
        (["optimiser.lr=0.1,,0.2"], "a value is missing"),
        (["hidden=8;"], "a value is missing"),
        (["optimiser.lr=0.1,1e-1"], "1e-1 is there twice"),
        (["optimiser.lr=0.1,0.2", "optimiser.lr=0.3"], "given twice"),
        (["stop.epoch=1,2"], "did you mean epochs"),
        (["stop=1,2"], "set one of its parts"),
        (["workers.more=1,2"], "workers has no parts"),
        (["optimiser.lr"], "not of the form name=value"),
        (["recording.usage=-1,1"], "must be 0 or more"),
    ],
)
def test_what_cannot_vary_is_refused(settings, complaint):
    with pytest.raises(ValueError, match=complaint):
        grid_of(TEACHER, settings)


def test_settings_keep_their_order():
    """A learning rate that is given after the optimiser is that optimiser's."""
    grid = grid_of(TEACHER, ["optimiser=sgd;adam", "optimiser.lr=0.01"])
    assert grid.settings == ("optimiser=sgd;adam", "optimiser.lr=0.01")
    runs = grid.runs(TEACHER)
    assert [run.optimiser.lr for run in runs] == [0.01, 0.01]
    assert runs[1].optimiser == Adam(lr=0.01)
    lanes = lanes_of(TEACHER, ["single"], [1], combinations=grid.combinations)
    race = Race("teacher", lanes, settings=grid.settings)
    assert [race.run(lane, 0).optimiser for lane in lanes] == [run.optimiser for run in runs]


def test_an_impossible_combination_is_named():
    grid = grid_of(TEACHER, ["optimiser=sgd;adam", "optimiser.momentum=0.9"])
    with pytest.raises(ValueError, match="optimiser=adam cannot be raced: unknown part"):
        grid.runs(TEACHER)


def test_values_that_are_overridden_are_no_lanes():
    grid = grid_of(TEACHER, ["optimiser.lr=0.1,0.2", "optimiser=adam"])
    with pytest.raises(ValueError, match="are the same run"):
        grid.runs(TEACHER)


@pytest.mark.parametrize(
    ("setting", "says"),
    [
        ("hidden=16,16;8", "pipeline, hidden=8 cannot start: .*every worker a layer"),
        ("train=4096,64", "single, train=64 cannot start: .*smaller minibatch"),
        ("hidden=8,-1;8", "single, hidden=8,-1 cannot start: "),
    ],
)
def test_a_lane_that_cannot_start_is_named_before_anything_is_written(tmp_path, setting, says):
    grid = grid_of(TEACHER, ["dev=128", setting])
    lanes = lanes_of(TEACHER, ["single", "pipeline"], [4], combinations=grid.combinations)
    with pytest.raises(ValueError, match=says):
        enter(Race("teacher", lanes, settings=grid.settings), tmp_path / "race", "x")
    assert not (tmp_path / "race").exists()


# -- lanes ------------------------------------------------------------------------------------


def test_one_worker_of_a_strategy_stands_beside_single():
    lanes = lanes_of(TEACHER, ["single", "all-reduce"], [1, 2])
    assert [(lane.spec, lane.workers) for lane in lanes] == [
        ("single", 1), ("all-reduce", 1), ("all-reduce", 2),
    ]  # fmt: skip
    assert label_lanes(lanes) == ["single", "all-reduce, 1 worker", "all-reduce, 2 workers"]


def test_labels_show_settings_without_the_task():
    settings = [("task.hidden=8,8",), ("task.hidden=16",)]
    lanes = [Lane("ring", 2, 32, settings=own) for own in settings]
    assert label_lanes(lanes) == ["ring, hidden=8,8", "ring, hidden=16"]
    assert label_lanes(lanes[:1]) == ["ring"]
    assert [lane.name for lane in lanes] == ["ring-2w-32m-hidden=8,8", "ring-2w-32m-hidden=16"]
    assert Lane("ring", 2, 32, settings=("task.seed=1",)).values == {"task.seed": "1"}


texts = st.text(st.characters(codec="utf-8", exclude_characters="=;"), min_size=1, max_size=80)


@given(first=texts, second=texts)
def test_other_settings_are_other_folders(first, second):
    lanes = [Lane("ring", 2, 32, settings=(f"task.file={value}",)) for value in (first, second)]
    names = [lane.name for lane in lanes]
    assert (names[0] == names[1]) == (first == second)
    for name in names:
        assert len(name) < 100
        assert re.fullmatch(r"[A-Za-z0-9._=,+-]+", name)


def test_a_declaration_keeps_what_lanes_have_of_their_own(tmp_path):
    lanes = tuple(Lane("ring", 2, 32, settings=(f"optimiser.lr={lr}",)) for lr in (0.1, 0.2))
    curves = {lane: {0: straight(10.0)} for lane in lanes}
    make_race(tmp_path / "race", curves)
    assert json.loads((tmp_path / "race" / "race.json").read_text())["regatta_race"] == 3
    assert declared(tmp_path / "race")[0].lanes == lanes


def test_declarations_from_before_there_were_settings_still_open(tmp_path):
    folder = tmp_path / "race"
    make_race(folder, {Lane("ring", 2, 32): {0: straight(10.0)}})
    values = json.loads((folder / "race.json").read_text())
    del values["lanes"][0]["settings"]
    (folder / "race.json").write_text(json.dumps(values | {"regatta_race": 2}))
    assert of_race(folder).standings[0].lane == Lane("ring", 2, 32)


# -- a race that runs -------------------------------------------------------------------------


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Two networks, two minibatches, one and two workers; three seeds."""
    grid = grid_of(TEACHER, [*SMALL, "hidden=8;16,16"])
    lanes = lanes_of(TEACHER, ["single", "all-reduce"], [2], [32, 64], (VIRTUAL,),
                     combinations=grid.combinations)  # fmt: skip
    race = Race("teacher", lanes, (0, 1, 2), settings=grid.settings)
    home = tmp_path_factory.mktemp("grid") / "race"
    enter(race, home, "regatta race")
    run_all(race, home, quiet)
    return home


def test_every_lane_is_run_with_its_own_settings(folder):
    race, _ = declared(folder)
    assert len(race.lanes) == 8
    for lane in race.lanes:
        stored = json.loads((home_of(folder, lane, 0) / "run.json").read_text())["run"]
        assert ",".join(map(str, stored["task"]["hidden"])) == lane.values["hidden"]
        assert (stored["minibatch"], stored["workers"]) == (lane.minibatch, lane.workers)
        assert stored["task"]["train"] == 512


def test_the_table_says_what_the_events_say(folder):
    outcome = of_race(folder)
    shown = cells(combinations(outcome))
    varying = ("strategy", "hidden", "workers", "minibatch")
    assert [tuple(row[name] for name in varying) for row in shown] == [
        ("single", "8", "1", "32"), ("single", "8", "1", "64"),
        ("single", "16,16", "1", "32"), ("single", "16,16", "1", "64"),
        ("all-reduce", "8", "2", "32"), ("all-reduce", "8", "2", "64"),
        ("all-reduce", "16,16", "2", "32"), ("all-reduce", "16,16", "2", "64"),
    ]  # fmt: skip
    first = None
    for row, lane in zip(shown, declared(folder)[0].lanes, strict=True):
        times, finals, bests = [], [], []
        for seed in range(3):
            events = read(home_of(folder, lane, seed) / "events.jsonl")
            ended = next(e for e in events if isinstance(e, Ended))
            samples = sum(e.samples for e in events if isinstance(e, RankEnded))
            times.append(ended.training / (samples / 512))
            results = [e.results["accuracy"] for e in events if isinstance(e, Evaluated)]
            finals.append(100 * results[-1])
            bests.append(100 * max(results))
        first = first or fmean(times)
        assert row["s/epoch"] == f"{fmean(times):.4f}"
        assert row["relative"] == f"{fmean(times) / first:.2f}x"
        width = 2.919986 * stdev(finals) / 3**0.5  # Student's, 90 %, two degrees of freedom
        assert row["accuracy (%)"] == f"{fmean(finals):.2f} ± {width:.2f}"
        assert row["best"] == f"{fmean(bests):.2f}"
    # 1e-4 s a sample: 512 samples take one worker 0.0512 s, and two little more than half of it.
    assert shown[0]["s/epoch"] == "0.0512"
    assert 0.50 <= float(shown[4]["relative"].rstrip("x")) < 0.53


def test_two_workers_of_half_the_minibatch_learn_what_one_learns(folder):
    """So the tables must agree: the mean gradient of 2 x 32 is that of 64."""
    rows = {(row.lane.spec, row.lane.minibatch, row.lane.settings): row
            for row in rows_of(of_race(folder))}  # fmt: skip
    for settings in (("task.hidden=8",), ("task.hidden=16,16",)):
        alone, together = rows["single", 64, settings], rows["all-reduce", 32, settings]
        assert together.final.value == pytest.approx(alone.final.value, abs=0.01)


def test_a_grid_goes_on_where_it_was(folder):
    race, _ = declared(folder)
    (home_of(folder, race.lanes[5], 1) / "events.jsonl").unlink()
    again = []
    run_all(race, folder, lambda start: again.append(start.lane) or quiet(start))
    assert again == [race.lanes[5]]
    assert not of_race(folder).complaints


# -- hand-made races --------------------------------------------------------------------------


TWO = "ring with 2 workers"
RELU, TANH = ("task.activation=relu",), ("task.activation=tanh",)


def a_grid(folder, lanes, seeds=1, seconds=40.0):
    make_race(folder, {
        lane: {seed: straight(seconds / lane.workers + n + seed) for seed in range(seeds)}
        for n, lane in enumerate(lanes)
    })  # fmt: skip
    return of_race(folder)


def test_known_times_and_results(tmp_path):
    """1000 samples an epoch, 100 a second and worker; all runs end at the target, 90 %."""
    lanes = [Lane("single", 1, 256, settings=RELU), Lane("single", 1, 256, settings=TANH),
             Lane("all-reduce", 2, 256, settings=RELU)]  # fmt: skip
    outcome = a_grid(tmp_path / "race", lanes)
    table = combinations(outcome)
    assert table.headings == ["strategy", "activation", "workers", "minibatch", "s/epoch",
                              "relative", "accuracy (%)", "best"]  # fmt: skip
    assert list(table.rows) == [
        ("single", "relu", "1", "256", "10.00", "1.00x", "90.00", "90.00"),
        ("single", "tanh", "1", "256", "10.00", "1.00x", "90.00", "90.00"),
        ("all-reduce", "relu", "2", "256", "5.00", "0.50x", "90.00", "90.00"),
    ]
    assert "race without one (--set stop.target=none)" in table.note


def test_the_second_form_is_grouped(tmp_path):
    lanes = [Lane("single", 1, 256), *(Lane("all-reduce", 6, m) for m in (512, 1024, 2048))]
    table = families(a_grid(tmp_path / "race", lanes, seeds=2))
    assert table.headings == ["", "minibatch", "accuracy (%)", "s/epoch"]
    assert [row[:2] for row in table.rows] == [
        ["baseline with 1 worker", "256"],
        ["all-reduce with 6 workers", "512"], ["", "1024"], ["", "2048"],
    ]  # fmt: skip
    assert table.rows[1][2:] == ["90.00 ± 0.00", "1.67"]
    page = html(of_race(tmp_path / "race"))
    section = page[page.index("time of an epoch, by minibatch") :].partition("</section>")[0]
    assert section.count("<tbody>") == 2


def rewrite(folder, lanes, old, new):
    """What the events of a race say."""
    for lane in lanes:
        path = home_of(folder, lane, 0) / "events.jsonl"
        path.write_text(path.read_text().replace(old, new))


def test_long_epochs_are_told_in_hours(tmp_path):
    lanes = [Lane("single", 1, 256), Lane("single", 1, 512)]
    a_grid(tmp_path / "race", lanes)
    rewrite(tmp_path / "race", lanes, '"train_samples":1000', '"train_samples":1000000')
    outcome = of_race(tmp_path / "race")
    assert [row["h/epoch"] for row in cells(families(outcome))] == ["2.78", "2.78"]
    assert [row["s/epoch"] for row in cells(combinations(outcome))] == ["10,000", "10,000"]


@pytest.mark.parametrize(
    ("specs", "wanted"),
    [
        (["single", "ring"], ["baseline with 1 worker", "ring with 1 worker", TWO]),
        (["ring"], ["baseline with 1 worker", TWO]),
    ],
)  # fmt: skip
def test_the_baseline_is_single_or_else_who_is_alone(tmp_path, specs, wanted):
    lanes = lanes_of(TEACHER, specs, [1, 2])
    assert [row.family for row in rows_of(a_grid(tmp_path / "race", lanes))] == wanted


def test_other_strategies_alone_make_no_grid(tmp_path):
    lanes = [Lane("single", 1, 32), Lane("ring", 2, 32), Lane("all-reduce", 2, 32)]
    outcome = a_grid(tmp_path / "race", lanes)
    assert combinations(outcome) is families(outcome) is None
    assert json.loads(forms.as_json(outcome))["combinations"] == []
    assert "by combination" not in forms.as_markdown(outcome)


def test_what_is_no_share_is_not_told_in_percent(tmp_path):
    lanes = [Lane("single", 1, 32), Lane("single", 1, 64)]
    outcome = a_grid(tmp_path / "race", lanes)
    assert "loss" in combinations(replace(outcome, metric="loss")).headings
    high = [(10.0, 85.0)]
    make_race(tmp_path / "high", {lane: {0: high} for lane in lanes})
    assert cells(combinations(of_race(tmp_path / "high")))[0]["accuracy"] == "85.0000"


def test_an_epoch_of_events_that_do_not_say_how_long_it_is_has_no_time(tmp_path):
    lanes = [Lane("single", 1, 32), Lane("single", 1, 64)]
    a_grid(tmp_path / "race", lanes)
    rewrite(tmp_path / "race", lanes, '"train_samples":1000,', "")
    rows = cells(combinations(of_race(tmp_path / "race")))
    assert [(row["s/epoch"], row["relative"]) for row in rows] == [("", "")] * 2


def test_a_result_that_is_no_number_breaks_nothing(tmp_path):
    lanes = [Lane("single", 1, 32), Lane("single", 1, 64)]
    curve = [(10.0, float("nan"))]
    make_race(tmp_path / "race", {lane: {0: curve, 1: straight(10.0)} for lane in lanes})
    outcome = of_race(tmp_path / "race")
    assert cells(combinations(outcome))[0]["accuracy (%)"] == "nan ± nan"
    assert json.loads(forms.as_json(outcome))["combinations"][0]["final"]["value"] is None


def test_worlds_are_relative_to_themselves(tmp_path):
    lanes = [Lane("single", 1, 32, world, settings=own) for own in (RELU, TANH)
             for world in ("processes", VIRTUAL)]  # fmt: skip
    outcome = a_grid(tmp_path / "race", lanes)
    assert [row.relative_time for row in rows_of(outcome)] == [1.0] * 4
    assert [row["place"] for row in cells(combinations(outcome))] == ["real", "simulated"] * 2
    pairs = {row[0] for row in tables.predictions(outcome).rows}
    assert pairs == {f"single, activation={a}, simulated" for a in ("relu", "tanh")}


def test_speedup_is_against_the_same_settings(tmp_path):
    folder, lanes = tmp_path / "race", {
        Lane("single", 1, 32, settings=RELU): 40.0, Lane("single", 1, 32, settings=TANH): 10.0,
        Lane("ring", 2, 32, settings=RELU): 20.0,
    }  # fmt: skip
    make_race(folder, {lane: {0: straight(seconds)} for lane, seconds in lanes.items()})
    outcome = of_race(folder)
    found = {s.label: outcome.speedup(s) for s in outcome.standings}
    assert found["ring, activation=relu"] == 2.0
    assert "single, activation=tanh reached accuracy 0.9 in 10 s" in verdict(outcome)


def test_a_verdict_does_not_list_a_whole_grid(tmp_path):
    folder, far = tmp_path / "race", [Lane("ring", 2, m) for m in range(1, 6)]
    curves = {lane: {s: straight(None) for s in range(2)} for lane in far}
    there = {Lane("single", 1, m): {s: straight(9.0 * m) for s in range(2)} for m in (1, 2)}
    make_race(folder, there | curves)
    assert verdict(of_race(folder)).count("; 5 others missed it in every run.") == 1


def test_forms_name_the_settings(tmp_path):
    lanes = [Lane("single", 1, 32, settings=own) for own in (RELU, TANH)]
    outcome = a_grid(tmp_path / "race", lanes)
    rows = list(csv.DictReader(io.StringIO(forms.as_csv(outcome))))
    assert {row["task.activation"] for row in rows} == {"relu", "tanh"}
    assert {row["lane"] for row in rows} == {"single, activation=relu", "single, activation=tanh"}
    assert rows[0]["epoch_seconds"] == "10.0"
    values = json.loads(forms.as_json(outcome))
    assert values["combinations"][1]["lane"]["settings"] == list(TANH)
    assert values["combinations"][1]["epoch_seconds"] == 10.0
    assert values["standings"][0]["settings"] == list(RELU)
    text = forms.as_markdown(outcome)
    assert "| relu | 1 | 32 | 10.0 | 1.00x | 90.00 | 90.00 |" in text
    assert "single, activation=relu, seed 0" in html(outcome)


def test_a_terminal_shows_every_combination_whole(tmp_path):
    lanes = [Lane("parameter-server:mode=mixed", 2, m, settings=own) for m in (256, 1024)
             for own in (RELU, TANH)]  # fmt: skip
    outcome = a_grid(tmp_path / "race", lanes, seeds=2)
    console = Console(file=io.StringIO(), width=80, highlight=False)
    for table in (race_table(outcome), shown(combinations(outcome)), shown(families(outcome))):
        console.print(table)
    text = console.file.getvalue()
    assert "…" not in text
    assert text.count("tanh") >= 2 * 3
    assert max(map(len, text.splitlines())) <= 80


values = st.lists(st.floats(-10, 10), min_size=2, max_size=8)


@given(values=values, shift=st.floats(-5, 5), scale=st.floats(0.1, 10))
def test_intervals_of_means_move_with_the_values(values, shift, scale):
    here = mean_interval(values, 0.9)
    there = mean_interval([scale * value + shift for value in values], 0.9)
    assert here.low <= fmean(values) + 1e-9
    assert here.high >= fmean(values) - 1e-9
    assert there.high - there.low == pytest.approx(scale * (here.high - here.low), abs=1e-6)
    assert mean_interval(values[:1], 0.9) is None


def test_a_run_tells_how_long_an_epoch_took():
    events = list(events_of(straight(30.0), Lane("ring", 2, 32)))
    assert summarise(events).epoch_seconds == 5.0  # 1000 samples, of which 200 a second are seen


def test_no_settings_are_one_combination():
    assert Grid().runs(TEACHER) == [TEACHER]


# -- the command line -------------------------------------------------------------------------


def invoked(*words):
    return CliRunner().invoke(app, ["race", "teacher", *map(str, words)])


def test_the_command_line_races_a_grid(tmp_path):
    words = ("--strategies", "single all-reduce", "--workers", "1,2", "--simulate", "--seeds", "1",
             "--minibatch", "64", "--set", "hidden=8;16,16", "--set", "train=512",
             "--set", "dev=128", "--set", "stop.epochs=1", "--set", "stop.target=none")  # fmt: skip
    done = invoked(*words, "-o", tmp_path)
    assert done.exit_code == 0, done.output
    assert "all-reduce, 2 workers, simulated, hidden=16,16, seed 0" in done.output
    assert "Time of an epoch and accuracy, by combination" in done.output
    assert "all-reduce with 2 workers" in done.output
    assert "…" not in done.output
    stored = json.loads((tmp_path / "race.json").read_text())
    assert stored["settings"][0] == "task.hidden=8;16,16"
    assert len(stored["lanes"]) == 6
    resumed = invoked("-o", tmp_path, "--resume", "--json")
    assert len(json.loads(resumed.output)["combinations"]) == 6


def test_without_names_only_those_race_that_can_start_everywhere(tmp_path):
    """Of hidden=8 there are three layers: no pipeline of four workers, in no lane."""
    done = invoked("--workers", 4, "--simulate", "--seeds", 1, "--set", "hidden=8;16,16", "--set",
                   "train=2048", "--set", "dev=64", "--set", "stop.epochs=0.5", "--set",
                   "recording.spans=0", "-o", tmp_path)  # fmt: skip
    assert done.exit_code == 0, done.output
    raced = {lane.spec for lane in declared(tmp_path)[0].lanes}
    assert {"single", "all-reduce", "ring"} <= raced
    assert "pipeline" not in raced


def test_nothing_is_written_of_what_is_refused(tmp_path):
    done = invoked("--simulate", "--set", "optimiser.lr=0.1,x", "-o", tmp_path / "race")
    assert "expected a value of type float" in str(done.exception)
    assert not (tmp_path / "race").exists()
