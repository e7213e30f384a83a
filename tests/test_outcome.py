"""Known answers: hand-made event files give exactly the tables that one can work out by hand."""

from __future__ import annotations

import csv
import io
import json
import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from racing import TARGET, events_of, make_race, straight, write_events

from regatta.events import RankEnded, Started, read_what_there_is, to_line
from regatta.metrics import summarise
from regatta.race.entries import VIRTUAL, Lane, home_of, label_lanes
from regatta.race.foretold import foretold, orders
from regatta.race.outcome import of_race, of_run
from regatta.race.verdict import verdict
from regatta.report import forms, tables
from regatta.report.figures import all_figures

ONE = Lane("single", 1, 32)
FAST, SLOW = Lane("all-reduce", 2, 32), Lane("averaging:period=4", 2, 32)


def rows(table):
    return [dict(zip(table.headings, row, strict=True)) for row in table.rows]


@pytest.fixture
def known(tmp_path):
    """Five seeds: one worker takes 40 s, two take 20 s; averaging misses in two seeds of five."""
    steady = {seed: straight(20.0 + seed / 10) for seed in range(5)}
    alone = {seed: straight(40.0 + seed / 5) for seed in range(5)}
    unsteady = {seed: straight(30.0 + seed if seed < 3 else None, 100.0) for seed in range(5)}
    make_race(tmp_path / "race", {ONE: alone, SLOW: unsteady, FAST: steady}, price=36.0)
    return of_race(tmp_path / "race")


def test_who_is_first_is_shown_first(known):
    assert [standing.lane for standing in known.standings] == [FAST, SLOW, ONE]
    assert [standing.median for standing in known.standings] == [20.2, 32.0, 40.4]
    assert [standing.reached for standing in known.standings] == [5, 3, 5]
    assert not known.complaints


def test_times_to_target(known):
    first, second, third = rows(tables.standings(known))
    assert (first["median"], first["olympic mean"], first["reached"]) == (
        "20.20 s",
        "20.20 s",
        "5 of 5",
    )
    # Two of five are endless: one may be left out as the slowest, two may not.
    assert (second["median"], second["olympic mean"], second["reached"]) == (
        "32.00 s",
        "–",
        "3 of 5",
    )
    assert third["times as long"] == "2.00x"
    assert third["interval"] == "2.00 to 2.00"
    assert third[""] == "slower"
    # Three finite ratios and two endless ones: the median is the third, its interval has no end.
    assert second["times as long"] == "1.58x"
    assert second["interval"] == "0.00 to no end"
    assert second[""] == "tie"


def test_speedup_and_efficiency(known):
    first, _, third = rows(tables.speed(known))
    assert (first["samples/s"], first["speedup"], first["efficiency"]) == ("200", "2.00x", "100%")
    assert (first["to target"], first["scaling"]) == ("2.00x", "weak")
    assert (third["speedup"], third["to target"]) == ("1.00x", "1.00x")


def test_strong_and_weak_scaling_are_told_apart(tmp_path):
    lanes = [ONE, Lane("ring", 2, 32), Lane("ring", 2, 16), Lane("ring", 2, 20)]
    make_race(tmp_path / "race", {lane: {0: straight(10.0)} for lane in lanes})
    outcome = of_race(tmp_path / "race")
    kinds = {s.lane.minibatch: outcome.kind_of_scaling(s) for s in outcome.standings
             if s.lane.workers > 1}  # fmt: skip
    assert kinds == {32: "weak", 16: "strong", 20: "neither"}


def test_levels_on_the_way(known):
    """The first evaluation has 0.09 or 0.089; straight lines reach every level in proportion."""
    table = tables.levels(known)
    assert table.headings == ["strategy", "0.495", "0.738", "0.819", "0.9"]
    first = table.rows[0]
    # 0.495 of 0.9 is 5.5 tenths: the sixth evaluation.
    assert first[1] == f"{0.6 * 20.2:.2f} s ({0.5:.2f})"
    assert first[4] == "20.20 s (0.50)"


