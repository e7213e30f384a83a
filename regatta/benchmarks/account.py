"""Where every millisecond of a step goes, by strategy and network.

A worker's time between two batches that it asks for is cut into what it does: fetching the batch,
forward and backward, the optimiser's step or merge, moving vectors (processor time inside an
exchange), waiting (the rest of an exchange), and what is left. What other threads of the process
compute goes on beside all that, on the same core.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Generator
from dataclasses import dataclass
from typing import Any, TypeAlias

from regatta.aboard import aboard, play
from regatta.benchmarks import Result
from regatta.benchmarks.world import NETWORKS, Network, measured_run
from regatta.comm import Load, Op
from regatta.stream import Stream
from regatta.worlds.launch import launch
from regatta.worlds.processes import ProcessComm

_STRATEGIES = (
    "all-reduce", "ring", "averaging:period=16", "parameter-server",
    "elastic:period=16", "gossip",
)  # fmt: skip
_PERIOD = 16  # every number of steps is a multiple: each strategy does all that it ever does
_WARM_UP = 2
Seconds: TypeAlias = defaultdict[str, float]  # by what they went to
_PARTS = ("fetch", "gradient", "step", "moving", "waiting")


def account(pairs: int, networks: tuple[Network, ...] = NETWORKS) -> Result:
    """More pairs, more steps; the medians of duels are surer, these are means."""
    rows = [row for network in networks for s in _STRATEGIES for row in _rows(s, network, pairs)]
    return Result("account", "milliseconds a step, by what they went to", [], details=rows)


def _rows(strategy: str, network: Network, pairs: int) -> list[dict[str, str | float]]:
    """That of a worker in the mean; a server's is by gradients."""
    run = measured_run(strategy, network)
    blocks = max(1, round(pairs * network.steps * network.repeats / (4 * _PERIOD)))
    told = launch(run.num_ranks, _train, (strategy, network, _PERIOD * blocks))
    workers, servers = told[: run.workers], told[run.workers :]
    rows = [_row(network.name, strategy, workers)]
    return rows + [_row(network.name, "its server", [each]) for each in servers]


def _row(network: str, who: str, ranks: list[Seconds]) -> dict[str, str | float]:
    def mean(part: str) -> float:
        return 1000 * sum(rank[part] for rank in ranks) / len(ranks)

    parts = {part: mean(part) for part in _PARTS}
    head: dict[str, str | float] = {"network": network, "strategy": who, "whole": mean("whole")}
    rest = {"other": mean("whole") - sum(parts.values()), "threads": mean("threads")}
    return head | parts | rest


def _train(
    rank: int, size: int, init_method: str, strategy: str, network: Network, steps: int
) -> Seconds:
    """Seconds a step (a server's: a gradient), by what they went to."""
    run = measured_run(strategy, network)
    with aboard(rank, size, init_method, run, Clocked) as player:
        comm: Any = player.comm
        player.replica.step = _timed(player.replica.step, comm.seconds, "step")
        if rank < run.workers:
            player.replica.stream = _Counted(player.stream, comm, steps)
        else:
            comm.begin()
        play(player)
        if rank >= run.workers:
            comm.end(player.replica.version)
        return comm.a_step  # type: ignore[no-any-return]


def _timed(work: Callable[..., Any], seconds: Seconds, part: str) -> Callable[..., Any]:
    def timed(*arguments: Any, **options: Any) -> Any:
        began = time.perf_counter()
        try:
            return work(*arguments, **options)
        finally:
            seconds[part] += time.perf_counter() - began

    return timed


def _clocks() -> tuple[float, float]:
    return time.perf_counter(), time.process_time() - time.thread_time()


class Clocked(ProcessComm):
    """A comm that notes what a rank's time goes to."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.seconds: Seconds = defaultdict(float)
        self.a_step: Seconds = defaultdict(float)

    def begin(self) -> None:
        self.seconds.clear()
        self._clocks = _clocks()

    def end(self, steps: int) -> None:
        whole, beside = (now - then for now, then in zip(_clocks(), self._clocks, strict=True))
        self.seconds |= {"whole": whole, "threads": beside}
        self.a_step.update({part: value / steps for part, value in self.seconds.items()})

    def compute(
        self, work: Callable[[], Any], load: Load, overlap: bool = False, at_once: bool = False
    ) -> Op[Any]:
        if load.samples:  # a merge is timed as the step that it is
            work = _timed(work, self.seconds, "gradient")
        return super().compute(work, load, overlap, at_once)

    def send(self, *arguments: Any, **options: Any) -> Op[None]:
        return self._exchange(super().send, *arguments, **options)

    def recv(self, *arguments: Any, **options: Any) -> Op[Any]:
        return self._exchange(super().recv, *arguments, **options)

    def poll(self, *arguments: Any, **options: Any) -> Op[Any]:
        return self._exchange(super().poll, *arguments, **options)

    def all_reduce(self, *arguments: Any, **options: Any) -> Op[Any]:
        return self._exchange(super().all_reduce, *arguments, **options)

    def _exchange(self, start: Callable[..., Op[Any]], *arguments: Any, **options: Any) -> Op[Any]:
        with _Moving(self.seconds):
            return _Watched(start(*arguments, **options), self.seconds)


class _Moving:
    """Processor time is spent on moving vectors, the rest of the time on waiting."""

    def __init__(self, seconds: Seconds) -> None:
        self._seconds = seconds

    def __enter__(self) -> None:
        self._wall, self._own = time.perf_counter(), time.thread_time()

    def __exit__(self, *error: object) -> None:
        wall, own = time.perf_counter() - self._wall, time.thread_time() - self._own
        self._seconds["moving"] += own
        self._seconds["waiting"] += max(0.0, wall - own)


@dataclass
class _Watched:
    op: Op[Any]
    seconds: Seconds

    def __await__(self) -> Generator[Any, Any, Any]:
        with _Moving(self.seconds):
            return (yield from self.op.__await__())


class _Counted:
    """A stream that begins the account after the warm-up and ends it so many steps later."""

    def __init__(self, stream: Stream, comm: Clocked, steps: int) -> None:
        self.samples = stream.samples
        self._stream, self._comm, self._steps = stream, comm, steps
        self._asked = 0

    def next(self, number: int | None = None) -> Any | None:
        if self._asked == _WARM_UP:
            self._comm.begin()
        if self._asked == _WARM_UP + self._steps:
            self._comm.end(self._steps)
            return None
        self._asked += 1
        return _timed(self._stream.next, self._comm.seconds, "fetch")(number)
