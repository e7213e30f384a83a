"""Synchronous training by two real workers against plain DistributedDataParallel on gloo.

Both train the same network in the same two processes, a few steps of the one, a few of the other.
The peer's blocks run where our stream is asked for its next batch, so our loop is the strategy's
own and never restarts.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Iterator
from statistics import median
from typing import Any

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from regatta.benchmarks import Case, Result, abba, pin
from regatta.config import Run
from regatta.engine import Rank, Surroundings
from regatta.learn.optimisers import Sgd
from regatta.strategies.all_reduce import AllReduce
from regatta.stream import Stream
from regatta.tasks.vectors import Vectors
from regatta.worlds.launch import launch
from regatta.worlds.memory import keep_freed_memory
from regatta.worlds.processes import ProcessComm, connect, run_blocking

_BAR = 0.95
_MINIBATCH = 256
_BOTTLENECK = (680, 2048, 2048, 60, 2048, 2048, 16765)
_NETWORKS = (
    ("DNN of 1.4 M", Vectors(), 5, 4),
    ("DNN of 44 M", Vectors(sizes=_BOTTLENECK, train=2048), 1, 2),
)


def all_reduce(pairs: int) -> Result:
    versus = "two real workers / DistributedDataParallel on gloo"
    return Result("all-reduce", versus, [_case(*network, pairs) for network in _NETWORKS])


def _case(name: str, task: Vectors, steps: int, repeats: int, pairs: int) -> Case:
    """Blocks are short and many: the machine's speed changes within seconds."""
    ours, peers = launch(2, _measure, (task, steps, repeats * pairs))[0]
    samples = 2 * steps * _MINIBATCH
    return Case(
        name,
        [peer / our for our, peer in zip(ours, peers, strict=True)],
        _BAR,
        f"{samples / median(ours):,.0f} samples/s",
        f"{samples / median(peers):,.0f} samples/s",
    )


def _measure(
    rank: int, size: int, init_method: str, task: Vectors, steps: int, pairs: int
) -> tuple[list[float], list[float]]:
    pin(rank)
    keep_freed_memory()  # the peer has the use of it too
    torch.set_num_threads(1)
    connect(rank, size, init_method)
    run = Run(
        task=task, strategy=AllReduce(), workers=size, minibatch=_MINIBATCH, optimiser=Sgd(lr=0.01)
    )
    comm = ProcessComm({})
    around = Surroundings("processes", task.open(), log=lambda event: None)
    player = Rank(run, comm, comm.chance, around)
    blocks = _Blocks(player, _Ddp(task, around.data, player), steps, pairs)
    player.replica.stream = blocks
    run_blocking(run.strategy.worker(comm, player.replica))
    comm.close()
    dist.destroy_process_group()
    return blocks.seconds["A"], blocks.seconds["B"]


class _Ddp:
    def __init__(self, task: Vectors, data: Any, player: Rank) -> None:
        self._data, self._player = data, player
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            self._model = DistributedDataParallel(task.model())
        self._optimizer = torch.optim.SGD(self._model.parameters(), lr=0.01)
        self._turn = 0

    def run(self, steps: int) -> None:
        for _ in range(steps):
            indices = self._player.order.indices(self._player.comm.rank, self._turn)
            self._turn += 1
            self._optimizer.zero_grad()
            self._data.loss(self._model, self._data.batch(indices)).backward()
            self._optimizer.step()


class _Blocks:
    """A stream that times blocks of its own turns and runs the peer's between them."""

    def __init__(self, player: Rank, peer: _Ddp, steps: int, pairs: int) -> None:
        self.samples = _MINIBATCH
        self.seconds: dict[str, list[float]] = {"A": [], "B": []}
        self._stream: Stream = player.stream
        self._stream.limit = 1 << 60
        self._peer = peer
        self._steps = steps
        self._schedule = self._warm_up_and_measure(pairs)

    def next(self) -> Any | None:
        return next(self._schedule, None)

    def _warm_up_and_measure(self, pairs: int) -> Iterator[Any]:
        for _ in range(3):
            yield self._stream.next()
        self._peer.run(3)
        for side in abba(pairs):
            dist.barrier()
            began = time.perf_counter()
            if side == "A":
                for _ in range(self._steps):
                    yield self._stream.next()
            else:
                self._peer.run(self._steps)
            dist.barrier()
            self.seconds[side].append(time.perf_counter() - began)
