"""Races that run: lanes, seeds, common random numbers, tuning, resuming, and what they tell."""

from __future__ import annotations

import json
import math
import shutil
from dataclasses import replace

import pytest

from regatta.config import Checkpointing, component
from regatta.death import Death
from regatta.events import Ended, Started, read
from regatta.race import course
from regatta.race.course import FAILURE, enter, has_ended, run_all
from regatta.race.entries import (
    VIRTUAL,
    Lane,
    Race,
    all_specs,
    declared,
    home_of,
    lanes_of,
    trial_of,
)
from regatta.race.outcome import of_race
from regatta.race.tuning import best, rates, trials
from regatta.race.verdict import verdict
from regatta.recipes import load

SMALL = ("task.train=512", "task.dev=128", "task.hidden=16", "minibatch=32", "evaluation.every=0.5",
         "stop.epochs=6", "recording.spans=20")  # fmt: skip


def a_race(specs="single all-reduce", seeds=(0, 1), target=0.35, workers=2, **more):
    lanes = tuple(
        Lane(spec, 1 if spec == "single" else workers, 32, VIRTUAL) for spec in specs.split()
    )
    settings = SMALL + more.pop("settings", ())
    return Race("teacher", lanes, tuple(seeds), target, settings=settings, **more)


def quiet(start):
    return lambda events: None


def run(race, folder):
    enter(race, folder, "regatta race")
    run_all(race, folder, quiet)
    return of_race(folder)


def test_a_strategy_may_have_workers_of_its_own():
    lanes = lanes_of(load("teacher"), ["single", "ring", "all-reduce@4"], [2, 3])
    assert [(lane.spec, lane.workers) for lane in lanes] == [
        ("single", 1), ("ring", 2), ("ring", 3), ("all-reduce", 4),
    ]  # fmt: skip
    for text in ("ring@", "ring@0", "ring@two"):
        with pytest.raises(ValueError, match=f"{text}: after @ stands a number of workers"):
            lanes_of(load("teacher"), [text], [2])


def test_every_lane_runs_with_every_seed(tmp_path):
    outcome = run(a_race(), tmp_path / "race")
    assert {(s.lane.spec, seed) for s in outcome.standings for seed in s.times} == {
        ("single", 0), ("single", 1), ("all-reduce", 0), ("all-reduce", 1),
    }  # fmt: skip
    assert not outcome.complaints
    assert outcome.command == "regatta race"


def test_runs_of_a_seed_start_alike(tmp_path):
    """The same weights, data and jitter: at a learning rate of 0 all lanes score alike."""
    race = a_race(settings=("optimiser.lr=0", "stop.epochs=1", "cluster.jitter=0.3"), target=None)
    outcome = run(race, tmp_path / "race")
    by_seed = {}
    for standing in outcome.standings:
        for finish in standing.finishes:
            by_seed.setdefault(finish.seed, set()).add(finish.summary.final)
    assert all(len(values) == 1 for values in by_seed.values())
    assert by_seed[0] != by_seed[1]
    jitters = {race.run(lane, 7).cluster.jitter_seed for lane in race.lanes}
    assert jitters == {7}


def test_a_race_is_declared_before_it_runs(tmp_path, monkeypatch):
    race, folder = a_race(), tmp_path / "race"
    seen = []
    monkeypatch.setattr(course.runs, "simulate", lambda *a, **k: seen.append(declared(folder)[0]))
    enter(race, folder, "x")
    run_all(race, folder, quiet)
    assert seen == [race] * 4


def test_settings_of_a_cluster_go_on_top_of_the_one_that_is_named():
    lane = Lane("single", 1, 32, VIRTUAL, "ethernet-1")
    settings = ("cluster.price_per_hour=2.5", "cluster.jitter=0.2")
    cluster = Race("teacher", (lane,), settings=settings).run(lane, 3).cluster
    assert (cluster.price_per_hour, cluster.jitter, cluster.jitter_seed) == (2.5, 0.2, 3)
    assert cluster.bandwidth == 0.125e9


def test_seeds_take_turns_in_who_begins():
    race = a_race("single all-reduce ring", seeds=(0, 1, 2))
    firsts = [lane.spec for n, (lane, _) in enumerate(race.starts()) if n % 3 == 0]
    assert firsts == ["single", "all-reduce", "ring"]


def test_an_interrupted_race_goes_on_where_it_was(tmp_path):
    race, folder = a_race(), tmp_path / "race"
    begun = []

    def stop_at_third(start):
        begun.append((start.lane.spec, start.run.seed))
        if len(begun) == 3:
            raise KeyboardInterrupt
        return lambda events: None

    enter(race, folder, "x")
    with pytest.raises(KeyboardInterrupt):
        run_all(race, folder, stop_at_third)
    kept = {path: path.read_bytes() for path in folder.rglob("events.jsonl")}
    assert len(kept) == 2
    # A run that was killed on its way is begun anew: its clock would not be that of one run.
    half = home_of(folder, race.lanes[0], 1)
    half.mkdir(parents=True)
    (half / "events.jsonl").write_bytes(next(iter(kept.values()))[:2000].rpartition(b"\n")[0])
    assert not has_ended(half)
    again = []
    run_all(race, folder, lambda start: again.append((start.number, start.of)) or quiet(start))
    assert again == [(1, 2), (2, 2)]
    assert all(path.read_bytes() == text for path, text in kept.items())
    outcome = of_race(folder)
    assert sum(len(s.finishes) for s in outcome.standings) == 4
    assert not outcome.complaints