def test_cost_goes_by_the_clock_on_the_wall(known):
    """36 an hour is 0.01 a second; the tenth evaluation ends 5 s after its training time."""
    cheapest, *_ = rows(tables.cost(known))
    assert cheapest["strategy"] == "all-reduce"
    assert cheapest["to target"] == f"{0.01 * 25.2:.4g}"


def test_waiting_staleness_and_use(known):
    first, *_ = rows(tables.resources(known))
    assert first["waiting"] == "25.0%"
    assert first["cores busy"] == "0.75"
    assert first["staleness"] == "1.10"
    assert first["energy"] == "not measured"


def test_the_verdict_names_first_and_next(known):
    text = verdict(known)
    assert text.startswith(
        "all-reduce reached accuracy 0.9 in 20.2 s (median of 5 seeds, 95 % interval 20 to 20.4), "
        "but that is a tie: averaging:period=4 took 1.58x as long (0 to no end)"
    )
    assert text.endswith(
        "Cheapest is all-reduce, which costs 0.252 to get there. Learning rates are untuned."
    )


def test_reached_and_lost_again(tmp_path):
    """TTA(0.9, 3): the median of three evaluations must be there, not one."""
    curve = [(10.0, 0.5), (20.0, 0.95), (30.0, 0.6), (40.0, 0.91), (50.0, 0.92), (60.0, 0.93)]
    make_race(tmp_path / "race", {ONE: {0: curve}}, last=3)
    (standing,) = of_race(tmp_path / "race").standings
    summary = standing.finishes[0].summary
    assert summary.time_to_target == 20.0
    assert summary.interpolated_time == pytest.approx(10 + 10 * (0.9 - 0.5) / 0.45)
    assert summary.lasting_time == 40.0  # 0.95, 0.6, 0.91
    assert standing.median == 40.0


def test_a_clear_lead_is_called_one(tmp_path):
    near = {seed: straight(20.0 + seed / 10) for seed in range(6)}
    far = {seed: straight(30.0 + seed / 10) for seed in range(6)}
    make_race(tmp_path / "race", {FAST: near, SLOW: far})
    text = verdict(of_race(tmp_path / "race"))
    assert "first and 1.49x (1.49 to 1.5) ahead of averaging:period=4." in text


def test_equal_times_are_a_tie(tmp_path):
    same = {seed: straight(20.0 + seed) for seed in range(6)}
    make_race(tmp_path / "race", {FAST: same, SLOW: dict(same)})
    assert "but that is a tie: averaging:period=4 took 1.00x as long (1 to 1)" in verdict(
        of_race(tmp_path / "race")
    )


def test_a_difference_of_half_a_percent_is_none(tmp_path):
    make_race(tmp_path / "race", {
        FAST: {seed: straight(20.0) for seed in range(6)},
        SLOW: {seed: straight(20.1) for seed in range(6)},
    })  # fmt: skip
    assert "tie" in verdict(of_race(tmp_path / "race"))


def test_the_first_need_not_be_the_cheapest(tmp_path):
    folder = tmp_path / "race"
    make_race(folder, {FAST: {0: straight(20.0)}, ONE: {0: straight(30.0)}}, price=36.0)
    path = home_of(folder, FAST, 0) / "events.jsonl"
    path.write_text(path.read_text().replace('"price_per_hour":36.0', '"price_per_hour":72.0'))
    assert "Cheapest is single, which costs 0.35 to get there." in verdict(of_race(folder))


def test_runs_that_are_to_come_are_named_by_lane(tmp_path):
    folder = tmp_path / "race"
    make_race(folder, {FAST: {s: straight(20.0) for s in range(4)}, ONE: {0: straight(30.0)}})
    assert of_race(folder).complaints == ("single, seeds 1, 2, 3: not run yet",)


