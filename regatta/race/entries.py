"""What a race is: lanes, seeds and a target, all declared before the first run starts."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from regatta import config, plain, start
from regatta.aside import write_aside
from regatta.config import Run
from regatta.engine import order_of
from regatta.folders import environment
from regatta.resolve import resolve
from regatta.room import refuse_without_room
from regatta.runs import refuse_if_not_in_layers
from regatta.strategies import registry

PROCESSES, VIRTUAL = "processes", "virtual"
FILE = "race.json"
_VERSION = 3
_READABLE = (2, _VERSION)  # lanes of version 2 have no settings of their own
_LONGEST = 40  # letters of a setting in the name of a folder
TUNING_SEED = 10_000  # no seed that is raced: the rate must not be chosen by its own exam


@dataclass(frozen=True)
class Lane:
    """A boat: one way to train, run once with every seed."""

    spec: str
    workers: int
    minibatch: int  # a worker
    world: str = PROCESSES  # or virtual
    cluster: str = ""  # of a virtual world: a shipped name or a file; empty: the recipe's
    settings: tuple[str, ...] = ()  # name=value, only those that vary between lanes

    @property
    def is_single(self) -> bool:
        return is_single(self.spec)

    @property
    def name(self) -> str:
        """All that it is, as the name of a folder."""
        parts = [self.spec, f"{self.workers}w", f"{self.minibatch}m"]
        if self.world == VIRTUAL:
            parts.append(f"on {Path(self.cluster).stem}" if self.cluster else VIRTUAL)
        name = re.sub(r"[^A-Za-z0-9.=,+-]+", "-", " ".join(parts).replace(":", "+"))
        return "-".join([name, *(_as_folder(*setting) for setting in self.values.items())])

    @property
    def values(self) -> dict[str, str]:
        """Of its own settings, by the shortest names that a person may use."""
        parts = (setting.partition("=") for setting in self.settings)
        return {config.short_name(name): value for name, _, value in parts}


def _as_folder(name: str, value: str) -> str:
    """A setting as a part of a folder's name; a digest makes up for what is lost of it."""
    text = f"{name}={value}"
    kept = re.sub(r"[^A-Za-z0-9._=,+-]+", "-", text.replace(":", "+"))[:_LONGEST]
    if kept.replace("+", ":") == text:
        return kept
    return f"{kept}-{hashlib.sha256(text.encode()).hexdigest()[:8]}"


@dataclass(frozen=True)
class Race:
    recipe: str
    lanes: tuple[Lane, ...]
    seeds: tuple[int, ...] = (0,)
    target: float | None = None
    last: int = 1  # evaluations whose median must reach it
    tune: int = 0  # learning rates tried for every lane; 0: all take the recipe's
    settings: tuple[str, ...] = ()  # as given with --set; of those that vary a lane has its own

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
            with_values(self.settings, lane.settings),
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
        opened: list[tuple[Any, Any]] = []  # tasks and their data
        for lane, label in zip(self.lanes, label_lanes(self.lanes), strict=True):
            try:
                run = self.run(lane, self.seeds[0])
                if run.task not in [task for task, _ in opened]:
                    opened.append((run.task, run.task.open()))
                    run.task.model()
                data = next(data for task, data in opened if task == run.task)
                start.check(start.pinned(run), data)
                refuse_if_not_in_layers(run)
                if lane.world == VIRTUAL:
                    refuse_without_room(run)
                order_of(run, data)
            except (ValueError, RuntimeError) as error:  # PyTorch refuses sizes with the latter
                raise ValueError(f"{label} cannot start: {error}") from None

    def starts(self) -> Iterator[tuple[Lane, int]]:
        """Seed by seed, and every seed begins with another lane.

        A machine that grows slower in the course of the hours so favours nobody.
        """
        for turn, seed in enumerate(self.seeds):
            first = turn % len(self.lanes)
            for lane in (*self.lanes[first:], *self.lanes[:first]):
                yield lane, seed


def with_values(settings: Sequence[str], values: Sequence[str]) -> list[str]:
    """The settings in their order, with these values for those of the same names."""
    own = {value.partition("=")[0]: value for value in values}
    return [own.pop(s.partition("=")[0], s) for s in settings] + list(own.values())


