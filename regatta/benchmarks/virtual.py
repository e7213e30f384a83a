"""What the virtual world costs: simulated turns against a bare PyTorch loop."""

from __future__ import annotations

import time
from dataclasses import replace
from statistics import median
from typing import Any

import torch

from regatta.aboard import pin, prepare_rank
from regatta.benchmarks import Case, Result, abba
from regatta.benchmarks.peers import BareLoop, ManyGradients, Place
from regatta.benchmarks.turns import Turns
from regatta.benchmarks.world import Network, measured_run, order_of
from regatta.cluster import Cluster
from regatta.config import Run
from regatta.engine import Rank, Surroundings
from regatta.strategies import registry
from regatta.stream import Stream
from regatta.tasks.teacher import Teacher
from regatta.tasks.vectors import Vectors
from regatta.worlds.launch import launch
from regatta.worlds.virtual import VirtualWorld

_WORKERS = (64, 256)
_BAR = 0.95
_IN_ROUNDS = ("all-reduce", "ring")
_ROUND_BAR = 1 / 1.15  # of 256 workers
_OPERATIONS_BAR = 150_000  # awaited a second, in a timing-only simulation
_RANKS = 1024
_STEPS, _STEPS_SECONDS = 1000, 60.0  # of all-reduce by all ranks, and how long they may take
_NETWORKS = (
    Network("teacher network", Teacher(), 256, steps=16, repeats=12),
    Network("DNN of 1.4 M", Vectors(train=max(_WORKERS) * 256), 256, steps=8, repeats=8),
)


def virtual(pairs: int) -> Result:
    torch.set_num_threads(1)
    pin(0)
    cases = [_turns(network, workers, pairs) for network in _NETWORKS for workers in _WORKERS]
    cases += [_many_gradients(network, max(_WORKERS), pairs) for network in _NETWORKS]
    rounds = max(3, pairs // 5)
    cases += [_rounds(strategy, net, rounds) for strategy in _IN_ROUNDS for net in _NETWORKS]
    versus = "virtual workers / a bare PyTorch loop (timing: / a fixed bar)"
    return Result("virtual", versus, [*cases, _operations(pairs), _steps(max(2, pairs // 5))])


def _turns(network: Network, workers: int, pairs: int) -> Case:
    """One gradient and one step a turn: the parameter server's. A pair is a fresh start."""
    started = ("parameter-server", network, workers)
    told = [launch(1, _in_a_fresh_start, started)[0] for _ in range(pairs)]
    return _case(f"{network.name}, {workers} workers", network, told, _BAR)


def _rounds(strategy: str, network: Network, pairs: int) -> Case:
    """Blocks of a turn of everybody: what is summed or merged once a round is in each of them."""
    workers = max(_WORKERS)
    network = replace(network, steps=workers, repeats=2)
    told = [launch(1, _in_a_fresh_start, (strategy, network, workers))[0] for _ in range(pairs)]
    return _case(f"{strategy}, {network.name}, {workers} workers", network, told, _ROUND_BAR)


def _many_gradients(network: Network, workers: int, pairs: int) -> Case:
    """The limit: what it costs that every worker's gradient waits, and no cache holds them all."""
    told = [launch(1, _many_in_a_fresh_start, (network, workers))[0] for _ in range(pairs)]
    return _case(f"{network.name}, limit of {workers} gradients", network, told, None)


def _case(
    name: str, network: Network, told: list[dict[str, list[float]]], bar: float | None
) -> Case:
    ours, bares = (
        f"{network.steps / median(s for seconds in told for s in seconds[side]):,.0f} turns/s"
        for side in "AB"
    )
    ratios = [
        median(b / a for a, b in zip(seconds["A"], seconds["B"], strict=True)) for seconds in told
    ]
    return Case(name, ratios, bar, ours, bares)


def _in_a_fresh_start(
    core: int, _size: int, _init_method: str, strategy: str, network: Network, workers: int
) -> dict[str, list[float]]:
    """Seconds of blocks by side."""
    prepare_rank(core, workers=1)
    run = measured_run(strategy, network, workers)
    data = run.task.open()
    world = VirtualWorld(run.num_ranks, run.cluster, workers=workers)
    around = Surroundings("virtual", data, log=lambda event: None)
    ranks = [Rank(run, comm, comm.chance, around) for comm in world.comms]
    bare = BareLoop(Place(run.task, data, order_of(network, data, workers=1), rank=0))
    turns = Turns(bare, network.steps, network.repeats, warm_up=workers + workers // 4)
    for rank in ranks:
        rank.stream.limit = 1 << 60
        rank.replica.stream = _Watched(rank.stream, turns)
    world.run(lambda comm: run.strategy.role(comm.rank, workers)(comm, ranks[comm.rank].replica))
    return turns.seconds


def _many_in_a_fresh_start(
    core: int, _size: int, _init_method: str, network: Network, workers: int
) -> dict[str, list[float]]:
    """Seconds of blocks by side."""
    prepare_rank(core, workers=1)
    run = measured_run("single", network, workers=1)
    data = run.task.open()
    place = Place(run.task, data, order_of(network, data, workers=1), rank=0)
    loops = {"A": ManyGradients(place, workers), "B": BareLoop(place)}
    loops["A"].run(workers + workers // 4)
    loops["B"].run(network.steps)
    seconds: dict[str, list[float]] = {"A": [], "B": []}
    for side in abba(network.repeats):
        began = time.perf_counter()
        loops[side].run(network.steps)
        seconds[side].append(time.perf_counter() - began)
    return seconds


class _Watched:
    def __init__(self, stream: Stream, turns: Turns) -> None:
        self.samples = stream.samples
        self._stream, self._turns = stream, turns

    def next(self, number: int | None = None) -> Any | None:
        return self._stream.next(number) if self._turns.goes_on() else None


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


def _steps(times: int) -> Case:
    """A long simulation on one core."""
    seconds = [_timing_only("all-reduce", _STEPS) for _ in range(times)]
    return Case(
        f"{_RANKS:,} ranks x {_STEPS:,} all-reduce steps",
        [each / _STEPS_SECONDS for each in seconds],
        1.0,
        f"{median(seconds):.1f} s",
        f"{_STEPS_SECONDS:.0f} s",
        at_most=True,
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
