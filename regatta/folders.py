"""Where runs are kept: a folder each, and what stands in its run.json."""

from __future__ import annotations

import json
import os
import platform
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from regatta import config, recipes
from regatta.config import Run, Stop
from regatta.worlds.launch import WrongUsage

Stops = tuple[tuple[int, Stop], ...]


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
    make_folder(plan.folder)
    aside = plan.folder / "run.json.tmp"
    aside.write_text(json.dumps(values, indent=1) + "\n")
    aside.replace(plan.folder / "run.json")


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


def open_plan(folder: Path) -> tuple[Plan, dict[str, Any]]:
    """A run that is on disk."""
    path = folder / "run.json"
    try:
        stored = json.loads(path.read_text())
        if stored.get("regatta_run") != 1:
            raise ValueError("not written by this version of Regatta")
    except OSError:
        raise ValueError(f"{folder} holds no run: {path} does not exist") from None
    except ValueError as error:
        raise ValueError(f"{path} cannot be read: {error}") from None
    run = config.from_json(stored["run"], recipes.load(stored["recipe"]))
    stops = tuple((segment, Stop(**values)) for segment, values in stored["stops"])
    crews = tuple(
        Crew(crew["segment"], tuple(crew["members"]), tuple(crew["hosts"]))
        for crew in stored.get("crews", ())
    )
    return Plan(stored["recipe"], run, folder, stops, crews), stored
