"""The world of a benchmark: the networks that are trained, and ranks that are pinned and watched.

A measured rank is the engine's own, with its strategy's own loop; it evaluates nothing and writes
nothing, and somebody else hands it its batches.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import torch
import torch.distributed as dist

from regatta.benchmarks import pin
from regatta.config import Evaluation, Recording, Run, component
from regatta.data.order import Order
from regatta.engine import Rank, Surroundings
from regatta.events import Event
from regatta.learn.optimisers import Optimiser, Sgd
from regatta.tasks import Data, Task
from regatta.tasks.sequences import Sequences
from regatta.tasks.vectors import Vectors
from regatta.worlds.memory import keep_freed_memory
from regatta.worlds.processes import ProcessComm, connect, run_blocking

_NEVER = 1e12  # epochs


@dataclass(frozen=True)
class Network:
    """What is trained, and in what portions: short blocks, for machines change within seconds."""

    name: str
    task: Task
    minibatch: int
    steps: int  # a block
    repeats: int  # blocks of either side in a fresh start
    starts: int = 1  # a pair that was asked for; more where they are cheap and luck is large
    optimiser: Optimiser = field(default_factory=lambda: Sgd(lr=0.01))


DNN = Network("DNN of 1.4 M", Vectors(), 256, steps=5, repeats=8, starts=2)
LARGE = Network(
    "DNN of 44 M",
    Vectors(sizes=(680, 2048, 2048, 60, 2048, 2048, 16765), train=2048),
    256,
    steps=1,
    repeats=5,
)
LSTM = Network("LSTM of 1.8 M", Sequences(), 16, steps=2, repeats=4)
NETWORKS = (DNN, LARGE, LSTM)


def measured_run(strategy: str, network: Network, workers: int = 2, bucket_bytes: int = 0) -> Run:
    """A run that trains and does nothing else: an evaluation is off the training clock."""
    return Run(
        task=network.task,
        strategy=component("strategy", strategy),
        workers=workers,
        minibatch=network.minibatch,
        optimiser=network.optimiser,
        bucket_bytes=bucket_bytes,
        recording=Recording(usage=0, spans=0),
        evaluation=Evaluation(every=_NEVER),
    )


def order_of(network: Network, data: Data, workers: int) -> Order:
    """The batches of a measured run, for a peer that has none of it."""
    return Order(data.train_samples, network.minibatch, workers, seed=0)


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
