"""Several strategies on one task to one target: who gets there first?"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from regatta import config, runs
from regatta.config import Run
from regatta.events import read
from regatta.metrics import Summary, summarise
from regatta.strategies import registry


@dataclass(frozen=True)
class Lane:
    """One boat: a strategy on some number of workers."""

    spec: str
    run: Run


@dataclass(frozen=True)
class Finish:
    spec: str
    summary: Summary
    folder: str


def lanes(run: Run, specs: Sequence[str], workers: int, target: float | None) -> list[Lane]:
    """The runs of a race: alike but for their strategy. `single` keeps its one worker."""
    stop = run.stop if target is None else replace(run.stop, target=target)
    made: list[Lane] = []
    for spec in specs:
        strategy = config.component("strategy", spec)
        count = 1 if strategy.name == "single" else workers
        made.append(Lane(spec, replace(run, strategy=strategy, workers=count, stop=stop)))
        runs.refuse_if_not_in_layers(made[-1].run)
    return made


def all_specs(run: Run, workers: int) -> list[str]:
    """Every strategy that can train this model on so many workers."""
    return [
        name
        for name in ("single", *(name for name in registry() if name != "single"))
        if _can_start(run, name, workers)
    ]


def _can_start(run: Run, spec: str, workers: int) -> bool:
    try:
        lanes(run, [spec], workers, None)
    except ValueError:
        return False
    return True


def race(
    recipe: str,
    entries: Sequence[Lane],
    folder: Path,
    simulate: bool,
    announce: Callable[[Lane], runs.Watcher],
) -> list[Finish]:
    """Run every lane in turn; results go to `folder` as they come."""
    finishes: list[Finish] = []
    for number, lane in enumerate(entries, 1):
        watch = announce(lane)
        home = folder / f"{number}-{lane.run.strategy.name}"
        plan = runs.Plan(recipe, lane.run, home)
        if simulate:
            runs.simulate(lane.run, plan, watch=watch)
        else:
            runs.train(plan, watch=watch)
        finishes.append(Finish(lane.spec, summarise(read(plan.events)), str(home)))
        _write(folder / "race.json", finishes)
    return finishes


def ranking(finishes: Sequence[Finish]) -> list[Finish]:
    """First who reached the target, by time; then who did not, by how near they came."""
    reached = [f for f in finishes if f.summary.time_to_target is not None]
    missed = [f for f in finishes if f.summary.time_to_target is None]
    reached.sort(key=lambda f: f.summary.time_to_target or 0.0)
    missed.sort(key=_distance)
    return reached + missed


def _distance(finish: Finish) -> float:
    best, target = finish.summary.best, finish.summary.target
    return math.inf if best is None or target is None else abs(best - target)


def speedup(finish: Finish, finishes: Sequence[Finish]) -> float | None:
    """Time to target of the one-worker run over that of this one."""
    single = next((f.summary for f in finishes if f.summary.strategy == "single"), None)
    if single is None or not single.time_to_target or not finish.summary.time_to_target:
        return None
    return single.time_to_target / finish.summary.time_to_target


def verdict(finishes: Sequence[Finish]) -> str:
    """One line: who won, by how much, on how many seeds."""
    first, *others = ranking(finishes)
    summary = first.summary
    if summary.target is None:
        quickest = max(finishes, key=lambda f: f.summary.throughput)
        return (
            f"No target was set; {quickest.spec} had the highest throughput, "
            f"{quickest.summary.throughput:,.0f} samples/s."
        )
    goal = f"{summary.metric} {summary.target:g}"
    if summary.time_to_target is None:
        return f"Nobody reached {goal}; {first.spec} came nearest with {summary.best or 0:.4f}."
    clock = "virtual seconds" if summary.world == "virtual" else "s"
    text = f"{first.spec} reached {goal} first, in {summary.time_to_target:.2f} {clock}"
    second = next((f for f in others if f.summary.time_to_target is not None), None)
    if second is not None:
        ratio = (second.summary.time_to_target or 0.0) / summary.time_to_target
        text += f", {ratio:.2f}x ahead of {second.spec}"
    return text + " (one seed, untuned: a first impression, not a claim)."


def _write(path: Path, finishes: Sequence[Finish]) -> None:
    values = [
        {"spec": f.spec, "folder": f.folder, "speedup": speedup(f, finishes)} | asdict(f.summary)
        for f in finishes
    ]
    aside = path.with_suffix(".tmp")
    aside.write_text(json.dumps({"regatta_race": 1, "runs": values}, indent=1) + "\n")
    aside.replace(path)
