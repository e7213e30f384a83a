"""What came of a race, read from its declaration and its events alone."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from statistics import median
from typing import Any

from regatta import plain
from regatta.arrival import Level
from regatta.events import Event, read_what_there_is
from regatta.folders import read_stored
from regatta.metrics import BROKEN_OFF, Summary, summarise
from regatta.race.course import FAILURE
from regatta.race.entries import Lane, declared, home_of, label_lanes
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
    lanes: tuple[Lane, ...] = ()  # in the order of their declaration
    levels: tuple[Level, ...] = ()  # that were asked for

    @property
    def is_mixed(self) -> bool:
        """Whether real and virtual runs stand side by side."""
        return len({standing.lane.world for standing in self.standings}) > 1

    @property
    def starts(self) -> list[str]:
        """Where the weights of the runs came from, if they were not drawn."""
        found = (f.summary.start for standing in self.standings for f in standing.finishes)
        return list(dict.fromkeys(start for start in found if start))

    def of_world(self, world: str) -> list[Standing]:
        return [standing for standing in self.standings if standing.lane.world == world]

    def comparison(self, first: Standing, other: Standing) -> Comparison:
        """Seed by seed; all comparisons that a world's first stands in hold together."""
        others = len(self.of_world(first.lane.world)) - 1
        return compare(first.times, other.times, max(1, others))

    def _alone(self, standing: Standing) -> list[Standing]:
        """The lanes of one worker that others are measured by: same machine, same settings."""

        def alike(lane: Lane) -> tuple[object, ...]:
            return lane.world, lane.cluster, lane.settings

        return [
            s
            for s in self.standings
            if s.lane.workers == 1 and alike(s.lane) == alike(standing.lane)
        ]

    def single(self, standing: Standing) -> Standing | None:
        """The one worker that is first at the target."""
        return min(self._alone(standing), key=lambda s: s.median, default=None)

    def speedup(self, standing: Standing) -> float | None:
        """How many times sooner than one worker at the target; None where either never was."""
        single = self.single(standing)
        if single is None or not math.isfinite(single.median) or not math.isfinite(standing.median):
            return None
        return single.median / standing.median if standing.median else None

    def scaling(self, standing: Standing) -> float | None:
        """How many times the samples a second of one worker."""
        fastest = self._fastest_alone(standing)
        if fastest is None or not fastest.throughput:
            return None
        return standing.throughput / fastest.throughput

    def _fastest_alone(self, standing: Standing) -> Standing | None:
        return max(self._alone(standing), key=lambda s: s.throughput, default=None)

    def kind_of_scaling(self, standing: Standing) -> str:
        """Weak: a worker's minibatch is what one worker has; strong: all workers' together is."""
        single = self._fastest_alone(standing)
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
        begun = [seed for seed in race.seeds if _has_begun(home_of(folder, lane, seed))]
        complaints += _not_run(label, [seed for seed in race.seeds if seed not in begun])
        finishes = [_finish(folder, lane, seed, label, complaints) for seed in begun]
        came = tuple(finish for finish in finishes if finish is not None)
        if came:
            tried = tuple(trials(folder, lane)) if race.tune else ()
            standings.append(Standing(lane, label, came, tried))
    first = standings[0].finishes[0].summary if standings else None
    complaints += _other_targets(standings, race.target)
    return Outcome(
        title=f"{Path(race.recipe.partition(':')[0]).stem}",
        standings=tuple(ranked(standings, race.target)),
        metric=first.metric if first else "",
        target=race.target,
        last=race.last,
        higher_is_better=first.higher_is_better if first else True,
        seeds=race.seeds,
        tune=race.tune,
        command=plain.printable(str(values.get("command", ""))),
        environment=dict(values.get("environment", {})),
        complaints=tuple(complaints),
        lanes=race.lanes,
    )


def of_run(folder: Path) -> Outcome:
    """One run alone, as a race of one."""
    log = read_what_there_is(folder / "events.jsonl")
    complaints = list(log.complaints)
    try:
        summary = summarise(log.events)
    except ValueError as error:
        reasons = "; ".join([str(error), *complaints])
        raise ValueError(f"{folder} has nothing to report: {reasons}") from None
    if summary.reason == BROKEN_OFF:
        complaints.append(f"{folder} has not ended: what it did until then is shown")
    environment: dict[str, Any] = {}
    try:
        stored = read_stored(folder)
        environment, recipe = stored["environment"], Path(stored["recipe"].partition(":")[0]).stem
    except ValueError as error:
        complaints.append(str(error))
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


def _has_begun(home: Path) -> bool:
    return (home / "events.jsonl").exists() or (home / FAILURE).exists()


def _not_run(label: str, seeds: Sequence[int]) -> list[str]:
    if not seeds:
        return []
    which = f"seed {seeds[0]}" if len(seeds) == 1 else f"seeds {', '.join(map(str, seeds))}"
    return [f"{label}, {which}: not run yet"]


def _other_targets(standings: Sequence[Standing], target: float | None) -> list[str]:
    """A run that was resumed by hand may have been given another."""
    return [
        f"{standing.label}, seed {finish.seed} was run to another target, {finish.summary.target}"
        for standing in standings
        for finish in standing.finishes
        if finish.summary.target != target
    ]


def _reason(path: Path) -> str:
    try:
        return plain.printable(str(plain.loads(path.read_text())["error"]))
    except (OSError, ValueError, KeyError, TypeError):
        return "its reason cannot be read"


def ranked(standings: Sequence[Standing], target: float | None) -> list[Standing]:
    """By median time to the target; who missed it, by how near they came; without one, by speed."""
    if target is None:
        return sorted(standings, key=lambda s: -s.throughput)

    def short(standing: Standing) -> float:
        """How much was lacking, in the median of the seeds."""
        best, first = standing.best, standing.finishes[0].summary
        if best is None or math.isnan(best):
            return math.inf
        return max(0.0, target - best if first.higher_is_better else best - target)

    return sorted(standings, key=lambda s: (s.median, -s.reached / len(s.times), short(s)))


def _median(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return median(known) if known else None
