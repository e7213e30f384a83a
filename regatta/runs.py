"""Runs from the outside: prepare a folder, choose a world, train, simulate, resume, replay."""

from __future__ import annotations

import json
import os
import platform
import signal
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from regatta import checkpoint, choices, config, recipes
from regatta.choices import Chance, Recorder, Replayer
from regatta.comm import WORLD
from regatta.config import Run
from regatta.engine import Rank, Surroundings, run_digest
from regatta.events import Event, RankEnded, Tail, Writer
from regatta.events import read as read_events
from regatta.worlds.launch import launch
from regatta.worlds.processes import ProcessComm, connect, environment_rank, run_blocking
from regatta.worlds.virtual import VirtualWorld

Watcher = Callable[[list[Event]], None]


@dataclass(frozen=True)
class Plan:
    """A run and where it is kept; small enough to hand to every process."""

    recipe: str
    run: Run
    folder: Path

    @property
    def events(self) -> Path:
        return self.folder / "events.jsonl"

    @property
    def choices(self) -> Path:
        return self.folder / "choices.jsonl"

    @property
    def checkpoints(self) -> Path:
        return self.folder / "checkpoints"


def ignore(events: list[Event]) -> None: ...


# -- folders --------------------------------------------------------------------------------


def new_folder(out: Path | None, recipe: str, run: Run) -> Path:
    """The folder asked for, or the next free one under runs/."""
    if out is not None:
        return out
    stem = f"{Path(recipe.partition(':')[0]).stem}-{run.strategy.name}"
    number = 1
    while (folder := Path("runs") / f"{stem}-{number}").exists():
        number += 1
    return folder


def prepare(plan: Plan, world: str) -> None:
    """Make the folder and write run.json, or refuse to touch what is there."""
    if (plan.folder / "run.json").exists():
        raise ValueError(
            f"{plan.folder} already holds a run: use --resume to go on with it, or another --out"
        )
    make_folder(plan.folder)
    aside = plan.folder / "run.json.tmp"
    aside.write_text(json.dumps(_describe(plan, world), indent=1) + "\n")
    aside.replace(plan.folder / "run.json")


def make_folder(folder: Path) -> None:
    """Make a folder to write to, and see that it can be written to."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise ValueError(
            f"cannot write to {folder} ({error.strerror}): choose another --out"
        ) from None


def _describe(plan: Plan, world: str) -> dict[str, Any]:
    return {
        "regatta_run": 1,
        "recipe": recipes.absolute(plan.recipe),
        "world": world,
        "run": config.to_json(plan.run),
        "environment": environment(),
    }


def environment() -> dict[str, Any]:
    """What may change the bits of a result."""
    return {
        "torch": torch.__version__,
        "python": platform.python_version(),
        "cpu_capability": torch.backends.cpu.get_cpu_capability(),
        "machine": platform.machine(),
        "cores": os.cpu_count(),
    }


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
    return Plan(stored["recipe"], run, folder), stored


# -- real ------------------------------------------------------------------------------------


def train(plan: Plan, resume: bool = False, watch: Watcher = ignore) -> list[RankEnded]:
    """Train on processes of this machine, or as one rank of a world that torchrun started."""
    if environment_rank() is not None:
        return [_train_as_rank(plan, resume, watch)]
    resume_from = _take_up(plan) if resume else None
    if not resume:
        prepare(plan, "processes")
    tail = Tail(plan.events)
    sent = (recipes.absolute(plan.recipe), config.to_json(plan.run), plan.folder, resume_from)
    return launch(plan.run.num_ranks, _rank_body, sent, lambda: watch(tail()))


def _take_up(plan: Plan) -> Path:
    """Find the checkpoint to go on from; forget what a broken-off run did after it."""
    checkpoint.discard_unfinished(plan.checkpoints)
    path = checkpoint.newest(plan.checkpoints)
    about = checkpoint.about(path)
    if about["run"] != run_digest(plan.run):
        raise ValueError(f"{path} belongs to a run that was configured differently")
    if about["ranks"] != plan.run.num_ranks:
        raise ValueError(f"{path} has {about['ranks']} ranks, this run {plan.run.num_ranks}")
    choices.forget_from(plan.choices, about["segment"])
    return path


def _rank_body(
    rank: int, size: int, init_method: str,
    recipe: str, values: dict[str, Any], folder: Path, resume_from: Path | None,
) -> RankEnded:  # fmt: skip
    run = config.from_json(values, recipes.load(recipe))
    connect(rank, size, init_method, run.device)
    return _play_process(Plan(recipe, run, folder), resume_from)


def _train_as_rank(plan: Plan, resume: bool, watch: Watcher) -> RankEnded:
    rank_and_size = environment_rank()
    assert rank_and_size is not None
    rank, size = rank_and_size
    if size != plan.run.num_ranks:
        raise ValueError(
            f"{plan.run.strategy.name} with {plan.run.workers} workers needs "
            f"{plan.run.num_ranks} processes, but {size} were started"
        )
    connect(rank, size, "env://", plan.run.device)
    resume_from: Path | None = None
    if rank == 0:
        if resume:
            resume_from = _take_up(plan)
        else:
            prepare(plan, "processes")
    folder, resume_text = _from_rank_0(str(plan.folder), str(resume_from or ""))
    plan = replace(plan, folder=Path(folder))
    tail = Tail(plan.events)
    ended = _play_process(plan, Path(resume_text) if resume_text else None)
    watch(tail())
    return ended


def _from_rank_0(*texts: str) -> list[str]:
    """Rank 0's texts, on every rank."""
    text = "\0".join(texts).encode()
    length = torch.tensor([len(text)])
    dist.broadcast(length, 0)
    data = torch.zeros(int(length), dtype=torch.uint8)
    if dist.get_rank() == 0:
        data = torch.frombuffer(bytearray(text), dtype=torch.uint8)
    dist.broadcast(data, 0)
    return bytes(data.tolist()).decode().split("\0")


