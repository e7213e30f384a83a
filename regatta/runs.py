"""Runs from the outside: prepare a folder, choose a world, train, simulate, resume, replay."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from regatta import checkpoint, choices, config, recipes, start
from regatta.aftermath import Aftermath
from regatta.choices import Live, Recorder, Recorders, Replayer
from regatta.config import Run
from regatta.engine import Rank, Surroundings, order_of
from regatta.events import Event, RankEnded, Tail, Writer, standing
from regatta.events import read as read_events
from regatta.fingerprint import run_digest
from regatta.folders import Plan, Stops, environment, open_plan, refuse_if_taken, write_plan
from regatta.learn.layers import split
from regatta.learn.layout import Layout
from regatta.meters import Joules, Meters
from regatta.playing import play_virtual
from regatta.sampler import Sampler
from regatta.strategies.fate import GO_ON
from regatta.tasks import Data
from regatta.worlds.launch import RankFailed, WrongUsage, launch
from regatta.worlds.memory import keep_freed_memory
from regatta.worlds.neighbours import host_numbers
from regatta.worlds.processes import (
    ProcessComm,
    connect,
    environment_rank,
    run_blocking,
)  # fmt: skip
from regatta.worlds.roll_call import READY, Line

Watcher = Callable[[list[Event]], None]


def ignore(events: list[Event]) -> None: ...


def refuse_if_not_in_layers(run: Run) -> None:
    """Before anything is written: can the model be split, if the strategy splits it?"""
    if run.strategy.needs_layers:
        model = run.task.model()
        split(model, Layout(model), run.workers)


# -- real ------------------------------------------------------------------------------------


def train(plan: Plan, resume: bool = False, watch: Watcher = ignore) -> list[RankEnded]:
    """Train on processes of this machine, or as one rank of a world that torchrun started."""
    if plan.run.device == "cuda" and not torch.cuda.is_available():
        raise ValueError("this machine has no CUDA device for PyTorch: use --device cpu")
    refuse_if_not_in_layers(plan.run)
    if environment_rank() is not None:
        return [_train_as_rank(plan, resume, watch)]
    resume_from: Path | None = None
    if resume:
        plan, resume_from = _take_up(plan)
    else:
        refuse_if_taken(plan.folder)
        plan = replace(plan, run=start.pinned(plan.run, plan.folder))
    return _launched(plan, resume_from, watch)


def _launched(plan: Plan, resume_from: Path | None, watch: Watcher) -> list[RankEnded]:
    """On processes of this machine; once more, and more often, if they die and the run says so."""
    tail = Tail(plan.events)
    aftermath = Aftermath(plan.run, partial(_write_down, plan.events))

    def tick() -> None:
        events = tail()
        aftermath.hear(events)
        watch(events)

    while True:
        recipe, values = recipes.absolute(plan.recipe), config.to_json(plan.run)
        sent = (recipe, values, plan.folder, plan.stops, resume_from)
        try:
            return launch(plan.run.num_ranks, _rank_body, sent, tick, aftermath.goes_on)
        except RankFailed as death:
            again = aftermath.begins_again(death.rank, death.how, death.account)
            tick()
            if not again:
                raise
            plan, resume_from = _begin_again(plan)


def _write_down(events: Path, event: Event) -> None:
    if events.exists():  # else nobody has come so far that there is a run to tell of
        log = Writer(events)
        log(event)
        log.close()


def _begin_again(plan: Plan) -> tuple[Plan, Path | None]:
    """From the last checkpoint; where there is none, from the very beginning."""
    if checkpoint.finished(plan.checkpoints):
        return _take_up(plan)
    checkpoint.discard_unfinished(plan.checkpoints)
    (plan.checkpoints / checkpoint.BEST).unlink(missing_ok=True)
    choices.forget_from(plan.choices, 0)
    return plan, None


def _take_up(plan: Plan) -> tuple[Plan, Path]:
    """Find the checkpoint to go on from; forget what a broken-off run did after it."""
    checkpoint.discard_unfinished(plan.checkpoints)
    path = checkpoint.newest(plan.checkpoints)
    about = checkpoint.about(path)
    if about["run"] != run_digest(plan.run):
        raise ValueError(f"{path} belongs to a run that was configured differently")
    if about["ranks"] != plan.run.num_ranks:
        raise ValueError(f"{path} has {about['ranks']} ranks, this run {plan.run.num_ranks}")
    segment = about["segment"]
    choices.forget_from(plan.choices, segment)
    stops = [entry for entry in plan.all_stops if entry[0] < segment]
    plan = replace(plan, stops=(*stops, (segment, plan.run.stop)))
    before = open_plan(plan.folder)[1]
    began, data = before.get("began"), before.get("data", "")
    write_plan(plan, "processes", hosts=before["hosts"], began=began, data=data)
    return plan, path


def _rank_body(
    rank: int, size: int, init_method: str,
    recipe: str, values: dict[str, Any], folder: Path, stops: Stops, resume_from: Path | None,
    line: Line,
) -> RankEnded:  # fmt: skip
    run = config.from_json(values, recipes.load(recipe))
    connect(rank, size, init_method, run.device)
    return _play_process(Plan(recipe, run, folder, stops), resume_from, line)


def _train_as_rank(plan: Plan, resume: bool, watch: Watcher) -> RankEnded:
    place = environment_rank()
    assert place is not None
    rank, size = place
    if size != plan.run.num_ranks:
        raise ValueError(
            f"{plan.run.strategy.name} with {plan.run.workers} workers needs "
            f"{plan.run.num_ranks} processes, but {size} were started"
        )
    connect(rank, size, "env://", plan.run.device)
    resume_from: Path | None = None
    if rank == 0:
        if resume:
            plan, resume_from = _take_up(plan)
        else:
            refuse_if_taken(plan.folder)
            plan = replace(plan, run=start.pinned(plan.run, plan.folder))
    begins = plan.run.start
    folder, resume_text, source, digest = _from_rank_0(
        str(plan.folder), str(resume_from or ""), begins.run, begins.sha256
    )
    begins = replace(begins, run=source, sha256=digest)
    plan = replace(plan, folder=Path(folder), run=replace(plan.run, start=begins))
    if resume:  # as rank 0 has written it
        plan, _ = open_plan(plan.folder)
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


def _play_process(plan: Plan, resume_from: Path | None, line: Line | None = None) -> RankEnded:
    """Be one rank of the world that was just connected."""
    run = plan.run
    keep_freed_memory()
    torch.set_num_threads(run.threads)
    if run.device == "cuda":
        torch.cuda.set_device(_device_index(run))
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
    mortal = [rank for rank in range(run.num_ranks) if run.follows_death_of(rank) == GO_ON]
    comm = ProcessComm(groups, chance, run.device, run.transport, hosts, line, mortal)
    log = Writer(plan.events)
    around = Surroundings(
        world="processes",
        data=data,
        log=log,
        told=partial(read_events, plan.events),
        folder=plan.folder,
        resume_from=resume_from,
        start=start.place(run, plan.folder),
        interrupted=_watch_for_interrupt(),
        stops=plan.stops,
        hosts=hosts,
        joules=Joules().look if _speaks_for_its_host(comm.rank, hosts) else lambda: None,
    )
    rank = Rank(run, comm, chance, around)
    rank.begin()
    meters = Meters(run.device, _device_index(run))
    comm.start_clock()
    if line is not None:
        line.report(READY, comm.survives)
    with Sampler(comm.rank, run.recording.usage, rank.time, log, meters, around.joules):
        try:
            ended = run_blocking(rank.play())
        except Exception as error:
            error.add_note(f"on rank {comm.rank}, after {rank.replica.turns} turns")
            raise
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


def _device_index(run: Run) -> int:
    return _local_rank() % torch.cuda.device_count() if run.device == "cuda" else 0


def _local_rank() -> int:
    return int(os.environ.get("LOCAL_RANK", dist.get_rank()))


def _open_data(run: Run) -> Data:
    """The task's data, if there is enough of them for all workers."""
    data = run.task.open()
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
    folder = plan.folder if plan else None
    if folder is not None:
        refuse_if_taken(folder)
    run, data = start.pinned(run, folder), _open_data(run)
    recorders: Recorders | None = None
    if plan is not None:
        plan = replace(plan, run=run)
        start.check(run, data, plan.folder)
        start.keep(run, plan.folder)
        write_plan(plan, "virtual", timing_only, data=_identity(data))
        recorders = Recorders(plan.choices, run.num_ranks)
    log = Writer(plan.events if plan else None, lambda event: watch([event]))
    around = Surroundings(
        "virtual",
        data,
        log,
        (lambda: log.events) if plan is None else partial(read_events, plan.events),
        folder,
        start=start.place(run, folder),
        timing_only=timing_only,
        hosts=run.cluster.hosts(run.workers, run.strategy.shares(run.workers)),
    )
    try:
        if recorders is None:
            ended = play_virtual(run, around, lambda rank: Live())
        else:
            ended = play_virtual(run, around, recorders.of, forget=recorders.forget_from)
    finally:
        log.close()
        if recorders is not None:
            recorders.close()
    return ended, standing(log.events)


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
    recorded = choices.read(plan.choices)
    expected = plan.run.num_ranks - len({rank for _, rank, kind in recorded if kind == "died"})
    if len(ended) < expected:
        raise ValueError(
            f"{folder} has not ended (ranks that have: {len(ended)} of {expected}): resume it first"
        )
    log = Writer(None, lambda event: watch([event]))
    begins = start.place(plan.run, folder)
    data = _open_data(plan.run)
    around = Surroundings("virtual", data, log, lambda: log.events, start=begins, stops=plan.stops)
    undisturbed = replace(plan.run, cluster=replace(plan.run.cluster, faults=()))
    again = play_virtual(
        undisturbed, around, lambda rank: Replayer(recorded, rank), stored["hosts"]
    )
    now = environment() | {"data": _identity(data)}
    then = stored["environment"] | {"data": stored.get("data", "")}
    return Replay(
        recorded={e.rank: str(e.digest) for e in ended},
        replayed={e.rank: str(e.digest) for e in again if e is not None},
        differences=[
            f"{name}: recorded with {was}, replayed with {now.get(name)}"
            for name, was in then.items()
            if now.get(name) != was and name != "cores"
        ],
    )
