"""A strategy against a peer, block by block in the same processes.

The peer's blocks run where our stream is asked for its next batch, so our loop is the strategy's
own and never restarts. Workers begin a block together; then each times its own steps, and the speed
of a block is the sum of the workers' speeds. So whoever need not meet is not made to.

Where memory comes to lie is luck that lasts as long as a process and makes one side faster by some
per cent. So every pair that is asked for is a fresh start of the processes, and its ratio the
median of the blocks that they run: what an interval is made of is independent.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Any, NamedTuple

import torch.distributed as dist

from regatta.aboard import aboard, play
from regatta.benchmarks import Case, abba
from regatta.benchmarks.peers import Peer, Place
from regatta.benchmarks.world import Network, measured_run
from regatta.config import Run
from regatta.engine import Rank
from regatta.worlds.launch import launch

_WARM_UP = 3  # steps


class Lap(NamedTuple):
    """One worker's block: seconds by the clock, and of the processor."""

    wall: float
    own: float  # by the thread that trains
    others: float  # by all other threads of the process: transports


@dataclass(frozen=True)
class Duel:
    """What the workers have seen, and what a server has used."""

    steps: int  # a block
    minibatch: int
    blocks: int  # of a side, in every start
    workers: list[dict[str, list[Lap]]]  # blocks by side: A ours, B the peer's
    server: Any = None

    def speeds(self, side: str) -> list[float]:
        """Samples a second in each block, of all workers together."""
        samples = self.steps * self.minibatch
        blocks = zip(*(worker[side] for worker in self.workers), strict=True)
        return [sum(samples / lap.wall for lap in laps) for laps in blocks]

    @property
    def ratios(self) -> list[float]:
        """One of every start."""
        ratios = [a / b for a, b in zip(self.speeds("A"), self.speeds("B"), strict=True)]
        starts = range(0, len(ratios), self.blocks)
        return [median(ratios[first : first + self.blocks]) for first in starts]

    def milliseconds(self, side: str, of: Callable[[Lap], float]) -> float:
        """A step of one worker, in the median."""
        laps = [of(lap) for worker in self.workers for lap in worker[side]]
        return 1000 * median(laps) / self.steps

    def case(self, name: str, bar: float | None) -> Case:
        ours, peer = (f"{median(self.speeds(side)):,.0f}/s" for side in "AB")
        return Case(name, self.ratios, bar, ours, peer)


def duel(
    strategy: str,
    network: Network,
    peer: type[Peer],
    pairs: int,
    lead: int = 0,
    workers: int = 2,
    bucket_bytes: int = 0,
) -> Duel:
    """`lead` steps of every block are not timed: workers that run staggered take up their places.

    Where one waits for what another has to finish first, a common start would be counted against
    them once a block, though a run has it only once.
    """
    run = measured_run(strategy, network, workers, bucket_bytes)
    plan = _Plan(network.steps, network.repeats, lead)
    starts = pairs * network.starts
    told = [launch(run.num_ranks, _take_part, (run, peer, plan)) for _ in range(starts)]
    ranks = [_added(of_rank) for of_rank in zip(*told, strict=True)]
    server = ranks[workers] if run.num_ranks > workers else None
    return Duel(network.steps, network.minibatch, network.repeats, ranks[:workers], server)


def between_peers(network: Network, first: type[Peer], second: type[Peer], pairs: int) -> Duel:
    """Two peers against each other: what one limit costs beside another."""
    run = measured_run("averaging", network)
    plan = _Plan(network.steps, network.repeats, lead=0)
    starts = pairs * network.starts
    told = [launch(run.workers, _stand_by, (run, first, second, plan)) for _ in range(starts)]
    ranks = [_added(of_rank) for of_rank in zip(*told, strict=True)]
    return Duel(network.steps, network.minibatch, network.repeats, ranks)


def _place_of(player: Rank, rank: int) -> Place:
    run, data = player.run, player.around.data
    return Place(run.task, data, player.order, rank, player.comm, run.optimiser)


def _stand_by(
    rank: int, size: int, init_method: str, run: Run,
    first: type[Peer], second: type[Peer], plan: _Plan,
) -> dict[str, list[Lap]]:  # fmt: skip
    laps: dict[str, list[Lap]] = {"A": [], "B": []}
    with aboard(rank, size, init_method, run) as player:
        place = _place_of(player, rank)
        sides = {"A": first(place), "B": second(place)}
        for peer in sides.values():
            peer.run(plan.steps)
        for side in abba(plan.pairs):
            dist.barrier()
            began = clocks()
            sides[side].run(plan.steps)
            laps[side].append(since(began))
    return laps


def _added(starts: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """What a rank has told in all its starts: laps one after another, seconds together."""
    whole = dict(starts[0])
    for told in starts[1:]:
        for name, value in told.items():
            whole[name] = whole[name] + value
    return whole


@dataclass(frozen=True)
class _Plan:
    steps: int
    pairs: int
    lead: int


def _take_part(
    rank: int, size: int, init_method: str, run: Run, peer: type[Peer], plan: _Plan
) -> Any:
    with aboard(rank, size, init_method, run) as player:
        # A server knows nothing of blocks: it serves whoever comes.
        workers = dist.new_group(list(range(run.workers)))
        if rank >= run.workers:
            return _serve(player)
        place = _place_of(player, rank)
        blocks = Blocks(player, peer(place), plan, workers)
        player.replica.stream = blocks
        play(player)
        return blocks.laps


def _serve(player: Rank) -> dict[str, float]:
    began = time.process_time()
    play(player)
    return {"seconds": time.process_time() - began, "gradients": player.replica.version}


@dataclass
class Blocks:
    """A stream that times blocks of its own turns and runs the peer's between them."""

    player: Rank
    peer: Peer
    plan: _Plan
    workers: Any  # who begin a block together
    laps: dict[str, list[Lap]] = field(default_factory=lambda: {"A": [], "B": []})

    def __post_init__(self) -> None:
        self.samples = self.player.run.minibatch
        self._stream = self.player.stream
        self._course = self._warm_up_and_measure()

    def next(self, number: int | None = None) -> Any | None:
        return next(self._course, None)

    def _warm_up_and_measure(self) -> Iterator[Any]:
        yield from self._ours(_WARM_UP)
        self.peer.run(_WARM_UP)
        for side in abba(self.plan.pairs):
            dist.barrier(self.workers)
            if side == "A":
                yield from self._ours(self.plan.lead)
                began = clocks()
                yield from self._ours(self.plan.steps)
            else:
                self.peer.run(self.plan.lead)
                began = clocks()
                self.peer.run(self.plan.steps)
            self.laps[side].append(since(began))

    def _ours(self, steps: int) -> Iterator[Any]:
        for _ in range(steps):
            yield self._stream.next()


def clocks() -> Lap:
    own = time.thread_time()
    return Lap(time.perf_counter(), own, time.process_time() - own)


def since(began: Lap) -> Lap:
    return Lap(*(now - then for now, then in zip(clocks(), began, strict=True)))
