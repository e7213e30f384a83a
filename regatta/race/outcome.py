"""What came of a race, read from its declaration and its events alone."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from statistics import median
from typing import Any

from regatta.events import Event, read_what_there_is
from regatta.metrics import BROKEN_OFF, Summary, summarise
from regatta.race.course import FAILURE
from regatta.race.entries import VIRTUAL, Lane, declared, home_of
from regatta.race.tuning import Trial, trials
from regatta.statistics import (
    Comparison,
    Interval,
    Time,
    compare,
    median_interval,
    median_time,
    olympic_mean,
)  # fmt: skip


@dataclass(frozen=True)
class Finish:
    """A run that has ended, or was broken off."""

    lane: Lane
    seed: int
    folder: Path
    summary: Summary
    events: Sequence[Event]

    @property
    def time(self) -> Time:
        """To the target; a run that missed it would have taken longer than it was given."""
        reached = self.summary.lasting_time
        return Time(self.summary.seconds, False) if reached is None else Time(reached)


@dataclass(frozen=True)
class Standing:
    """A lane over its seeds."""

    lane: Lane
    label: str  # what tells it from the others
    finishes: tuple[Finish, ...]
    trials: tuple[Trial, ...] = ()

    @cached_property
    def times(self) -> dict[int, Time]:
        return {finish.seed: finish.time for finish in self.finishes}

    @property
    def reached(self) -> int:
        return sum(time.reached for time in self.times.values())

    @cached_property
    def median(self) -> float:
        return median_time(list(self.times.values()))

    @cached_property
    def olympic(self) -> float | None:
        return olympic_mean(list(self.times.values()))

    @cached_property
    def interval(self) -> Interval:
        return median_interval(list(self.times.values()))

    @property
    def throughput(self) -> float:
        return median(finish.summary.throughput for finish in self.finishes)

    @property
    def lr(self) -> float | None:
        return self.finishes[0].summary.lr

    @property
    def final(self) -> float | None:
        return _median([finish.summary.final for finish in self.finishes])

    @property
    def best(self) -> float | None:
        return _median([finish.summary.best for finish in self.finishes])

    @property
    def cost(self) -> float | None:
        """To the target; infinite where half of the runs or more missed it, None without prices."""
        if any(finish.summary.price_per_hour is None for finish in self.finishes):
            return None
        costs = [finish.summary.cost_to_target for finish in self.finishes]
        return median(math.inf if cost is None else cost for cost in costs)


@dataclass(frozen=True)
class Outcome:
    title: str
    standings: tuple[Standing, ...]  # the first first
    metric: str
    target: float | None
    last: int = 1
    higher_is_better: bool = True
    seeds: tuple[int, ...] = ()
    tune: int = 0
    command: str = ""
    environment: dict[str, Any] = field(default_factory=dict)
    complaints: tuple[str, ...] = ()  # what could not be read, or has not been run

    @property
    def is_mixed(self) -> bool:
        """Whether real and virtual runs stand side by side."""
        return len({standing.lane.world for standing in self.standings}) > 1

    def of_world(self, world: str) -> list[Standing]:
        return [standing for standing in self.standings if standing.lane.world == world]

    def comparison(self, first: Standing, other: Standing) -> Comparison:
        """Seed by seed; all comparisons that a world's first stands in hold together."""
        others = len(self.of_world(first.lane.world)) - 1
        return compare(first.times, other.times, max(1, others))

    def single(self, world: str) -> Standing | None:
        """The best that one worker can do, which others are measured by."""
        alone = [s for s in self.of_world(world) if s.lane.workers == 1]
        if self.target is None:
            return max(alone, key=lambda s: s.throughput, default=None)
        return min(alone, key=lambda s: s.median, default=None)

    def speedup(self, standing: Standing) -> float | None:
        """How many times sooner than one worker at the target; None where either never was."""
        single = self.single(standing.lane.world)
        if single is None or not math.isfinite(single.median) or not math.isfinite(standing.median):
            return None
        return single.median / standing.median if standing.median else None

    def scaling(self, standing: Standing) -> float | None:
        """How many times the samples a second of one worker."""
        alone = [s for s in self.of_world(standing.lane.world) if s.lane.workers == 1]
        fastest = max((s.throughput for s in alone), default=0.0)
        return standing.throughput / fastest if fastest else None

    def kind_of_scaling(self, standing: Standing) -> str:
        """Weak: a worker's minibatch is what one worker has; strong: all workers' together is."""
        single = self.single(standing.lane.world)
        if single is None or standing.lane.workers == 1:
            return ""
        alone, lane = single.lane.minibatch, standing.lane
        if lane.minibatch == alone:
            return "weak"
        return "strong" if lane.minibatch * lane.workers == alone else "neither"


# -- reading ----------------------------------------------------------------------------------


