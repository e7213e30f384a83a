"""Run a race: every lane with every seed, and go on where an earlier attempt ended."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from regatta import runs
from regatta.config import Run
from regatta.death import AUTO
from regatta.events import Ended, read_what_there_is
from regatta.folders import Plan, make_folder
from regatta.lock import refuse_if_held
from regatta.race.entries import (
    FILE,
    TUNING_SEED,
    VIRTUAL,
    Lane,
    Race,
    declare,
    home_of,
    trial_of,
)  # fmt: skip
from regatta.race.tuning import best, rates_of, trials
from regatta.resuming import UNFINISHED
from regatta.start import hand_down, keep, pinned
from regatta.strategies.fate import STOP

FAILURE = "failure.json"  # beside the events of a run that broke


@dataclass(frozen=True)
class Start:
    """A run of a race that is about to begin."""

    lane: Lane
    run: Run
    number: int  # of this one
    of: int  # all that are left
    is_trial: bool = False


Announce = Callable[[Start], runs.Watcher]


def enter(race: Race, folder: Path, command: str) -> None:
    """Declare a race, unless one is there or a lane of it cannot run."""
    if (folder / FILE).exists():
        raise ValueError(
            f"{folder} already holds a race: use --resume to go on with it, or another --out"
        )
    race.check()
    make_folder(folder)
    keep(pinned(race.run(race.lanes[0], race.seeds[0])), folder)  # once for all lanes
    declare(race, folder, command)


def left(race: Race, folder: Path) -> tuple[list[tuple[Lane, float]], list[tuple[Lane, int]]]:
    """Trials of learning rates and runs that have not ended yet."""
    trying = [
        (lane, lr)
        for lane in race.lanes
        if race.tune and not _is_raced(race, folder, lane)
        for lr in rates_of(race, lane)
        if not has_ended(trial_of(folder, lane, lr))
    ]
    return trying, [start for start in race.starts() if not has_ended(home_of(folder, *start))]


def run_all(race: Race, folder: Path, announce: Announce) -> None:
    """Every run that has not ended yet; one that fails is noted, and the others go on."""
    trying, racing = left(race, folder)
    of = len(trying) + len(racing)
    for number, (lane, lr) in enumerate(trying, 1):
        run = race.run(lane, TUNING_SEED, lr)
        start = Start(lane, run, number, of, is_trial=True)
        _run(race.recipe, start, folder, trial_of(folder, lane, lr), announce)
    tuned = {lane: best(trials(folder, lane)) if race.tune else None for lane in race.lanes}
    for number, (lane, seed) in enumerate(racing, len(trying) + 1):
        start = Start(lane, race.run(lane, seed, tuned[lane]), number, of)
        _run(race.recipe, start, folder, home_of(folder, lane, seed), announce)


def _is_raced(race: Race, folder: Path, lane: Lane) -> bool:
    """Whether some seed of a lane has run: what was tuned for it then stays."""
    return any(has_ended(home_of(folder, lane, seed)) for seed in race.seeds)


def has_ended(home: Path) -> bool:
    path = home / "events.jsonl"
    if not path.exists() or (home / FAILURE).exists():
        return False
    ended = [e for e in read_what_there_is(path).events if isinstance(e, Ended)]
    return bool(ended) and ended[-1].reason not in UNFINISHED


def _run(recipe: str, start: Start, folder: Path, home: Path, announce: Announce) -> None:
    refuse_if_held(home)
    if home.exists():  # broken off: its times would not be those of an undisturbed run
        shutil.rmtree(home)
    watch = announce(start)
    plan = Plan(recipe, _undisturbed(hand_down(start.run, folder, home)), home)
    try:
        if start.lane.world == VIRTUAL:
            runs.simulate(plan.run, plan, watch=watch)
        else:
            runs.train(plan, watch=watch)
    except RuntimeError as error:
        if type(error).__name__ not in ("RankFailed", "WorldFailed", "Deadlock"):
            raise
        make_folder(home)
        (home / FAILURE).write_text(json.dumps({"error": str(error)}) + "\n")
    if _was_interrupted(home):
        raise KeyboardInterrupt


def _undisturbed(run: Run) -> Run:
    """Or none: the time of a run that has lost a rank is not that of its strategy."""
    if run.death.then != AUTO or run.cluster.faults:
        return run
    return replace(run, death=replace(run.death, then=STOP, rejoin=False))


def _was_interrupted(home: Path) -> bool:
    events = read_what_there_is(home / "events.jsonl").events
    return any(isinstance(e, Ended) and e.reason in UNFINISHED for e in events)
