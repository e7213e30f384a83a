"""Runs from the outside: prepare a folder, choose a world, train, simulate, resume, replay."""

from __future__ import annotations

import signal
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from regatta import choices, config, recipes, start
from regatta.choices import Chance, Live, Recorder, Replayer
from regatta.comm import WorldFailed
from regatta.config import Run
from regatta.engine import Rank, Surroundings, order_of
from regatta.events import Event, RankEnded, Tail, Writer
from regatta.events import read as read_events
from regatta.folders import Plan, Stops, environment, open_plan, refuse_if_taken, write_plan
from regatta.learn.layers import split
from regatta.learn.layout import Layout
from regatta.meters import Joules, Meters
from regatta.outlook import Pulse, Share
from regatta.resuming import Resume, begin_or_go_on, is_done
from regatta.room import refuse_without_room
from regatta.sampler import Sampler
from regatta.tasks import Data
from regatta.worlds import started
from regatta.worlds.launch import WrongUsage, launch
from regatta.worlds.leaving import Asked, Notice, never
from regatta.worlds.memory import keep_freed_memory
from regatta.worlds.neighbours import host_numbers
from regatta.worlds.power import meters
from regatta.worlds.processes import ProcessComm, connect, run_blocking
from regatta.worlds.rendezvous import meet
from regatta.worlds.started import Place
from regatta.worlds.virtual import VirtualWorld

Watcher = Callable[[Sequence[Event | Share]], None]


def ignore(events: Sequence[Event | Share]) -> None: ...


def refuse_if_not_in_layers(run: Run) -> None:
    """Before anything is written: can the model be split, if the strategy splits it?"""
    if run.strategy.needs_layers:
        model = run.task.model()
        split(model, Layout(model), run.workers)


# -- real ------------------------------------------------------------------------------------


def train(
    plan: Plan, resume: Resume | bool = False, watch: Watcher = ignore, leaving: Asked = never
) -> list[RankEnded]:
    """Train on processes of this machine, or as one rank of a world that others started."""
    if plan.run.device == "cuda" and not torch.cuda.is_available():
        raise ValueError("this machine has no CUDA device for PyTorch: use --device cpu")
    refuse_if_not_in_layers(plan.run)
    resume = Resume(resume)
    place = started.place()
    if place is not None:
        return _train_as_rank(place, plan, resume, watch, leaving)
    if resume is Resume.IF_ANY and is_done(plan):
        return _recorded(plan)
    plan, resume_from = begin_or_go_on(plan, resume)
    tail = Tail(plan.events)
    sent = (recipes.absolute(plan.recipe), config.to_json(plan.run), plan.folder, plan.stops)
    tell = lambda: watch(tail())  # noqa: E731
    return launch(plan.run.num_ranks, _rank_body, (*sent, resume_from), tell, leaving)


def _rank_body(
    rank: int, size: int, init_method: str,
    recipe: str, values: dict[str, Any], folder: Path, stops: Stops, resume_from: Path | None,
) -> RankEnded:  # fmt: skip
    leaving = Notice().listen()
    run = config.from_json(values, recipes.load(recipe))
    connect(rank, size, init_method, run.device)
    return _play_process(Plan(recipe, run, folder, stops), resume_from, leaving)


def _train_as_rank(
    place: Place, plan: Plan, resume: Resume, watch: Watcher, leaving: Asked
) -> list[RankEnded]:
    """Rank 0 finds out how to begin, and the others hear of it."""
    if place.size != plan.run.num_ranks:
        raise ValueError(
            f"{plan.run.strategy.name} with {plan.run.workers} workers needs "
            f"{plan.run.num_ranks} processes, but {place.starter} started {place.size}"
        )
    meet(place, plan.run.device)
    done, resume_from = False, None
    if place.rank == 0:
        done = resume is Resume.IF_ANY and is_done(plan)
        if not done:
            plan, resume_from = begin_or_go_on(plan, resume)
    begins = plan.run.start
    done_text, folder, resume_text, source, digest = _from_rank_0(
        "done" if done else "", str(plan.folder), str(resume_from or ""), begins.run, begins.sha256
    )
    begins = replace(begins, run=source, sha256=digest)
    plan = replace(plan, folder=Path(folder), run=replace(plan.run, start=begins))
    if done_text:
        dist.destroy_process_group()
        return _recorded(plan)
    if resume_text:  # as rank 0 has written it
        plan, _ = open_plan(plan.folder)
    tail = Tail(plan.events)
    resume_from = Path(resume_text) if resume_text else None
    ended = _play_process(plan, resume_from, leaving, place.local)
    watch(tail())
    return [ended]