def _play_process(plan: Plan, resume_from: Path | None) -> RankEnded:
    """Be one rank of the world that was just connected."""
    run = plan.run
    torch.set_num_threads(run.threads)
    chance = Recorder(plan.choices, dist.get_rank())
    comm = ProcessComm(run.strategy.groups(run.workers), chance, run.device)
    log = Writer(plan.events)
    around = Surroundings(
        world="processes",
        data=run.task.open(),
        log=log,
        folder=plan.folder,
        resume_from=resume_from,
        interrupted=_watch_for_interrupt(),
    )
    rank = Rank(run, comm, chance, around)
    comm.start_clock()
    ended = run_blocking(rank.play())
    comm.close()
    dist.destroy_process_group()
    log.close()
    return ended


def _watch_for_interrupt() -> Callable[[], bool]:
    """Ctrl-C ends the streams, so that the run is saved; it does not break off."""
    seen: list[int] = []
    signal.signal(signal.SIGINT, lambda number, frame: seen.append(number))
    return lambda: bool(seen)


# -- virtual ---------------------------------------------------------------------------------


def simulate(
    run: Run, plan: Plan | None = None, timing_only: bool = False, watch: Watcher = ignore
) -> tuple[list[RankEnded], list[Event]]:
    """Train under a virtual clock, in this process."""
    chance: Callable[[int], Chance] | None = None
    if plan is not None:
        prepare(plan, "virtual")
        chances = [Recorder(plan.choices, rank) for rank in range(run.num_ranks)]
        chance = chances.__getitem__
    log = Writer(plan.events if plan else None, lambda event: watch([event]))
    ended = _play_virtual(run, log, chance, plan.folder if plan else None, timing_only)
    log.close()
    return ended, log.events


def _play_virtual(
    run: Run,
    log: Writer,
    chance: Callable[[int], Chance] | None,
    folder: Path | None = None,
    timing_only: bool = False,
) -> list[RankEnded]:
    torch.set_num_threads(run.threads)
    around = Surroundings(
        world="virtual", data=run.task.open(), log=log, folder=folder, timing_only=timing_only
    )
    groups: Mapping[str, Any] = run.strategy.groups(run.workers)
    extra = {} if chance is None else {"chance": chance}
    world = VirtualWorld(run.num_ranks, run.cluster, groups, run.workers, **extra)
    assert WORLD in world.groups
    return world.run(lambda comm: Rank(run, comm, comm.chance, around).play())


# -- replay ----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Replay:
    recorded: dict[int, str]  # digests by rank
    replayed: dict[int, str]
    differences: list[str]  # of the environment

    @property
    def identical(self) -> bool:
        return self.recorded == self.replayed


def replay(folder: Path, watch: Watcher = ignore) -> Replay:
    """A recorded run again in the virtual world, with the same outcomes of chance."""
    plan, stored = open_plan(folder)
    ended = [e for e in read_events(plan.events) if isinstance(e, RankEnded)]
    if len(ended) < plan.run.num_ranks:
        raise ValueError(
            f"{folder} has not ended (ranks that have: {len(ended)} of {plan.run.num_ranks}): "
            "resume it first"
        )
    recorded = choices.read(plan.choices)
    log = Writer(None, lambda event: watch([event]))
    again = _play_virtual(plan.run, log, lambda rank: Replayer(recorded, rank))
    now = environment()
    return Replay(
        recorded={e.rank: str(e.digest) for e in ended},
        replayed={e.rank: str(e.digest) for e in again},
        differences=[
            f"{name}: recorded with {was}, replayed with {now.get(name)}"
            for name, was in stored["environment"].items()
            if now.get(name) != was and name != "cores"
        ],
    )
