"""One rank of a world of processes: its parts, from the beginning to the end."""

from __future__ import annotations

import signal
from collections.abc import Callable, Sequence
from functools import partial

import torch
import torch.distributed as dist

from regatta import start
from regatta.choices import Recorder
from regatta.config import Run
from regatta.engine import Rank, Surroundings
from regatta.events import RankEnded, Writer
from regatta.events import read as read_events
from regatta.folders import Plan, read_stored, write_plan
from regatta.meters import Joules, Meters
from regatta.opening import identity_of, open_data
from regatta.resuming import Saved
from regatta.sampler import Sampler
from regatta.strategies.fate import GO_ON
from regatta.tasks import Data
from regatta.worlds.launch import WrongUsage
from regatta.worlds.leaving import Asked
from regatta.worlds.memory import keep_freed_memory
from regatta.worlds.neighbours import host_numbers
from regatta.worlds.processes import ProcessComm, run_blocking
from regatta.worlds.roll_call import READY, Line


def play_process(
    plan: Plan,
    saved: Saved,
    leaving: Asked,
    local: int | None = None,
    line: Line | None = None,
    rejoining: bool = False,
) -> RankEnded | None:
    """Be one rank of the world that was just connected, `local` among those of its host."""
    run = plan.run
    keep_freed_memory()
    torch.set_num_threads(run.threads)
    if run.device == "cuda":
        torch.cuda.set_device(_device_index(run, local))
    hosts = host_numbers()
    data = _begin_folder(plan, saved, hosts)
    groups = run.strategy.groups(run.workers, hosts[: run.workers])
    mortal = [rank for rank in range(run.num_ranks) if run.follows_death_of(rank) == GO_ON]
    is_mortal = line is not None and dist.get_rank() in mortal
    chance = Recorder(plan.choices, dist.get_rank(), is_mortal)
    comm = ProcessComm(groups, chance, run.device, run.transport, hosts, line, mortal)
    log = Writer(plan.events)
    around = Surroundings(
        world="processes",
        data=data,
        log=log,
        told=partial(read_events, plan.events),
        folder=plan.folder,
        resume_from=saved.path,
        ranks=saved.ranks,
        returned=saved.returned,
        members=plan.members,
        rejoining=rejoining,
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


def _begin_folder(plan: Plan, saved: Saved, hosts: Sequence[int]) -> Data:
    """The data; and the run's folder is there, with what it goes on from."""
    data = open_data(plan.run)
    if saved.path is not None:
        _refuse_other_data(plan, data)
    elif dist.get_rank() == 0:
        _keep_start(plan, data)
        write_plan(plan, "processes", hosts=hosts, data=identity_of(data))
    dist.barrier()
    return data


def _device_index(run: Run, local: int | None) -> int:
    """Launched here, all ranks are on this host."""
    number = dist.get_rank() if local is None else local
    return number % torch.cuda.device_count() if run.device == "cuda" else 0


def _refuse_other_data(plan: Plan, data: Data) -> None:
    before = read_stored(plan.folder)["data"]
    if before != identity_of(data):
        raise WrongUsage(
            f"the data have changed since the run in {plan.folder} began: bring back those that it "
            "began with, or begin another run"
        )


def _watch_for_interrupt() -> Callable[[], bool]:
    """Ctrl-C ends the streams, so that the run is saved; it does not break off."""
    seen: list[int] = []
    signal.signal(signal.SIGINT, lambda number, frame: seen.append(number))
    return lambda: bool(seen)
