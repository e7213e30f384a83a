"""A pipeline of two real workers against torch.distributed.pipelining on gloo.

Both train the same network in the same two processes, a few turns of the one, a few of the other.
The peer's blocks run between our turns, so our loop is the strategy's own and never restarts.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from statistics import median
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.pipelining import PipelineStage, Schedule1F1B

from regatta.benchmarks import Case, Result, abba, pin
from regatta.comm import Comm
from regatta.config import Run
from regatta.engine import Rank, Surroundings
from regatta.learn.layers import split
from regatta.learn.layout import Layout
from regatta.learn.optimisers import Sgd
from regatta.learn.stage import Stage
from regatta.strategies.pipeline import Pipeline
from regatta.tasks.vectors import Vectors
from regatta.worlds.launch import launch
from regatta.worlds.memory import keep_freed_memory
from regatta.worlds.processes import ProcessComm, connect, run_blocking

_BAR = 1.0
_MINIBATCH = 256  # a worker
_TASK = Vectors(sizes=(1024,) * 5, train=4096)
_TURNS = 2  # a block
_REPEATS = 4  # blocks are short and many: the machine's speed changes within seconds


def pipeline(pairs: int) -> Result:
    versus = "two real workers / torch.distributed.pipelining's Schedule1F1B on gloo"
    return Result("pipeline", versus, [_case(micro, pairs) for micro in (2, 8)])


def _case(micro: int, pairs: int) -> Case:
    ours, peers = launch(2, _measure, (micro, _REPEATS * pairs))[0]
    samples = 2 * _TURNS * _MINIBATCH
    return Case(
        f"DNN of 4.2 M, {2 * micro} micro-batches",
        [peer / our for our, peer in zip(ours, peers, strict=True)],
        _BAR,
        f"{samples / median(ours):,.0f} samples/s",
        f"{samples / median(peers):,.0f} samples/s",
    )


def _measure(
    rank: int, size: int, init_method: str, micro: int, pairs: int
) -> tuple[list[float], list[float]]:
    pin(rank)
    keep_freed_memory()  # the peer has the use of it too
    torch.set_num_threads(1)
    connect(rank, size, init_method)
    blocks = _Blocks(pairs)
    strategy = _Measured(micro=micro, blocks=blocks)
    run = Run(
        task=_TASK, strategy=strategy, workers=size, minibatch=_MINIBATCH, optimiser=Sgd(lr=0.01)
    )
    comm = ProcessComm({})
    player = Rank(
        run, comm, comm.chance, Surroundings("processes", _TASK.open(), log=lambda event: None)
    )
    blocks.prepare(player, _Peer(player, micro))
    run_blocking(strategy.worker(comm, player.replica))
    comm.close()
    dist.destroy_process_group()
    return blocks.seconds["A"], blocks.seconds["B"]


class _Peer:
    """What anybody would write with torch.distributed.pipelining."""

    def __init__(self, player: Rank, micro: int) -> None:
        self._player = player
        rank, size = player.comm.rank, player.comm.size
        model = _TASK.model()
        layers = split(model, Layout(model), size)[rank].layers
        stage = PipelineStage(layers, rank, size, torch.device("cpu"))
        self._schedule = Schedule1F1B(stage, size * micro, loss_fn=self._loss)
        self._optimizer = torch.optim.SGD(layers.parameters(), lr=0.01)
        self._turn = 0

    def _loss(self, outputs: Tensor, inputs: Tensor) -> Tensor:
        return outputs.square().mean()

    def run(self, turns: int) -> None:
        data: Any = self._player.around.data
        workers = range(self._player.run.workers)
        for _ in range(turns):
            indices = [self._player.order.indices(worker, self._turn) for worker in workers]
            batch = data.batch(torch.cat(indices))  # the last stage fetches it too, as ours does
            self._turn += 1
            self._optimizer.zero_grad()
            if self._player.comm.rank == 0:
                self._schedule.step(batch, return_outputs=False)
            else:
                self._schedule.step(target=batch, return_outputs=False)
            self._optimizer.step()


class _Blocks:
    """Times blocks of our turns, and runs the peer's between them."""

    def __init__(self, pairs: int) -> None:
        self.seconds: dict[str, list[float]] = {"A": [], "B": []}
        self._course = self._warm_up_and_measure(pairs)

    def prepare(self, player: Rank, peer: _Peer) -> None:
        self._player, self._peer = player, peer
        player.stream.limit = 1 << 60

    def before_a_turn(self) -> None:
        if not next(self._course, False):
            self._player.stream.limit = 0  # that was all

    def _warm_up_and_measure(self, pairs: int) -> Iterator[bool]:
        for _ in range(3):
            yield True
        self._peer.run(3)
        for side in abba(pairs):
            dist.barrier()
            began = time.perf_counter()
            if side == "A":
                for _ in range(_TURNS):
                    yield True
            else:
                self._peer.run(_TURNS)
            dist.barrier()
            self.seconds[side].append(time.perf_counter() - began)


@dataclass(frozen=True)
class _Measured(Pipeline):
    """The strategy itself, with a look at the clock before every turn."""

    blocks: _Blocks = field(default_factory=lambda: _Blocks(0))

    async def _goes_on(self, comm: Comm, stage: Stage) -> bool:
        self.blocks.before_a_turn()
        return await super()._goes_on(comm, stage)