def test_one_seed_is_a_first_impression(tmp_path):
    make_race(tmp_path / "race", {FAST: {0: straight(20.0)}, SLOW: {0: straight(30.0)}})
    text = verdict(of_race(tmp_path / "race"))
    assert "first; averaging:period=4 took 1.50x as long." in text
    assert "One seed: a first impression, not a claim." in text


def test_nobody_there(tmp_path):
    make_race(tmp_path / "race", {FAST: {0: straight(None), 1: straight(None)}})
    text = verdict(of_race(tmp_path / "race"))
    assert text.startswith("Nobody reached accuracy 0.9 in more than half of the runs")
    assert "all-reduce came nearest, with 0.89" in text


def test_real_and_simulated_side_by_side(tmp_path):
    simulated = Lane("all-reduce", 2, 32, VIRTUAL)
    make_race(tmp_path / "race", {FAST: {0: straight(20.0)}, simulated: {0: straight(15.0)}})
    outcome = of_race(tmp_path / "race")
    assert outcome.is_mixed
    (row,) = rows(tables.predictions(outcome))
    assert row["error"] == "-25.0%"
    text = verdict(outcome)
    assert "all-reduce, real reached" in text
    assert "Simulated: all-reduce, simulated reached" in text
    assert "virtual s" in text


def test_what_processes_tell_apart_is_to_be_foretold(tmp_path):
    """Three ways, of which two tie; the simulation has one pair the wrong way round."""
    real = {"single": 30.0, "all-reduce": 20.0, "ring": 20.1}
    virtual = {"single": 33.0, "all-reduce": 17.0, "ring": 40.0}
    lanes = {
        Lane(spec, 2, 32, world): {seed: straight(times[spec] + seed / 10) for seed in range(5)}
        for world, times in (("processes", real), (VIRTUAL, virtual))
        for spec in times
    }
    make_race(tmp_path / "race", lanes)
    outcome = of_race(tmp_path / "race")
    found = foretold(outcome)
    assert {lane.real.lane.spec: round(lane.error, 2) for lane in found} == {
        "all-reduce": -0.15, "single": 0.10, "ring": 0.98,
    }  # fmt: skip
    told_apart = {
        (order.first.real.lane.spec, order.second.real.lane.spec): order.is_foretold
        for order in orders(found)
    }
    assert told_apart == {("all-reduce", "single"): True, ("ring", "single"): False}
    note = tables.predictions(outcome).note
    assert "Of 3 pairs the processes tell 2 apart; the simulation has 1 of them" in note


def test_a_target_that_was_missed_has_no_error(tmp_path):
    lanes = {
        Lane("ring", 2, 32): {0: straight(None)},
        Lane("ring", 2, 32, VIRTUAL): {0: straight(5.0)},
    }
    make_race(tmp_path / "race", lanes)
    outcome = of_race(tmp_path / "race")
    assert math.isnan(foretold(outcome)[0].error)
    assert orders(foretold(outcome)) == []
    assert tables.predictions(outcome).rows[0][-1] == tables.NEVER


def test_without_a_target_speed_counts(tmp_path):
    home = tmp_path / "run"
    write_events(home, events_of(straight(10.0), FAST, target=None))
    outcome = of_run(home)
    assert verdict(outcome) == (
        "all-reduce had the highest throughput, 200 samples/s; no target was set."
    )


def test_who_missed_is_ranked_by_how_near_it_came(tmp_path):
    far, near = [(5.0, 0.2)], [(5.0, 0.8)]
    none = [(5.0, math.nan)]
    lanes = {Lane(name, 2, 32): {0: curve} for name, curve in
             (("none", none), ("far", far), ("near", near), ("there", straight(50.0)))}  # fmt: skip
    make_race(tmp_path / "race", lanes)
    order = [standing.label for standing in of_race(tmp_path / "race").standings]
    assert order == ["there", "near", "far", "none"]


