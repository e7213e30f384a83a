"""What the virtual world costs: simulated turns against a bare PyTorch loop."""

from __future__ import annotations

import time
from collections.abc import Iterator
from statistics import median
from typing import Any

import torch

from regatta.benchmarks import Case, Result, abba, pin
from regatta.cluster import Cluster
from regatta.config import Evaluation, Run
from regatta.data.order import Order
from regatta.engine import Rank, Surroundings
from regatta.learn.optimisers import Sgd
from regatta.strategies import registry
from regatta.strategies.parameter_server import ParameterServer
from regatta.stream import Stream
from regatta.tasks import Task
from regatta.tasks.teacher import Teacher
from regatta.tasks.vectors import Vectors
from regatta.worlds.memory import keep_freed_memory
from regatta.worlds.virtual import VirtualWorld

_WORKERS = (64, 256)
_MINIBATCH = 256
_BAR = 0.95
_BLOCK = 32  # turns: short, for the machine's speed changes within seconds
_OPERATIONS_BAR = 150_000  # awaited a second, in a timing-only simulation
_RANKS = 1024
_NEVER = 1e12  # epochs
_NETWORKS: tuple[tuple[str, Task, int], ...] = (
    ("teacher network", Teacher(), 4),
    ("DNN of 1.4 M", Vectors(train=max(_WORKERS) * _MINIBATCH), 1),
)


def virtual(pairs: int) -> Result:
    torch.set_num_threads(1)
    pin(0)
    keep_freed_memory()  # the peer has the use of it too
    cases = [
        _turns(f"{name}, {workers} workers", task, workers, repeats * pairs)
        for name, task, repeats in _NETWORKS
        for workers in _WORKERS
    ]
    versus = "virtual workers / a bare PyTorch loop (timing: / a fixed bar)"
    return Result("virtual", versus, [*cases, _operations(pairs)])


def _turns(name: str, task: Task, workers: int, pairs: int) -> Case:
    """One gradient and one step a turn: the parameter server's."""
    run = Run(
        task=task,
        strategy=ParameterServer(),
        optimiser=Sgd(lr=0.01),
        workers=workers,
        minibatch=_MINIBATCH,
        evaluation=Evaluation(every=_NEVER),  # the bare loop makes none either
    )
    around = Surroundings("virtual", task.open(), log=lambda event: None)
    world = VirtualWorld(run.num_ranks, run.cluster, workers=workers)
    ranks = [Rank(run, comm, comm.chance, around) for comm in world.comms]
    blocks = _Blocks(_BareLoop(task), workers, pairs)
    for rank in ranks:
        rank.stream.limit = 1 << 60
        rank.replica.stream = _Watched(rank.stream, blocks)
    world.run(lambda comm: run.strategy.role(comm.rank, workers)(comm, ranks[comm.rank].replica))
    ratios = [b / a for a, b in zip(blocks.seconds["A"], blocks.seconds["B"], strict=True)]
    ours, bare = (f"{_BLOCK / median(blocks.seconds[side]):,.0f} turns/s" for side in "AB")
    return Case(name, ratios, _BAR, ours, bare)


class _Blocks:
    """Times blocks of the simulation's turns, and runs the bare loop's between them."""

    def __init__(self, bare: _BareLoop, workers: int, pairs: int) -> None:
        self.seconds: dict[str, list[float]] = {"A": [], "B": []}
        self._bare = bare
        self._course = self._warm_up_and_measure(2 * workers, pairs)

    def goes_on(self) -> bool:
        """Asked before every turn of any worker."""
        return next(self._course, False)

    def _warm_up_and_measure(self, warm_up: int, pairs: int) -> Iterator[bool]:
        for _ in range(warm_up):
            yield True
        self._bare.run(_BLOCK)
        for side in abba(pairs):
            began = time.perf_counter()
            if side == "A":
                for _ in range(_BLOCK):
                    yield True
            else:
                self._bare.run(_BLOCK)
            self.seconds[side].append(time.perf_counter() - began)


class _Watched:
    def __init__(self, stream: Stream, blocks: _Blocks) -> None:
        self.samples = stream.samples
        self._stream, self._blocks = stream, blocks

    def next(self, number: int | None = None) -> Any | None:
        return self._stream.next(number) if self._blocks.goes_on() else None


class _BareLoop:
    """What anybody would write: zero_grad, forward, backward, step."""

    def __init__(self, task: Task) -> None:
        self._data: Any = task.open()
        self._order = Order(self._data.train_samples, _MINIBATCH, 1, 0)
        self._model = task.model()
        self._optimizer = torch.optim.SGD(self._model.parameters(), lr=0.01)
        self._turn = 0

    def run(self, turns: int) -> None:
        for _ in range(turns):
            batch = self._data.batch(self._order.indices(0, self._turn))
            self._turn += 1
            self._optimizer.zero_grad()
            self._data.loss(self._model, batch).backward()
            self._optimizer.step()


def _operations(pairs: int) -> Case:
    """Operations awaited a second by 1,024 ranks that exchange phantoms."""
    rates = []
    for _ in range(pairs):
        operations, seconds = 0, 0.0
        for strategy, turns, per_turn in (
            ("parameter-server", 20, 6),  # compute, send, recv; at the server recv, compute, send
            ("all-reduce", 20, 2),  # compute, all-reduce
            ("ring", 20, 4),  # compute, recv, compute (merge), send
        ):
            seconds += _timing_only(strategy, turns)
            operations += _RANKS * turns * per_turn
        rates.append(operations / seconds)
    return Case(
        f"timing, {_RANKS:,} ranks",
        [rate / _OPERATIONS_BAR for rate in rates],
        1.0,
        f"{median(rates):,.0f} awaits/s",
        f"{_OPERATIONS_BAR:,} awaits/s",
    )


def _timing_only(strategy: str, turns: int) -> float:
    kind = registry()[strategy]
    task = Vectors(sizes=(8, 8), train=_RANKS * 2)
    run = Run(task=task, strategy=kind(), workers=_RANKS, minibatch=1, cluster=Cluster())
    around = Surroundings("virtual", task.open(), log=lambda event: None, timing_only=True)
    world = VirtualWorld(run.num_ranks, run.cluster, workers=_RANKS)
    ranks = [Rank(run, comm, comm.chance, around) for comm in world.comms]
    for rank in ranks:
        rank.stream.limit = turns
    began = time.perf_counter()
    world.run(lambda comm: run.strategy.role(comm.rank, _RANKS)(comm, ranks[comm.rank].replica))
    return time.perf_counter() - began