def of_race(folder: Path) -> Outcome:
    race, values = declared(folder)
    complaints: list[str] = []
    labels = label_lanes(race.lanes)
    standings = []
    for lane, label in zip(race.lanes, labels, strict=True):
        finishes = [_finish(folder, lane, seed, label, complaints) for seed in race.seeds]
        came = tuple(finish for finish in finishes if finish is not None)
        if came:
            tried = tuple(trials(race, folder, lane)) if race.tune else ()
            standings.append(Standing(lane, label, came, tried))
    first = standings[0].finishes[0].summary if standings else None
    return Outcome(
        title=f"{Path(race.recipe.partition(':')[0]).stem}",
        standings=tuple(ranked(standings, first)),
        metric=first.metric if first else "",
        target=first.target if first else race.target,
        last=race.last,
        higher_is_better=first.higher_is_better if first else True,
        seeds=race.seeds,
        tune=race.tune,
        command=str(values.get("command", "")),
        environment=dict(values.get("environment", {})),
        complaints=tuple(complaints),
    )


def of_run(folder: Path) -> Outcome:
    """One run alone, as a race of one."""
    log = read_what_there_is(folder / "events.jsonl")
    complaints = list(log.complaints)
    try:
        summary = summarise(log.events)
    except ValueError as error:
        raise ValueError(f"{folder} has nothing to report: {error}") from None
    if summary.reason == BROKEN_OFF:
        complaints.append(f"{folder} has not ended: what it did until then is shown")
    environment: dict[str, Any] = {}
    try:
        stored = json.loads((folder / "run.json").read_text())
        environment, recipe = stored["environment"], Path(stored["recipe"].partition(":")[0]).stem
    except (OSError, ValueError, KeyError, TypeError) as error:
        complaints.append(f"{folder / 'run.json'} cannot be read ({error})")
        recipe = folder.name
    lane = Lane(summary.spec, summary.workers, summary.minibatch, summary.world)
    finish = Finish(lane, summary.seed, folder, summary, log.events)
    return Outcome(
        title=recipe,
        standings=(Standing(lane, summary.spec, (finish,)),),
        metric=summary.metric,
        target=summary.target,
        last=summary.last,
        higher_is_better=summary.higher_is_better,
        seeds=(summary.seed,),
        environment=environment,
        complaints=tuple(complaints),
    )


def _finish(
    folder: Path, lane: Lane, seed: int, label: str, complaints: list[str]
) -> Finish | None:
    home, who = home_of(folder, lane, seed), f"{label}, seed {seed}"
    failure = home / FAILURE
    if failure.exists():
        complaints.append(f"{who} failed: {_reason(failure)}")
    if not (home / "events.jsonl").exists():
        complaints.append(f"{who} has not been run")
        return None
    log = read_what_there_is(home / "events.jsonl")
    complaints += log.complaints
    try:
        summary = summarise(log.events)
    except ValueError as error:
        complaints.append(f"{who} cannot be shown: {error}")
        return None
    if summary.reason == BROKEN_OFF and not failure.exists():
        complaints.append(f"{who} has not ended: it counts as a run that missed the target")
    return Finish(lane, seed, home, summary, log.events)


def _reason(path: Path) -> str:
    try:
        return str(json.loads(path.read_text())["error"])
    except (OSError, ValueError, KeyError, TypeError):
        return "its reason cannot be read"


def ranked(standings: Sequence[Standing], first: Summary | None) -> list[Standing]:
    """By median time to the target; who missed it, by how near they came; without one, by speed."""
    if first is None or first.target is None:
        return sorted(standings, key=lambda s: -s.throughput)
    target = first.target

    def distance(standing: Standing) -> float:
        best = standing.best
        return math.inf if best is None or math.isnan(best) else abs(best - target)

    return sorted(standings, key=lambda s: (s.median, distance(s)))


def label_lanes(lanes: Sequence[Lane]) -> list[str]:
    """Of each what tells it from the others, in few words."""
    several = [lane.workers for lane in lanes if lane.spec.partition(":")[0] != "single"]
    show_workers = len(set(several)) > 1
    show_minibatch = len({lane.minibatch for lane in lanes}) > 1
    show_place = len({(lane.world, lane.cluster) for lane in lanes}) > 1
    labels = []
    for lane in lanes:
        parts = [lane.spec]
        if show_workers and lane.spec.partition(":")[0] != "single":
            parts.append(f"{lane.workers} workers")
        if show_minibatch:
            parts.append(f"minibatch {lane.minibatch}")
        if show_place:
            parts.append(f"on {Path(lane.cluster).stem}" if lane.cluster else _place(lane))
        labels.append(", ".join(parts))
    return labels


def _place(lane: Lane) -> str:
    return "simulated" if lane.world == VIRTUAL else "real"


def _median(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return median(known) if known else None