def _recorded(plan: Plan) -> list[RankEnded]:
    """How the ranks of a run that is done ended."""
    last = {e.rank: e for e in read_events(plan.events) if isinstance(e, RankEnded)}
    return [last[rank] for rank in sorted(last)]


def _from_rank_0(*texts: str) -> list[str]:
    """Rank 0's texts, on every rank."""
    text = "\0".join(texts).encode()
    length = torch.tensor([len(text)])
    try:
        dist.broadcast(length, 0)
        data = torch.zeros(int(length), dtype=torch.uint8)
        if dist.get_rank() == 0:
            data = torch.frombuffer(bytearray(text), dtype=torch.uint8)
        dist.broadcast(data, 0)
    except RuntimeError:
        raise WorldFailed("rank 0 could not begin: it says why") from None
    return bytes(data.tolist()).decode().split("\0")


def _play_process(
    plan: Plan, resume_from: Path | None, leaving: Asked, local: int | None = None
) -> RankEnded:
    """Be one rank of the world that was just connected, `local` among those of its host."""
    run = plan.run
    keep_freed_memory()
    torch.set_num_threads(run.threads)
    if run.device == "cuda":
        torch.cuda.set_device(_device_index(run, local))
    data = _open_data(run)
    if resume_from is not None:
        _refuse_other_data(plan, data)
    hosts = host_numbers()
    if dist.get_rank() == 0 and resume_from is None:
        _keep_start(plan, data)
        write_plan(plan, "processes", hosts=hosts, data=_identity(data))
    dist.barrier()  # the folder is there
    chance = Recorder(plan.choices, dist.get_rank())
    groups = run.strategy.groups(run.workers, hosts[: run.workers])
    comm = ProcessComm(groups, chance, run.device, run.transport, hosts)
    log = Writer(plan.events)
    around = Surroundings(
        world="processes",
        data=data,
        log=log,
        folder=plan.folder,
        resume_from=resume_from,
        start=start.place(run, plan.folder),
        interrupted=_watch_for_interrupt(),
        leaving=leaving,
        stops=plan.stops,
        hosts=hosts,
        joules=Joules().look if _speaks_for_its_host(comm.rank, hosts) else lambda: None,
    )
    rank = Rank(run, comm, chance, around)
    rank.begin()
    meters = Meters(run.device, _device_index(run, local))
    comm.start_clock()
    with Sampler(comm.rank, run.recording.usage, rank.time, log, meters, around.joules):
        ended = run_blocking(rank.play())
    comm.close()
    dist.destroy_process_group()
    log.close()
    chance.close()
    return ended


def _keep_start(plan: Plan, data: Data) -> None:
    try:
        start.check(plan.run, data, plan.folder)
    except ValueError as error:
        raise WrongUsage(str(error)) from None
    start.keep(plan.run, plan.folder)


def _speaks_for_its_host(rank: int, hosts: Sequence[int]) -> bool:
    return list(hosts).index(hosts[rank]) == rank


def _device_index(run: Run, local: int | None) -> int:
    """Launched here, all ranks are on this host."""
    number = dist.get_rank() if local is None else local
    return number % torch.cuda.device_count() if run.device == "cuda" else 0


def _open_data(run: Run, timing_only: bool = False) -> Data:
    """The task's data, if there is enough of them for all workers."""
    outline = getattr(run.task, "outline", run.task.open)  # nobody looks at samples then
    data: Data = outline() if timing_only else run.task.open()
    try:
        order_of(run, data)
    except ValueError as error:
        raise WrongUsage(str(error)) from None
    return data


def _identity(data: Data) -> str:
    """A digest of the samples, where a task's data tell one."""
    return str(getattr(data, "identity", ""))


def _refuse_other_data(plan: Plan, data: Data) -> None:
    before = open_plan(plan.folder)[1].get("data", "")
    if before != _identity(data):
        raise WrongUsage(
            f"the data have changed since the run in {plan.folder} began: bring back those that it "
            "began with, or begin another run"
        )