def test_a_race_that_is_there_is_not_touched(tmp_path):
    run(a_race(seeds=(0,)), tmp_path / "race")
    with pytest.raises(ValueError, match=r"already holds a race: use --resume"):
        enter(a_race(), tmp_path / "race", "x")


def test_a_run_that_fails_is_noted_and_the_others_go_on(tmp_path, monkeypatch):
    class RankFailed(RuntimeError):
        pass

    simulate = course.runs.simulate

    def sometimes(run, plan, watch):
        if run.strategy.name == "all-reduce" and run.seed == 0:
            raise RankFailed("rank 1 died")
        return simulate(run, plan, watch=watch)

    monkeypatch.setattr(course.runs, "simulate", sometimes)
    race, folder = a_race(), tmp_path / "race"
    outcome = run(race, folder)
    assert json.loads((home_of(folder, race.lanes[1], 0) / FAILURE).read_text())
    assert outcome.complaints == ("all-reduce, seed 0 failed: rank 1 died",)
    monkeypatch.setattr(course.runs, "simulate", simulate)
    run_all(race, folder, quiet)
    assert not of_race(folder).complaints


def test_what_cannot_run_is_refused_before_anything_is_written(tmp_path):
    race = a_race("single pipeline", workers=50)
    with pytest.raises(ValueError, match="pipeline"):
        enter(race, tmp_path / "race", "x")
    assert not (tmp_path / "race").exists()
    greedy = replace(a_race(), lanes=(Lane("single", 1, 32), Lane("single", 1, 100_000)))
    with pytest.raises(ValueError, match="minibatch"):
        enter(greedy, tmp_path / "race", "x")
    assert not (tmp_path / "race").exists()


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"lanes": ()}, "needs a strategy"),
        ({"seeds": ()}, "needs a seed"),
        ({"tune": -1}, "--tune must be 0 or more"),
        ({"tune": 2, "seeds": (10_000,)}, "seed 10000 is for tuning"),
        ({"lanes": (Lane("single", 1, 1),) * 2}, "is in the race twice"),
    ],
)
def test_races_that_make_no_sense(change, complaint):
    with pytest.raises(ValueError, match=complaint):
        replace(a_race(), **change)


def test_damaged_declarations_are_named(tmp_path):
    with pytest.raises(ValueError, match=r"holds no race: .*race\.json does not exist"):
        declared(tmp_path)
    (tmp_path / "race.json").write_text('{"regatta_race": 2, "lanes": [{"spec": 1}]}')
    with pytest.raises(ValueError, match=r"race\.json cannot be read"):
        declared(tmp_path)
    (tmp_path / "race.json").write_text('{"regatta_race": 1}')
    with pytest.raises(ValueError, match="not written by this version"):
        declared(tmp_path)


# -- lanes ------------------------------------------------------------------------------------


def test_lanes_are_all_combinations_and_single_stands_once():
    lanes = lanes_of(load("teacher"), ["single", "ring"], [2, 4], [64, 256])
    assert [(lane.spec, lane.workers, lane.minibatch) for lane in lanes] == [
        ("single", 1, 64), ("single", 1, 256),
        ("ring", 2, 64), ("ring", 2, 256), ("ring", 4, 64), ("ring", 4, 256),
    ]  # fmt: skip


def test_clusters_are_for_the_virtual_world():
    lanes = lanes_of(load("teacher"), ["ring"], [2], (), ("processes", VIRTUAL), ("a", "b"))
    assert [(lane.world, lane.cluster) for lane in lanes] == [
        ("processes", ""), (VIRTUAL, "a"), (VIRTUAL, "b"),
    ]  # fmt: skip


def test_every_strategy_that_can_train_the_model_is_raced():
    assert all_specs(load("teacher"), [2])[0] == "single"
    assert "pipeline" in all_specs(load("teacher"), [2])
    assert "pipeline" not in all_specs(load("teacher"), [2, 50])


# -- tuning -----------------------------------------------------------------------------------


def test_rates_stand_around_the_recipes_own():
    assert rates(0.3, 1) == [0.3]
    assert rates(0.123456, 1) == [0.123456]
    assert rates(0.3, 3) == [0.0949, 0.3, 0.949]
    assert rates(0.3, 4) == [0.03, 0.0949, 0.3, 0.949]


