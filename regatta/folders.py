"""Where runs are kept: a folder each, and what stands in its run.json."""

from __future__ import annotations

import hashlib
import json
import os
import platform
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import torch

from regatta import config, plain, recipes
from regatta.aside import write_aside
from regatta.config import Run, Stop
from regatta.worlds.launch import WrongUsage

Stops = tuple[tuple[int, Stop], ...]
_MOST_RANKS = 1_000_000


@dataclass(frozen=True)
class Crew:
    """Who was there from a segment on; ranks are named by the numbers that they had at first."""

    segment: int
    members: tuple[int, ...]  # the first is rank 0, and so on
    hosts: tuple[int, ...]


@dataclass(frozen=True)
class Plan:
    """A run and where it is kept; small enough to hand to every process."""

    recipe: str
    run: Run
    folder: Path
    stops: Stops = ()  # that were in force, by first segment, if the run was ever resumed
    crews: tuple[Crew, ...] = ()  # if it was ever gone on with by fewer than before

    @property
    def members(self) -> tuple[int, ...]:
        return self.crews[-1].members if self.crews else tuple(range(self.run.num_ranks))

    def with_members(
        self, members: Sequence[int], segment: int, hosts: Sequence[int], returned: bool = False
    ) -> Plan:
        """These from a segment on; the `hosts` are those of the present ranks.

        It is another crew also if it is as large as before, but some of it have `returned`.
        """
        if not self.crews and not returned and tuple(members) == self.members:
            return self
        first = Crew(0, tuple(range(self.run.num_ranks)), tuple(hosts))
        here = dict(zip(self.members, hosts, strict=True))
        now = Crew(segment, tuple(members), tuple(here[member] for member in members))
        crews = [crew for crew in self.crews or (first,) if crew.segment < segment]
        if not crews or returned or crews[-1].members != now.members:
            crews.append(now)
        run = replace(self.run, workers=len(members) - self.run.strategy.num_servers)
        return replace(self, run=run, crews=tuple(crews))

    @property
    def all_stops(self) -> Stops:
        return self.stops or ((0, self.run.stop),)

    @property
    def events(self) -> Path:
        return self.folder / "events.jsonl"

    @property
    def choices(self) -> Path:
        return self.folder / "choices.jsonl"

    @property
    def checkpoints(self) -> Path:
        return self.folder / "checkpoints"


def new_folder(out: Path | None, recipe: str, run: Run) -> Path:
    """The folder asked for, or the next free one under runs/."""
    stem = f"{Path(recipe.partition(':')[0]).stem}-{run.strategy.name}"
    return out or next_free(Path("runs"), stem)


def next_free(parent: Path, stem: str) -> Path:
    number = 1
    while (folder := parent / f"{stem}-{number}").exists():
        number += 1
    return folder


def refuse_if_taken(folder: Path) -> None:
    """Before anything else: a run that is there is not touched."""
    if (folder / "run.json").exists():
        raise ValueError(
            f"{folder} already holds a run: use --resume to go on with it, or another --out"
        )
    parent = next(parent for parent in (folder, *folder.resolve().parents) if parent.exists())
    if not parent.is_dir() or not os.access(parent, os.W_OK):
        raise ValueError(f"cannot write to {folder}: choose another --out")


def make_folder(folder: Path) -> None:
    """Make a folder to write to, and see that it can be written to."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise WrongUsage(
            f"cannot write to {folder} ({error.strerror}): choose another --out"
        ) from None


def write_plan(
    plan: Plan,
    world: str,
    timing_only: bool = False,
    hosts: Sequence[int] = (),
    began: float | None = None,  # if it was before
    data: str = "",  # their digest, if they have one
) -> None:
    values = {
        "regatta_run": 1,
        "recipe": recipes.absolute(plan.recipe),
        "world": world,
        "timing_only": timing_only,
        "run": config.to_json(plan.run),
        "stops": [[segment, config.to_json(stop)] for segment, stop in plan.all_stops],
        "environment": environment(),
        "began": time.time() if began is None else began,  # seconds since 1970
        "hosts": list(hosts),  # of all ranks
        "crews": [config.to_json(crew) for crew in plan.crews],
        "data": data,
    }
    values["sha256"] = _digest(values)
    make_folder(plan.folder)
    write_aside(plan.folder / "run.json", (json.dumps(values, indent=1) + "\n").encode())


def environment() -> dict[str, Any]:
    """What may change the bits of a result."""
    return {
        "torch": torch.__version__,
        "python": platform.python_version(),
        "cpu_capability": torch.backends.cpu.get_cpu_capability(),
        "machine": platform.machine(),
        "processor": _processor(),
        "cores": os.cpu_count(),
    }


def _processor() -> str:
    """Its name, where the system tells."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.processor())