def _watch_for_interrupt() -> Callable[[], bool]:
    """Ctrl-C ends the streams, so that the run is saved; it does not break off."""
    seen: list[int] = []
    signal.signal(signal.SIGINT, lambda number, frame: seen.append(number))
    return lambda: bool(seen)


# -- virtual ---------------------------------------------------------------------------------


def simulate(
    run: Run, plan: Plan | None = None, timing_only: bool = False, watch: Watcher = ignore
) -> tuple[list[RankEnded], list[Event]]:
    """Train under a virtual clock, in this process; kept in the plan's folder, if there is one."""
    refuse_if_not_in_layers(run)
    refuse_without_room(run)
    folder = plan.folder if plan else None
    if folder is not None:
        refuse_if_taken(folder)
    run, data = start.pinned(run, folder), _open_data(run, timing_only)
    chance: Callable[[int], Chance] = lambda rank: Live()  # noqa: E731
    recorders: list[Recorder] = []
    if plan is not None:
        plan = replace(plan, run=run)
        start.check(run, data, plan.folder)
        start.keep(run, plan.folder)
        write_plan(plan, "virtual", timing_only, data=_identity(data))
        if not timing_only:  # which nobody can replay
            recorders = [Recorder(plan.choices, rank) for rank in range(run.num_ranks)]
            chance = recorders.__getitem__
    log = Writer(plan.events if plan else None, lambda event: watch([event]))
    around = Surroundings(
        "virtual",
        data,
        log,
        folder,
        start=start.place(run, folder),
        timing_only=timing_only,
        hosts=run.cluster.hosts(run.workers, run.strategy.shares(run.workers)),
        pulse=Pulse(1 if timing_only else run.workers, lambda share: watch([share])),
    )
    try:
        ended = play_virtual(run, around, chance)
    finally:
        log.close()
        for recorder in recorders:
            recorder.close()
    return ended, log.events


def play_virtual(
    run: Run,
    around: Surroundings,
    chance: Callable[[int], Chance],
    hosts: Sequence[int] = (),
) -> list[RankEnded]:
    """The `hosts` of all ranks are the cluster's, unless a replay brings those of its run."""
    keep_freed_memory()
    torch.set_num_threads(run.threads)
    of_workers = hosts[: run.workers] or run.cluster.hosts(run.workers)
    groups = run.strategy.groups(run.workers, of_workers)
    shares = run.strategy.shares(run.workers)
    world = VirtualWorld(run.num_ranks, run.cluster, groups, run.workers, chance, shares, hosts)
    joules = meters(world)
    ranks = [
        Rank(run, comm, comm.chance, replace(around, joules=joules[comm.rank]))
        if comm.rank in joules
        else Rank(run, comm, comm.chance, around)
        for comm in world.comms
    ]
    for rank in ranks:
        rank.begin()
    return world.run(lambda comm: ranks[comm.rank].play())


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
    if stored["timing_only"]:
        raise ValueError(
            f"{folder} was simulated for its timing only: it has no weights to compare"
        )
    ended = [e for e in read_events(plan.events) if isinstance(e, RankEnded)]
    if len(ended) < plan.run.num_ranks:
        raise ValueError(
            f"{folder} has not ended (ranks that have: {len(ended)} of {plan.run.num_ranks}): "
            "resume it first"
        )
    recorded = choices.read(plan.choices)
    log = Writer(None, lambda event: watch([event]))
    begins = start.place(plan.run, folder)
    data = _open_data(plan.run)
    around = Surroundings("virtual", data, log, start=begins, stops=plan.stops)
    again = play_virtual(plan.run, around, lambda rank: Replayer(recorded, rank), stored["hosts"])
    now = environment() | {"data": _identity(data)}
    then = stored["environment"] | {"data": stored.get("data", "")}
    return Replay(
        recorded={e.rank: str(e.digest) for e in ended},
        replayed={e.rank: str(e.digest) for e in again},
        differences=[
            f"{name}: recorded with {was}, replayed with {now.get(name)}"
            for name, was in then.items()
            if now.get(name) != was and name != "cores"
        ],
    )
