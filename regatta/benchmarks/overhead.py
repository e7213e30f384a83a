"""What it costs to sample utilisation and to write events: blocks with it and without it.

Both sides are the same workers in the same processes; between blocks the sampler, the timeline and
the file of events are switched on and off.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any

import torch.distributed as dist

from regatta.aboard import aboard, play
from regatta.benchmarks import Case, Result, abba
from regatta.benchmarks.duel import Lap, clocks, since
from regatta.benchmarks.world import DNN, Network, measured_run
from regatta.comm import Timeline
from regatta.config import Recording, Run
from regatta.engine import Rank
from regatta.events import Event, Writer
from regatta.meters import Meters
from regatta.sampler import Sampler
from regatta.tasks.teacher import Teacher
from regatta.worlds.launch import launch

_BAR = 0.98
_WORKERS = 2
_WARM_UP = 3
# Short blocks, for machines change within seconds; a sample is taken in each.
_NETWORKS = (
    replace(DNN, steps=8, repeats=16, starts=1),
    Network("teacher network", Teacher(), 256, steps=40, repeats=16, starts=2),
)


def overhead(pairs: int, networks: tuple[Network, ...] = _NETWORKS) -> Result:
    cases = [_case(network, pairs) for network in networks]
    return Result("overhead", "two workers that write everything down / that write nothing", cases)


def _case(network: Network, pairs: int) -> Case:
    run = measured_run("all-reduce", network, _WORKERS)
    ratios, speeds = [], []
    for _ in range(pairs * network.starts):
        with tempfile.TemporaryDirectory() as folder:
            told = launch(_WORKERS, _take_part, (run, network, Path(folder)))
        blocks = {side: _speeds(told, side, network) for side in "AB"}
        ratios.append(median(a / b for a, b in zip(blocks["A"], blocks["B"], strict=True)))
        speeds.append(blocks)
    ours, peer = (f"{median(s for blocks in speeds for s in blocks[side]):,.0f}/s" for side in "AB")
    return Case(network.name, ratios, _BAR, ours, peer)


def _speeds(told: list[dict[str, list[Lap]]], side: str, network: Network) -> list[float]:
    samples = network.steps * network.minibatch
    return [sum(samples / lap.wall for lap in laps) for laps in zip(*(t[side] for t in told))]  # noqa: B905


def _take_part(
    rank: int, size: int, init_method: str, run: Run, network: Network, folder: Path
) -> dict[str, list[Lap]]:
    log = _Switched(Writer(folder / f"events-{rank}.jsonl"))
    with aboard(rank, size, init_method, run, log=log) as player:
        watched = _Watched(player, network, log)
        player.replica.stream = watched
        play(player)
    return watched.laps


@dataclass
class _Switched:
    """A log that writes while it is on."""

    write: Writer
    is_on: bool = False

    def __call__(self, event: Event) -> None:
        if self.is_on:
            self.write(event)


class _Watched:
    """A stream that times blocks of its own turns, some of them written down."""

    def __init__(self, player: Rank, network: Network, log: _Switched) -> None:
        self.laps: dict[str, list[Lap]] = {"A": [], "B": []}
        self.samples = network.minibatch
        self._player, self._network, self._log = player, network, log
        self._stream = player.stream
        self._course = self._warm_up_and_measure()

    def next(self, number: int | None = None) -> Any | None:
        return next(self._course, None)

    def _warm_up_and_measure(self) -> Iterator[Any]:
        yield from self._turns(_WARM_UP)
        for side in abba(self._network.repeats):
            dist.barrier()
            if side == "B":
                yield from self._block(side)
                continue
            recording, player = Recording(), self._player
            player.comm.traffic.timeline = Timeline(recording.spans)
            self._log.is_on = True
            meters = Meters("cpu")
            with Sampler(player.comm.rank, recording.usage, player.time, self._log, meters):
                yield from self._block(side)
            self._log.is_on = False
            player.comm.traffic.timeline = None

    def _block(self, side: str) -> Iterator[Any]:
        began = clocks()
        yield from self._turns(self._network.steps)
        self.laps[side].append(since(began))

    def _turns(self, number: int) -> Iterator[Any]:
        for _ in range(number):
            yield self._stream.next()