def lanes_of(
    run: Run,
    specs: Sequence[str],
    workers: Sequence[int],
    minibatches: Sequence[int] = (),
    worlds: Sequence[str] = (PROCESSES,),
    clusters: Sequence[str] = (),
    combinations: Sequence[tuple[str, ...]] = ((),),
) -> tuple[Lane, ...]:
    """Every combination that there is; `single` keeps its one worker, `ring@8` its eight."""
    places = [
        (world, c) for world in worlds for c in (clusters if world == VIRTUAL else ()) or ("",)
    ]
    made = [
        Lane(spec, count, minibatch, world, cluster, settings)
        for spec, counts in (_with_workers(spec, workers) for spec in specs)
        for count in counts
        for settings in combinations
        for minibatch in minibatches or (run.minibatch,)
        for world, cluster in places
    ]
    return tuple(dict.fromkeys(made))


def _with_workers(text: str, workers: Sequence[int]) -> tuple[str, Sequence[int]]:
    """A strategy, and how many workers it is to have: its own number, if it has one."""
    spec, at, own = text.partition("@")
    if at and not (own.isdecimal() and int(own) > 0):
        raise ValueError(
            f"--strategies {plain.shortened(text)}: after @ stands a number of workers"
        )
    if is_single(spec):
        return spec, [1]
    return spec, [int(own)] if at else workers


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


def varies_in(lanes: Sequence[Lane], name: str) -> bool:
    """Whether lanes differ in workers, minibatch or settings; `single` has no choice of workers."""
    chosen = [lane for lane in lanes if not (lane.is_single and name == "workers")]
    return len({getattr(lane, name) for lane in chosen}) > 1


def label_lanes(lanes: Sequence[Lane]) -> list[str]:
    """Of each what tells it from the others, in few words."""
    shown = [n for n in ("workers", "minibatch", "settings") if varies_in(lanes, n)]
    show_place = len({(lane.world, lane.cluster) for lane in lanes}) > 1
    labels = []
    for lane in lanes:
        parts = [lane.spec]
        if "workers" in shown and not lane.is_single:
            parts.append(f"{lane.workers} worker" + ("" if lane.workers == 1 else "s"))
        if "minibatch" in shown:
            parts.append(f"minibatch {lane.minibatch}")
        if "settings" in shown:
            parts += [f"{name}={value}" for name, value in lane.values.items()]
        if show_place:
            parts.append(place_of(lane))
        labels.append(", ".join(parts))
    return labels


def place_of(lane: Lane) -> str:
    if lane.cluster:
        return f"on {Path(lane.cluster).stem}"
    return "simulated" if lane.world == VIRTUAL else "real"


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
    write_aside(folder / FILE, (json.dumps(values, indent=1) + "\n").encode())


@dataclass(frozen=True)
class _Declared:
    """Of what types the values of a race.json are."""

    recipe: str
    lanes: list[dict[str, Any]]
    seeds: list[int]
    target: float | None = None
    last: int = 1
    tune: int = 0
    settings: list[str] = field(default_factory=list)
    command: str = ""
    environment: dict[str, Any] = field(default_factory=dict)


def declared(folder: Path) -> tuple[Race, dict[str, Any]]:
    """The race of a folder, and all that its file says."""
    path = folder / FILE
    try:
        values = plain.loads(path.read_text())
        if not isinstance(values, dict) or values.get("regatta_race") not in _READABLE:
            raise ValueError("not written by this version of Regatta")
        said = plain.made(_Declared, values)
        arguments = {f.name: getattr(said, f.name) for f in fields(Race)}
        arguments |= {"seeds": tuple(said.seeds), "settings": tuple(said.settings)}
        return Race(**arguments | {"lanes": tuple(map(_lane, said.lanes))}), values
    except FileNotFoundError:
        raise ValueError(f"{folder} holds no race: {path} does not exist") from None
    except OSError as error:
        raise ValueError(f"{path} cannot be read: {error.strerror}") from None
    except ValueError as error:
        raise ValueError(f"{path} cannot be read: {error}") from None


def _lane(values: dict[str, Any]) -> Lane:
    lane = plain.made(Lane, values)
    return replace(lane, settings=tuple(lane.settings))
