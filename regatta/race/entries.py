"""What a race is: lanes, seeds and a target, all declared before the first run starts."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any

from regatta import config, start
from regatta.config import Run
from regatta.engine import order_of
from regatta.folders import environment
from regatta.resolve import resolve
from regatta.runs import refuse_if_not_in_layers
from regatta.strategies import registry

PROCESSES, VIRTUAL = "processes", "virtual"
FILE = "race.json"
_VERSION = 2
TUNING_SEED = 10_000  # no seed that is raced: the rate must not be chosen by its own exam


@dataclass(frozen=True)
class Lane:
    """A boat: one way to train, run once with every seed."""

    spec: str
    workers: int
    minibatch: int  # a worker
    world: str = PROCESSES  # or virtual
    cluster: str = ""  # of a virtual world: a shipped name or a file; empty: the recipe's

    @property
    def is_single(self) -> bool:
        return is_single(self.spec)

    @property
    def name(self) -> str:
        """All that it is, as the name of a folder."""
        parts = [self.spec, f"{self.workers}w", f"{self.minibatch}m"]
        if self.world == VIRTUAL:
            parts.append(f"on {Path(self.cluster).stem}" if self.cluster else VIRTUAL)
        return re.sub(r"[^A-Za-z0-9.=,+-]+", "-", " ".join(parts).replace(":", "+"))


@dataclass(frozen=True)
class Race:
    recipe: str
    lanes: tuple[Lane, ...]
    seeds: tuple[int, ...] = (0,)
    target: float | None = None
    last: int = 1  # evaluations whose median must reach it
    tune: int = 0  # learning rates tried for every lane; 0: all take the recipe's
    settings: tuple[str, ...] = ()  # of all lanes, as given with --set

    def __post_init__(self) -> None:
        if not self.lanes:
            raise ValueError("a race needs a strategy at least: name some with --strategies")
        if not self.seeds:
            raise ValueError("a race needs a seed at least: use --seeds 1 or more")
        if self.tune < 0:
            raise ValueError(f"--tune must be 0 or more learning rates, not {self.tune}")
        if self.tune and TUNING_SEED in self.seeds:
            raise ValueError(f"seed {TUNING_SEED} is for tuning: choose others with --seed")
        names = [lane.name for lane in self.lanes]
        twice = next((name for name in names if names.count(name) > 1), None)
        if twice is not None:
            raise ValueError(f"{twice} is in the race twice: leave one out")

    def run(self, lane: Lane, seed: int, lr: float | None = None) -> Run:
        """Runs of one seed have equal initial weights, data order and, if virtual, jitter."""
        run = resolve(
            self.recipe,
            None,
            list(self.settings),
            self.target,
            seed,
            cluster=lane.cluster or None,
        )
        optimiser: Any = run.optimiser
        return replace(
            run,
            strategy=config.component("strategy", lane.spec),
            workers=lane.workers,
            minibatch=lane.minibatch,
            stop=replace(run.stop, last=self.last),
            cluster=replace(run.cluster, jitter_seed=seed),
            optimiser=optimiser if lr is None else replace(optimiser, lr=lr),
        )

    def check(self) -> None:
        """Refuse what cannot run, before anything does."""
        runs = [self.run(lane, self.seeds[0]) for lane in self.lanes]
        data = runs[0].task.open()
        start.check(start.pinned(runs[0]), data)
        for run in runs:
            refuse_if_not_in_layers(run)
            order_of(run, data)

    def starts(self) -> Iterator[tuple[Lane, int]]:
        """Seed by seed, and every seed begins with another lane.

        A machine that grows slower in the course of the hours so favours nobody.
        """
        for turn, seed in enumerate(self.seeds):
            first = turn % len(self.lanes)
            for lane in (*self.lanes[first:], *self.lanes[:first]):
                yield lane, seed


def lanes_of(
    run: Run,
    specs: Sequence[str],
    workers: Sequence[int],
    minibatches: Sequence[int] = (),
    worlds: Sequence[str] = (PROCESSES,),
    clusters: Sequence[str] = (),
) -> tuple[Lane, ...]:
    """Every combination that there is; `single` keeps its one worker."""
    places = [
        (world, c) for world in worlds for c in (clusters if world == VIRTUAL else ()) or ("",)
    ]
    made = [
        Lane(spec, 1 if is_single(spec) else count, minibatch, world, cluster)
        for spec in specs
        for count in workers
        for minibatch in minibatches or (run.minibatch,)
        for world, cluster in places
    ]
    return tuple(dict.fromkeys(made))


def all_specs(run: Run, workers: Sequence[int]) -> list[str]:
    """Every strategy that can train this model on so many workers."""
    names = ("single", *(name for name in registry() if name != "single"))
    return [name for name in names if all(_can_start(run, name, count) for count in workers)]


def is_single(spec: str) -> bool:
    return spec.partition(":")[0] == "single"


def _can_start(run: Run, spec: str, workers: int) -> bool:
    count = 1 if is_single(spec) else workers
    try:
        strategy = config.component("strategy", spec)
        refuse_if_not_in_layers(replace(run, strategy=strategy, workers=count))
    except ValueError:
        return False
    return True


# -- on disk ----------------------------------------------------------------------------------


def home_of(folder: Path, lane: Lane, seed: int) -> Path:
    return folder / "runs" / lane.name / f"seed-{seed}"


def trials_of(folder: Path, lane: Lane) -> Path:
    return folder / "tuning" / lane.name


def trial_of(folder: Path, lane: Lane, lr: float) -> Path:
    return trials_of(folder, lane) / f"lr-{lr:.12g}"


def declare(race: Race, folder: Path, command: str) -> None:
    """Written before anything runs: what is claimed later was said first."""
    values = {"regatta_race": _VERSION, "command": command} | asdict(race)
    values["environment"] = environment()
    aside = folder / (FILE + ".tmp")
    aside.write_text(json.dumps(values, indent=1) + "\n")
    aside.replace(folder / FILE)


def declared(folder: Path) -> tuple[Race, dict[str, Any]]:
    """The race of a folder, and all that its file says."""
    path = folder / FILE
    try:
        values = json.loads(path.read_text())
        if values.get("regatta_race") != _VERSION:
            raise ValueError("not written by this version of Regatta")
        known = {f.name for f in fields(Race)}
        arguments = {name: value for name, value in values.items() if name in known}
        arguments["lanes"] = [Lane(**lane) for lane in arguments["lanes"]]
        for name in ("lanes", "seeds", "settings"):
            arguments[name] = tuple(arguments[name])
        return Race(**arguments), values
    except OSError:
        raise ValueError(f"{folder} holds no race: {path} does not exist") from None
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise ValueError(f"{path} cannot be read: {error}") from None
