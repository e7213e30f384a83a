"""A process as a rank that is measured: pinned, with nothing beside training.

Such a rank is the engine's own, with its strategy's own loop; it evaluates nothing and writes
nothing, and somebody else hands it its batches.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
import torch.distributed as dist

from regatta.config import Run
from regatta.engine import Rank, Surroundings
from regatta.events import Event
from regatta.worlds.memory import keep_freed_memory
from regatta.worlds.processes import ProcessComm, connect, run_blocking


def pin(core: int) -> None:
    """Stay on one core, where the system allows it."""
    if hasattr(os, "sched_setaffinity"):
        cores = sorted(os.sched_getaffinity(0))
        os.sched_setaffinity(0, {cores[core % len(cores)]})


def prepare_rank(rank: int, workers: int) -> None:
    """A worker has a core of its own; a server takes what is left of all of them."""
    if rank < workers:
        pin(rank)
    keep_freed_memory()  # the peer has the use of it too
    torch.set_num_threads(1)


@contextmanager
def aboard(
    rank: int,
    size: int,
    init_method: str,
    run: Run,
    kind: type[ProcessComm] = ProcessComm,
    log: Callable[[Event], None] = lambda event: None,
) -> Iterator[Rank]:
    """This process as a rank of a run, ready to play its role."""
    prepare_rank(rank, run.workers)
    connect(rank, size, init_method)
    comm = kind(run.strategy.groups(run.workers, [0] * run.workers))
    around = Surroundings("processes", run.task.open(), log=log)
    player = Rank(run, comm, comm.chance, around)
    player.stream.limit = 1 << 60
    comm.start_clock()
    yield player
    comm.close()
    dist.destroy_process_group()


def play(player: Rank) -> None:
    """Play the rank's role until its stream is dry."""
    role = player.run.strategy.role(player.comm.rank, player.run.workers)
    run_blocking(role(player.comm, player.replica))
