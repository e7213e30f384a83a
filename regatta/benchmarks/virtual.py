"""What the virtual world costs: simulated turns against a bare PyTorch loop."""

from __future__ import annotations

import time
from statistics import median
from typing import Any

import torch

from regatta.benchmarks import Case, Result, abba, pin
from regatta.cluster import Cluster
from regatta.config import Run
from regatta.data.order import Order
from regatta.engine import Rank, Surroundings
from regatta.learn.optimisers import Sgd
from regatta.strategies import registry
from regatta.strategies.parameter_server import ParameterServer
from regatta.tasks import Task
from regatta.tasks.teacher import Teacher
from regatta.tasks.vectors import Vectors
from regatta.worlds.memory import keep_freed_memory
from regatta.worlds.virtual import VirtualWorld

_WORKERS = 64
_BAR = 0.92
_OPERATIONS_BAR = 150_000  # awaited a second, in a timing-only simulation
_RANKS = 1024


def virtual(pairs: int) -> Result:
    torch.set_num_threads(1)
    pin(0)
    keep_freed_memory()  # the peer has the use of it too
    # The machine's speed changes within seconds: short blocks, and more of them, see less of it.
    teacher = _turns("teacher network", Teacher(), 256, 2 * pairs)
    dnn = _turns("DNN of 1.4 M", Vectors(), 256, pairs)
    versus = f"{_WORKERS} virtual workers / a bare PyTorch loop (timing: / a fixed bar)"
    return Result("virtual", versus, [teacher, dnn, _operations(pairs)])


def _turns(name: str, task: Task, minibatch: int, pairs: int) -> Case:
    """One gradient and one step a turn: the parameter server's."""
    ours = _Simulation(task, minibatch)
    bare = _BareLoop(task, minibatch)
    ours.run()
    bare.run(_WORKERS)
    seconds: dict[str, list[float]] = {"A": [], "B": []}
    for side in abba(pairs):
        began = time.perf_counter()
        ours.run() if side == "A" else bare.run(_WORKERS)
        seconds[side].append(time.perf_counter() - began)
    ratios = [b / a for a, b in zip(seconds["A"], seconds["B"], strict=True)]
    return Case(
        name,
        ratios,
        _BAR,
        f"{_WORKERS / median(seconds['A']):,.0f} turns/s",
        f"{_WORKERS / median(seconds['B']):,.0f} turns/s",
    )


class _Simulation:
    """64 workers and a server whose replicas outlive a block; a block is a turn of every worker."""

    def __init__(self, task: Task, minibatch: int) -> None:
        self._run = Run(
            task=task, strategy=ParameterServer(), optimiser=Sgd(lr=0.01), workers=_WORKERS,
            minibatch=minibatch,
        )  # fmt: skip
        self._around = Surroundings("virtual", task.open(), log=lambda event: None)
        self._ranks: list[Rank] = []

    def run(self) -> None:
        world = VirtualWorld(self._run.num_ranks, self._run.cluster, workers=_WORKERS)
        if not self._ranks:
            self._ranks = [Rank(self._run, comm, comm.chance, self._around) for comm in world.comms]
        for rank, comm in zip(self._ranks, world.comms, strict=True):
            rank.comm = rank.replica.comm = comm
            rank.stream.limit = rank.replica.turns + 1
        roles = [self._run.strategy.role(comm.rank, _WORKERS) for comm in world.comms]
        world.run(lambda comm: roles[comm.rank](comm, self._ranks[comm.rank].replica))


class _BareLoop:
    """What anybody would write: zero_grad, forward, backward, step."""

    def __init__(self, task: Task, minibatch: int) -> None:
        self._data: Any = task.open()
        self._order = Order(self._data.train_samples, minibatch, 1, 0)
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
