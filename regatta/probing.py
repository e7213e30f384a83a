"""Measure this machine for a run: gradients, steps, merges, messages and sums of real workers.

Workers never train together here. What they exchange is exchanged between gradients, as in a
training: caches then hold what they would hold there.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from statistics import median

import torch
import torch.distributed as dist

from regatta.aboard import aboard
from regatta.cluster.probe import Measured
from regatta.comm import Seconds
from regatta.config import Evaluation, Recording, Run
from regatta.engine import Rank, order_of
from regatta.learn.replica import Replica
from regatta.strategies.all_reduce import AllReduce
from regatta.strategies.single import Single
from regatta.stream import Stream
from regatta.worlds.launch import launch
from regatta.worlds.processes import run_blocking

_WARM_UP = 2
_STARTS = (2, 5)  # at least and at most; one for each so many seconds of measuring
_START_SECONDS = 0.2
_FEWEST, _MOST = 3, 500  # repeats of anything in a start
_SMALLEST = 4096  # bytes of a message: smaller ones travel with their header
_NEVER = 1e12  # epochs

Timed = Callable[[], Coroutine[None, None, Seconds]]


def to_measure(run: Run, workers: int, minibatches: tuple[int, ...]) -> Run:
    """By workers of which nobody evaluates anything."""
    for minibatch in minibatches:
        if minibatch < 1:
            raise ValueError(f"a minibatch of {minibatch}: it must be 1 or more")
    return replace(
        run,
        strategy=AllReduce() if workers > 1 else Single(),
        workers=workers,
        minibatch=max(minibatches),
        recording=Recording(usage=0, spans=0),
        evaluation=Evaluation(every=_NEVER),
    )


def probe(run: Run, workers: int, minibatches: tuple[int, ...], seconds: Seconds = 1.0) -> Measured:
    """`seconds` of measuring for every kind of work and every minibatch.

    In several fresh starts: where memory comes to lie is luck that lasts as long as a process.
    """
    run = to_measure(run, workers, minibatches)
    fewest, most = _STARTS
    count = min(max(round(seconds / _START_SECONDS), fewest), most)
    arguments = run, tuple(sorted(set(minibatches))), seconds / count
    return _together([launch(workers, _measure, arguments) for _ in range(count)])


@dataclass
class _Told:
    """What one worker has measured."""

    nbytes: int
    alone: dict[int, list[Seconds]] = field(default_factory=dict)
    together: dict[int, list[Seconds]] = field(default_factory=dict)
    steps: list[Seconds] = field(default_factory=list)
    gathers: list[Seconds] = field(default_factory=list)
    merges: list[Seconds] = field(default_factory=list)
    exchanges: list[Seconds] = field(default_factory=list)
    messages: list[tuple[int, Seconds]] = field(default_factory=list)
    sums: list[tuple[int, Seconds]] = field(default_factory=list)


def _together(starts: Sequence[Sequence[_Told]]) -> Measured:
    """What the workers of all starts have told."""
    workers = list(zip(*starts, strict=True))
    first = workers[0]

    def of_workers(what: Callable[[_Told], list[Seconds]]) -> list[list[Seconds]]:
        return [[seconds for told in worker for seconds in what(told)] for worker in workers]

    return Measured(
        nbytes=first[0].nbytes,
        alone={m: [s for told in first for s in told.alone[m]] for m in first[0].alone},
        together={m: [[told.together[m] for told in s] for s in starts] for m in first[0].together},
        steps=of_workers(lambda told: told.steps),
        gathers=of_workers(lambda told: told.gathers),
        merges=of_workers(lambda told: told.merges),
        exchanges=of_workers(lambda told: told.exchanges),
        messages=[message for told in first for message in told.messages],
        sums=[one for told in first for one in told.sums],
    )


def _measure(
    rank: int,
    size: int,
    init_method: str,
    run: Run,
    minibatches: tuple[int, ...],
    seconds: Seconds,
) -> _Told:
    with aboard(rank, size, init_method, run) as player:
        bench = _Bench(player, seconds)
        for minibatch in minibatches:
            bench.gradients(minibatch)
        bench.gathers()
        bench.merges()
        if size > 1:
            bench.messages()
            bench.sums()
            bench.exchanges()
        return bench.told


def _stream_of(player: Rank, minibatch: int) -> Stream:
    """As in a training, with all that is done for a batch there; without end."""
    player.order = order_of(replace(player.run, minibatch=minibatch), player.around.data)
    stream = Stream(player, player.comm.rank)
    stream.limit = 1 << 60
    return stream


class _Bench:
    def __init__(self, player: Rank, seconds: Seconds) -> None:
        self._player, self._seconds = player, seconds
        self._comm = player.comm
        self._replica: Replica = player.replica
        self.told = _Told(self._replica.layout.nbytes)
        self._gradient_seconds = 0.0  # of the smallest minibatch

    def gradients(self, minibatch: int) -> None:
        """By worker 0 alone, while the others wait; then by all at once, each for itself."""
        self._replica.stream = _stream_of(self._player, minibatch)
        alone: list[Seconds] = []
        times = 0
        if self._comm.rank == 0:
            self._train(_WARM_UP)
            guess = self._train(1)[0][0]
            times = self._times(guess)
            alone, _ = self._train(times)
        times = int(self._agreed(times))
        self.told.alone[minibatch] = alone
        self._train(_WARM_UP)
        dist.barrier()
        found, steps = self._train(times)
        self.told.together[minibatch] = found
        self.told.steps += steps
        if not self._gradient_seconds:
            self._gradient_seconds = self._agreed(median(found) * (self._comm.rank == 0))
            self._smallest = self._replica.stream
        dist.barrier()

    def gathers(self) -> None:
        """What a gradient takes longer as one vector, each beside one that is none."""
        replica = self._replica
        replica.stream = self._smallest

        async def both() -> Seconds:
            seconds = []
            for written in (False, True):
                began = time.perf_counter()
                replica.step(await replica.gradient(written=written))
                seconds.append(time.perf_counter() - began)
            return seconds[1] - seconds[0]

        self.told.gathers = self._repeated(both, 2 * self._gradient_seconds)

    def merges(self) -> None:
        """A gradient into the model of the worker before, as nodes of a ring do."""
        comm, replica = self._comm, self._replica
        replica.stream = self._smallest
        following, previous = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size

        async def merge() -> Seconds:
            gradient = await replica.gradient(written=False)
            await comm.send(following, replica.weights)
            model = await comm.recv(previous)
            replica.load(model.taken())
            began = time.perf_counter()
            replica.step(gradient)
            return time.perf_counter() - began

        self.told.merges = self._repeated(merge, self._gradient_seconds)

    def messages(self) -> None:
        """There and back between worker 0 and each other, in turn; one way is half of that."""
        comm = self._comm
        for nbytes in self._sizes():
            vector = comm.empty(nbytes // 4, torch.float32, torch.device("cpu")).zero_()
            for other in range(1, comm.size):
                dist.barrier()
                if comm.rank in (0, other):
                    there = partial(self._there_and_back, vector, other)
                    for seconds in self._repeated(there, 1e-3):
                        self.told.messages.append((nbytes, seconds / 2))

    async def _there_and_back(self, vector: torch.Tensor, other: int) -> Seconds:
        comm = self._comm
        began = time.perf_counter()
        if comm.rank == 0:
            await comm.send(other, vector)
            await comm.recv(other)
        else:
            await comm.recv(0)
            await comm.send(0, vector)
        return time.perf_counter() - began

    def sums(self) -> None:
        comm = self._comm
        for nbytes in self._sizes():
            vector = comm.empty(nbytes // 4, torch.float32, torch.device("cpu")).zero_()

            async def add(vector: torch.Tensor = vector) -> Seconds:
                began = time.perf_counter()
                await comm.all_reduce(vector)
                return time.perf_counter() - began

            self.told.sums.append((nbytes, median(self._repeated(add, 1e-3))))

    def exchanges(self) -> None:
        """A sum of the workers' gradients and a step with it, as all-reduce makes them."""
        comm, replica = self._comm, self._replica

        async def exchange() -> Seconds:
            gradient = await replica.gradient()
            dist.barrier()  # waiting for the slower is not the sum's
            began = time.perf_counter()
            total = await comm.all_reduce(gradient, written=False)
            replica.step(total, of=int(total[-1]))
            return time.perf_counter() - began

        self.told.exchanges = self._repeated(exchange, self._gradient_seconds)

    def _train(self, times: int) -> tuple[list[Seconds], list[Seconds]]:
        """Gradients and steps of a worker by itself; seconds of either."""
        gradients, steps = [], []

        async def turn() -> None:
            began = time.perf_counter()
            gradient = await self._replica.gradient(written=False)
            done = time.perf_counter()
            self._replica.step(gradient)
            steps.append(time.perf_counter() - done)
            gradients.append(done - began)

        for _ in range(times):
            run_blocking(turn())
        return gradients, steps

    def _repeated(self, work: Timed, guess: Seconds) -> list[Seconds]:
        times = self._times(guess)
        return [run_blocking(work()) for _ in range(_WARM_UP + times)][_WARM_UP:]

    def _times(self, guess: Seconds) -> int:
        return min(max(math.ceil(self._seconds / guess), _FEWEST), _MOST)

    def _agreed(self, found: float) -> float:
        """What worker 0 has found; the others bring 0."""
        sum_of_all = torch.tensor([found], dtype=torch.float64)
        dist.all_reduce(sum_of_all)
        return float(sum_of_all)

    def _sizes(self) -> list[int]:
        """From small messages to the whole vector, each four times the one before."""
        count = max(2, math.ceil(math.log(self.told.nbytes / _SMALLEST, 4)) + 1)
        sizes = {min(_SMALLEST * 4**n, self.told.nbytes) // 4 * 4 for n in range(count)}
        return sorted(sizes)