def test_who_missed_in_every_run_does_not_tie(tmp_path):
    there = {seed: straight(20.0 + seed) for seed in range(5)}
    never = {seed: straight(None) for seed in range(5)}
    make_race(tmp_path / "race", {FAST: there, SLOW: never})
    outcome = of_race(tmp_path / "race")
    assert verdict(outcome).startswith("all-reduce reached accuracy 0.9 in 22 s")
    assert "and nobody else did." in verdict(outcome)
    assert rows(tables.standings(outcome))[1][""] == "missed"
    alone = {seed: straight(40.0 + seed) for seed in range(5)}
    make_race(tmp_path / "three", {FAST: there, SLOW: never, ONE: alone})
    text = verdict(of_race(tmp_path / "three"))
    assert "ahead of single; averaging:period=4 missed it in every run." in text


def test_who_is_first_by_median_may_be_slower_by_pairs(tmp_path):
    first = {seed: straight(10.0 * (seed + 1)) for seed in range(5)}
    times = (9.0, 18.0, 30.1, 36.0, 45.0)
    other = {seed: straight(time) for seed, time in enumerate(times)}
    make_race(tmp_path / "race", {FAST: first, SLOW: other})
    outcome = of_race(tmp_path / "race")
    assert [s.lane for s in outcome.standings] == [FAST, SLOW]
    assert "ahead" not in verdict(outcome)
    assert rows(tables.standings(outcome))[1][""] in ("faster", "tie")


def test_a_machine_is_measured_by_its_own_single(tmp_path):
    lanes = {
        Lane(spec, workers, 32, VIRTUAL, cluster): {0: straight(seconds)}
        for cluster, spec, workers, seconds in (
            ("slow", "single", 1, 80.0), ("slow", "ring", 2, 40.0),
            ("fast", "single", 1, 20.0), ("fast", "ring", 2, 10.0),
        )
    }  # fmt: skip
    make_race(tmp_path / "race", lanes)
    outcome = of_race(tmp_path / "race")
    found = {(s.lane.cluster, s.lane.spec): outcome.speedup(s) for s in outcome.standings}
    assert found[("slow", "ring")] == found[("fast", "ring")] == 2.0


def test_nothing_is_relative_to_who_never_arrived(tmp_path):
    make_race(tmp_path / "race", {FAST: {0: straight(20.0)}, ONE: {0: straight(None)}})
    table = tables.levels(of_race(tmp_path / "race"))
    assert table.rows[0][-1] == "20.00 s"


def test_a_clock_that_stood_still(tmp_path):
    make_race(tmp_path / "race", {FAST: {0: [(0.0, 0.95)]}, SLOW: {0: [(1.0, 0.95)]}})
    assert "reached accuracy 0.9 in 0 s" in verdict(of_race(tmp_path / "race"))


def test_an_end_that_was_lost_is_made_up_for_by_progress(tmp_path):
    events = list(events_of(straight(10.0), FAST))
    whole = summarise(events)
    without = [e for e in events if not (isinstance(e, RankEnded) and e.rank == 0)]
    assert summarise(without).throughput == whole.throughput


# -- what is broken ---------------------------------------------------------------------------


def test_an_empty_race_says_so(tmp_path):
    make_race(tmp_path / "race", {FAST: {}, ONE: {}} | {SLOW: {0: straight(1.0)}})
    for path in (tmp_path / "race" / "runs").rglob("events.jsonl"):
        path.unlink()
    outcome = of_race(tmp_path / "race")
    assert verdict(outcome) == "Nothing has been run yet."
    assert outcome.complaints == tuple(
        f"{label}, seed 0: not run yet" for label in ("all-reduce", "single", "averaging:period=4")
    )
    assert forms.as_markdown(outcome)
    assert forms.as_csv(outcome) == "lane,seed\n"
    assert json.loads(forms.as_json(outcome))["standings"] == []