@dataclass(frozen=True)
class _Stored:
    """Of what types the values of a run.json are."""

    regatta_run: int
    recipe: str
    world: str
    run: dict[str, Any]
    stops: list[Any]
    environment: dict[str, Any]
    timing_only: bool = False
    began: float | None = None
    hosts: list[int] = field(default_factory=list)
    crews: list[dict[str, Any]] = field(default_factory=list)
    data: str = ""
    sha256: str | None = None  # of all others; earlier versions wrote none

    def __post_init__(self) -> None:
        if self.began is not None and not 0 <= self.began < 1e11:
            raise ValueError(f"began must be seconds since 1970, not {self.began}")


def read_stored(folder: Path) -> dict[str, Any]:
    """What a run.json says; nothing that it names is executed."""
    path = folder / "run.json"
    try:
        values = plain.loads(path.read_text())
        if not isinstance(values, dict) or values.get("regatta_run") != 1:
            raise ValueError("not written by this version of Regatta")
        stored = plain.made(_Stored, values)
        if stored.sha256 not in (None, _digest(values)):
            raise ValueError("it is damaged, or was changed by hand: bring back the one before")
    except FileNotFoundError:
        raise ValueError(f"{folder} holds no run: {path} does not exist") from None
    except OSError as error:
        raise ValueError(f"{path} cannot be read: {error.strerror}") from None
    except ValueError as error:
        raise ValueError(f"{path} cannot be read: {error}") from None
    return asdict(stored) | values


def _digest(values: dict[str, Any]) -> str:
    others = {name: value for name, value in values.items() if name != "sha256"}
    return hashlib.sha256(json.dumps(others, sort_keys=True).encode()).hexdigest()


def run_of(values: dict[str, Any], recipe: str) -> Run:
    """From JSON. Its recipe is executed only if it has classes of its own."""
    return config.from_json(values, Run() if config.is_known(values) else recipes.load(recipe))


def open_plan(folder: Path) -> tuple[Plan, dict[str, Any]]:
    """A run that is on disk."""
    stored = read_stored(folder)
    try:
        run = run_of(stored["run"], stored["recipe"])
        stops = tuple(map(_stop, stored["stops"]))
        crews = tuple(map(_crew, stored["crews"]))
    except ValueError as error:
        raise ValueError(f"{folder / 'run.json'} cannot be read: {error}") from None
    plan = Plan(stored["recipe"], run, folder, stops, crews)
    if len(plan.members) != run.num_ranks:
        raise ValueError(
            f"{folder / 'run.json'} cannot be read: its last crew has {len(plan.members)} members, "
            f"and the run has {run.num_ranks} ranks"
        )
    return plan, stored


def _stop(entry: Any) -> tuple[int, Stop]:
    """A first segment, and the stop that was in force from there on."""
    if not plain.fits(tuple[int, dict[str, Any]], entry):
        raise ValueError(f"stops must be pairs of a segment and a stop, not {plain.shown(entry)}")
    return entry[0], config.from_plain(Stop, entry[1])


def _crew(entry: dict[str, Any]) -> Crew:
    crew = plain.made(Crew, entry)
    members = set(crew.members)
    if not members or not len(members) == len(crew.members) == len(crew.hosts):
        raise ValueError(f"a crew has members, each with a host, not {plain.shown(entry)}")
    if not 0 <= min(members) <= max(members) < _MOST_RANKS:
        raise ValueError(f"members are ranks as they were at first, not {plain.shown(entry)}")
    return Crew(crew.segment, tuple(crew.members), tuple(crew.hosts))