def test_every_lane_is_tuned_with_the_same_number_of_trials(tmp_path):
    race, folder = a_race(seeds=(0, 1), tune=3), tmp_path / "race"
    outcome = run(race, folder)
    for lane in race.lanes:
        tried = trials(folder, lane)
        assert len(tried) == 3
        chosen = best(tried)
        for seed in race.seeds:
            started = read(home_of(folder, lane, seed) / "events.jsonl")[0]
            assert isinstance(started, Started)
            assert started.lr == chosen
        trial = read(trial_of(folder, lane, tried[0].lr) / "events.jsonl")[0]
        assert trial.seed not in race.seeds
    assert "Learning rates are tuned by 3 trials each." in verdict(outcome)


def test_the_rate_that_is_first_at_the_target_is_chosen(tmp_path):
    race = a_race("single", (0,), tune=3)
    assert best(trials(tmp_path, race.lanes[0])) is None
    run(race, tmp_path / "race")
    tried = trials(tmp_path / "race", race.lanes[0])
    times = {t.lr: t.summary.lasting_time or math.inf for t in tried}
    assert times[best(tried)] == min(times.values())


def test_a_report_of_a_tuned_race_needs_no_recipe(tmp_path):
    """Events alone: the recipe may have moved or changed since."""
    folder = tmp_path / "race"
    run(a_race(seeds=(0, 1), tune=2), folder)
    path = folder / "race.json"
    path.write_text(path.read_text().replace('"teacher"', '"moved.py:away"'))
    assert all(len(standing.trials) == 2 for standing in of_race(folder).standings)


def test_what_was_tuned_stays_when_a_race_goes_on(tmp_path):
    race, folder = a_race("single", (0, 1), tune=2), tmp_path / "race"
    run(race, folder)
    (home_of(folder, race.lanes[0], 1) / "events.jsonl").unlink()
    chosen = best(trials(folder, race.lanes[0]))
    shutil.rmtree(trial_of(folder, race.lanes[0], min(rates(0.3, 2), key=lambda r: r == chosen)))
    again = []
    run_all(race, folder, lambda start: again.append(start.is_trial) or quiet(start))
    assert again == [False]


# -- TTA(a, e) --------------------------------------------------------------------------------


def test_a_run_ends_when_the_median_of_the_last_evaluations_is_there(tmp_path):
    race = replace(a_race("single", (3,), target=0.3), last=3)
    outcome = run(race, tmp_path / "race")
    (finish,) = outcome.standings[0].finishes
    ended = finish.events[-1]
    assert isinstance(ended, Ended)
    assert ended.reason == "target"
    assert finish.summary.last == 3
    assert finish.summary.lasting_time == pytest.approx(ended.training)
    assert finish.summary.time_to_target < finish.summary.lasting_time


# -- statistics -------------------------------------------------------------------------------


def write_cluster(path, speed=1.0, shape="lognormal"):
    path.write_text(f'sample_seconds = {1e-4 / speed}\njitter = 0.2\njitter_shape = "{shape}"\n')
    return str(path)


def one_against(tmp_path, other, seeds, name):
    """One worker on two machines whose jitter is drawn independently."""
    lanes = tuple(
        Lane("single", 1, 32, VIRTUAL, cluster)
        for cluster in (write_cluster(tmp_path / "slow.toml"), other)
    )
    settings = (*SMALL, "stop.epochs=3", "recording.spans=0")
    race = Race("teacher", lanes, tuple(seeds), 0.3, settings=settings)
    return run(race, tmp_path / name)


def test_the_same_machine_under_another_name_ties(tmp_path):
    other = write_cluster(tmp_path / "other.toml", shape="normal")
    outcome = one_against(tmp_path, other, range(20), "race")
    assert "but that is a tie" in verdict(outcome)


def test_the_same_strategy_under_another_name_ties(tmp_path):
    race = a_race("averaging:period=4 averaging:period=4,outer=none", range(20), workers=2)
    assert "but that is a tie" in verdict(run(race, tmp_path / "race"))


def test_a_machine_that_is_15_percent_faster_is_called_so_and_covered(tmp_path):
    fast = write_cluster(tmp_path / "fast.toml", 1.15, "normal")
    covered = called = 0
    for number in range(20):
        outcome = one_against(tmp_path, fast, range(8 * number, 8 * number + 8), f"race-{number}")
        by_cluster = {s.label: s for s in outcome.standings}
        comparison = outcome.comparison(
            by_cluster["single, on fast"], by_cluster["single, on slow"]
        )
        covered += 1.15 in comparison.interval
        called += comparison.is_faster
    assert covered >= 18
    assert called >= 18


def test_nobody_rejoins_a_race():
    """The time of a run that begins again is not that of its strategy."""
    asked = Death(rejoin=True)
    run = replace(
        load("teacher"), strategy=component("strategy", "gossip"), workers=2, death=asked,
        checkpointing=Checkpointing(every=1),
    )  # fmt: skip
    assert course._undisturbed(run).death == Death("stop")
