"""A step with natural gradients against a plain one: forward, backward, step of one worker.

Both sides are replicas of ours that play `single`, on the same batches in the same process. A block
is a whole number of periods, so that every block has its share of updates; the first ten gradients,
all of which update, are warm-up, on a few samples.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from statistics import median
from typing import Any

from regatta.aboard import aboard, play
from regatta.benchmarks import Case, Result, abba
from regatta.benchmarks.world import DNN, LARGE, Network, measured_run
from regatta.engine import Rank
from regatta.learn.natural import Natural
from regatta.worlds.launch import launch

_BAR = 1.6
_FEW = 16  # samples of a step that warms up
_WARM_UP = 12  # such steps: more than the first ten, and a whole number of periods
_NATURAL = Natural()
_NETWORKS = (
    replace(DNN, steps=2 * _NATURAL.period, repeats=8),
    replace(LARGE, minibatch=512, steps=_NATURAL.period, repeats=1),
)


def ng_sgd(pairs: int, networks: tuple[Network, ...] = _NETWORKS) -> Result:
    cases = [_case(network, pairs) for network in networks]
    versus = "a step with natural gradients / a plain one, both of one worker of ours"
    return Result("ng-sgd", versus, cases, "ratio of seconds")


def _case(network: Network, pairs: int) -> Case:
    """A pair is a fresh start."""
    told = [launch(1, _in_a_fresh_start, (network,))[0] for _ in range(pairs)]
    ratios = [
        median(a / b for a, b in zip(seconds["A"], seconds["B"], strict=True)) for seconds in told
    ]
    ours, plain = (
        f"{1000 * median(s for seconds in told for s in seconds[side]) / network.steps:,.1f} ms"
        for side in "AB"
    )
    return Case(f"{network.name}, {network.minibatch}", ratios, _BAR, ours, plain, at_most=True)


def _in_a_fresh_start(
    rank: int, size: int, init_method: str, network: Network
) -> dict[str, list[float]]:
    """Seconds of blocks by side."""
    run = replace(measured_run("single", network, workers=1), gradient=_NATURAL)
    seconds: dict[str, list[float]] = {"A": [], "B": []}
    with aboard(rank, size, init_method, run) as natural:
        plain = Rank(
            measured_run("single", network, 1), natural.comm, natural.chance, natural.around
        )
        plain.stream.limit = natural.stream.limit
        sides = {"A": natural, "B": plain}
        for player in sides.values():
            _take_steps(player, _WARM_UP, _FEW)
            _take_steps(player, 1, network.minibatch)
        _take_steps(natural, _NATURAL.period - 1, _FEW)  # a block begins with an update
        for side in abba(network.repeats):
            began = time.perf_counter()
            _take_steps(sides[side], network.steps, network.minibatch)
            seconds[side].append(time.perf_counter() - began)
    return seconds


def _take_steps(player: Rank, steps: int, samples: int) -> None:
    player.replica.stream = _Some(player, steps, samples)
    play(player)


@dataclass
class _Some:
    """So many of a rank's batches, or their first samples."""

    player: Rank
    left: int
    samples: int

    def next(self, number: int | None = None) -> Any | None:
        self.left -= 1
        if self.left < 0:
            return None
        player = self.player
        indices = player.order.indices(player.comm.rank, player.replica.turns)
        return player.around.data.batch(indices[: self.samples])