def test_a_killed_run_is_shown_as_far_as_it_came(tmp_path):
    home = tmp_path / "run"
    path = write_events(home, events_of(straight(10.0)[:4], FAST, ended=False))
    path.write_text(path.read_text() + '{"event":"evaluated","rank":0,"ti')
    outcome = of_run(home)
    (finish,) = outcome.standings[0].finishes
    assert finish.summary.reason == "broken off"
    assert finish.summary.final == pytest.approx(0.36)
    assert finish.time.reached is False
    assert any("breaks off; half a line is left out" in c for c in outcome.complaints)
    assert any("has not ended" in c for c in outcome.complaints)


def test_damaged_lines_are_named_and_left_out(tmp_path):
    home = tmp_path / "run"
    path = write_events(home, events_of(straight(10.0), FAST))
    lines = path.read_text().splitlines()
    lines[4] = lines[4][:20] + "\x00\xff" + lines[4][25:]
    lines.insert(6, '{"event":"from the future","x":1}')
    lines.insert(7, "[1, 2]")
    path.write_bytes(("\n".join(lines) + "\n").encode("latin-1"))
    outcome = of_run(home)
    shown = "\n".join(outcome.complaints)
    for number in (5, 7, 8):
        assert f"events.jsonl:{number} is not an event" in shown
    assert outcome.standings[0].median == 10.0


def test_events_of_another_version_are_named(tmp_path):
    home = tmp_path / "run"
    path = write_events(home, events_of(straight(10.0), FAST))
    path.write_text(path.read_text().replace('"version":1', '"version":99'))
    with pytest.raises(ValueError, match="nothing to report"):
        of_run(home)
    make_race(tmp_path / "race", {FAST: {0: straight(10.0)}, ONE: {0: straight(20.0)}})
    path = home_of(tmp_path / "race", ONE, 0) / "events.jsonl"
    path.write_text(path.read_text().replace('"version":1', '"version":99'))
    outcome = of_race(tmp_path / "race")
    assert [s.lane for s in outcome.standings] == [FAST]
    assert any("events of version 99" in complaint for complaint in outcome.complaints)


def test_fields_that_are_new_within_a_version_are_passed_over(tmp_path):
    home = tmp_path / "run"
    lines = [json.loads(to_line(event)) for event in events_of(straight(10.0), FAST)]
    home.mkdir()
    (home / "events.jsonl").write_text(
        "".join(json.dumps(line | {"brand_new": 1}) + "\n" for line in lines)
    )
    assert of_run(home).standings[0].median == 10.0


@settings(max_examples=60)
@given(kept=st.integers(0, 8000), flipped=st.integers(0, 8000), byte=st.integers(0, 255))
def test_no_damage_is_more_than_a_complaint(tmp_path_factory, kept, flipped, byte):
    """Cut anywhere, one byte changed: events are read or named, and nothing is made up."""
    home = tmp_path_factory.mktemp("damaged") / "run"
    path = write_events(home, events_of(straight(10.0), FAST))
    whole = path.read_bytes()
    damaged = bytearray(whole[: min(kept, len(whole))])
    if flipped < len(damaged):
        damaged[flipped] = byte
    path.write_bytes(damaged)
    log = read_what_there_is(path)
    untouched = [
        line
        for line in whole.splitlines()[: bytes(damaged).count(b"\n")]
        if line in bytes(damaged).splitlines()
    ]
    told = [to_line(event).encode() for event in log.events]
    assert [line for line in untouched if line not in told] == [], "an event was lost"
    if len(told) < len(bytes(damaged).splitlines()):
        assert log.complaints, "something was left out without a word"
    if not any(isinstance(event, Started) for event in log.events):
        with pytest.raises(ValueError, match="nothing to report"):
            of_run(home)
        return
    outcome = of_run(home)
    verdict(outcome)
    json.loads(forms.as_json(outcome))
    forms.as_markdown(outcome)
    forms.as_csv(outcome)
    json.dumps([figure.data for figure in all_figures(outcome)], allow_nan=False)


