"""A pipeline of two real workers against torch.distributed.pipelining on gloo.

Both train the same network in the same two processes, a few turns of the one, a few of the other.
The peer's blocks run between our turns, so our loop is the strategy's own and never restarts.
"""

from __future__ import annotations

from dataclasses import dataclass
from statistics import median
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.pipelining import PipelineStage, Schedule1F1B

from regatta.aboard import pin
from regatta.benchmarks import Case, Result
from regatta.benchmarks.turns import Turns
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
    comm = ProcessComm({})
    player = Rank(
        Run(
            task=_TASK,
            strategy=Pipeline(micro=micro),
            workers=size,
            minibatch=_MINIBATCH,
            optimiser=Sgd(lr=0.01),
        ),
        comm,
        comm.chance,
        Surroundings("processes", _TASK.open(), log=lambda event: None),
    )
    player.stream.limit = 1 << 60
    turns = Turns(_Peer(player, micro), _TURNS, pairs, warm_up=3, meet=dist.barrier)
    measured = _Measured(micro=micro, player=player, turns=turns)
    run_blocking(measured.worker(comm, player.replica))
    comm.close()
    dist.destroy_process_group()
    return turns.seconds["A"], turns.seconds["B"]


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


@dataclass(frozen=True)
class _Measured(Pipeline):
    """The strategy itself, with a look at the clock before every turn."""

    player: Rank | None = None
    turns: Turns | None = None

    async def _goes_on(self, comm: Comm, stage: Stage) -> bool:
        assert self.player is not None
        assert self.turns is not None
        if not self.turns.goes_on():
            self.player.stream.limit = 0  # that was all
        return await super()._goes_on(comm, stage)