curves = st.lists(st.floats(0.0, 1.0), min_size=1, max_size=12).map(
    lambda values: [(float(n + 1), value) for n, value in enumerate(values)]
)


@given(curve=curves, last=st.integers(1, 4))
def test_arrivals_come_in_order(curve, last):
    """By a line, then at an evaluation, then to stay; and never in a run that has no such value."""
    found = summarise(list(events_of(curve, FAST, last=last)))
    if max(value for _, value in curve) < TARGET:
        assert (found.time_to_target, found.lasting_time, found.cost_to_target) == (None,) * 3
        return
    assert found.interpolated_time <= found.time_to_target
    if found.lasting_time is not None:
        assert found.time_to_target <= found.lasting_time
        assert found.lasting_time in [seconds for seconds, _ in curve]
    assert found.best >= TARGET


@given(curve=curves, factor=st.floats(0.1, 10.0))
def test_a_slower_clock_changes_times_and_nothing_else(curve, factor):
    here = summarise(list(events_of(curve, FAST)))
    there = summarise(list(events_of([(factor * t, v) for t, v in curve], FAST)))
    assert (here.final, here.best, here.reason) == (there.final, there.best, there.reason)
    if here.time_to_target is not None:
        assert there.time_to_target == pytest.approx(factor * here.time_to_target)
        assert there.interpolated_time == pytest.approx(factor * here.interpolated_time)


# -- forms ------------------------------------------------------------------------------------


def test_csv_has_a_line_a_run(known):
    found = list(csv.DictReader(io.StringIO(forms.as_csv(known))))
    assert len(found) == 15
    assert {row["lane"] for row in found} == {"single", "all-reduce", "averaging:period=4"}
    assert sorted(row["seed"] for row in found if row["lane"] == "single") == list("01234")


def test_json_has_numbers_or_null(known):
    text = forms.as_json(known)
    assert "Infinity" not in text
    assert "NaN" not in text
    values = json.loads(text)
    assert values["standings"][0]["median"] == 20.2
    assert values["standings"][1]["behind_first"]["interval"]["high"] is None
    assert values["target"] == TARGET
    last = values["standings"][0]["runs"][0]["curve"][-1]
    assert last == {
        "training": 20.0,
        "samples": 4000,
        "epoch": 4.0,
        "accuracy": 0.9,
        "loss": last["loss"],
    }


def test_markdown_shows_every_table(known):
    text = forms.as_markdown(known)
    for table in tables.all_tables(known):
        assert f"## {table.title}" in text
        assert table.rows
    assert "| all-reduce | 2 | 5 of 5 | 20.20 s |" in text


def test_labels_say_what_differs():
    assert label_lanes([ONE, FAST]) == ["single", "all-reduce"]
    lanes = [ONE, FAST, Lane("all-reduce", 4, 64), Lane("ring", 4, 64, VIRTUAL, "x/net.toml")]
    assert label_lanes(lanes) == [
        "single, minibatch 32, real",
        "all-reduce, 2 workers, minibatch 32, real",
        "all-reduce, 4 workers, minibatch 64, real",
        "ring, 4 workers, minibatch 64, on net",
    ]


def test_a_lane_is_a_folder_of_its_own():
    lanes = [FAST, SLOW, Lane("averaging:period=4", 2, 32, VIRTUAL), Lane("a:b=1", 2, 32)]
    names = {lane.name for lane in lanes}
    assert len(names) == len(lanes)
    assert all("/" not in name and ":" not in name for name in names)


def test_median_of_misses_is_endless(tmp_path):
    make_race(tmp_path / "race", {FAST: {0: straight(None), 1: straight(9.0), 2: straight(None)}})
    (standing,) = of_race(tmp_path / "race").standings
    assert math.isinf(standing.median)
