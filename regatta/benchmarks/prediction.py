"""What a probe of this machine foretells of real workers, against what they then do.

The probe has workers that compute for themselves, and messages and sums of vectors. Nothing of it
trains together; strategies, their waiting and their order are the virtual world's own.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from statistics import fmean, median
from typing import Any

from regatta.aboard import aboard, play
from regatta.benchmarks import Case, Result
from regatta.benchmarks.world import DNN, LARGE, LSTM, Network, measured_run
from regatta.cluster import Cluster
from regatta.cluster.probe import fitted
from regatta.config import Run, Stop
from regatta.probing import probe
from regatta.runs import simulate
from regatta.worlds.launch import launch

_BAR = 0.08  # of the error, in the median
_STRATEGIES = ("all-reduce", "averaging:period=16", "parameter-server", "ring")
_MINIBATCHES = ((DNN, (64, 128, 256)), (LARGE, (64, 128, 256)), (LSTM, (4, 8, 16)))
_PERIOD = 16  # steps that are measured are whole periods of averaging
_WARM_UP = 3
_SIMULATED = 10 * _PERIOD
_LUCK = 5  # simulations
_WORKERS = 2
_SECONDS = 2.0  # about so long a start measures


def prediction(pairs: int) -> Result:
    starts = max(2, pairs // 5)
    cells = [
        cell
        for network, minibatches in _MINIBATCHES
        for cell in _cells(network, minibatches, starts)
    ]
    cases = [_case("all of them", cells, _BAR)]
    for strategy in _STRATEGIES:
        cases.append(_case(strategy, [c for c in cells if c.strategy == strategy], None))
    versus = f"steps of {_WORKERS} real workers, foretold from a probe / measured"
    measure = "error of the prediction"
    return Result("prediction", versus, cases, measure, [cell.row() for cell in cells])


@dataclass(frozen=True)
class _Cell:
    network: str
    minibatch: int
    strategy: str
    measured: list[float]  # seconds a step, by start
    foretold: float

    @property
    def error(self) -> float:
        return self.foretold / median(self.measured) - 1

    @property
    def spread(self) -> float:
        return (max(self.measured) - min(self.measured)) / median(self.measured)

    def row(self) -> dict[str, str | float]:
        return {
            "network": self.network,
            "minibatch": str(self.minibatch),
            "strategy": self.strategy,
            "ms measured": 1000 * median(self.measured),
            "spread, %": 100 * self.spread,
            "ms foretold": 1000 * self.foretold,
            "error, %": 100 * self.error,
        }


def _case(name: str, cells: list[_Cell], bar: float | None) -> Case:
    """Beside the error the spread of what was measured: no prediction can be surer than that."""
    signed = median(cell.error for cell in cells)
    spread = median(cell.spread for cell in cells)
    errors = [abs(cell.error) for cell in cells]
    return Case(name, errors, bar, f"{signed:+.1%}", f"spread {spread:.1%}", at_most=True)


def _cells(network: Network, minibatches: tuple[int, ...], starts: int) -> list[_Cell]:
    fit = fitted(probe(measured_run("single", network, 1), _WORKERS, minibatches), _WORKERS)
    cluster = replace(fit.cluster, oversubscribe=True)  # a server is a third rank
    cells = []
    for minibatch in minibatches:
        sized = replace(network, minibatch=minibatch)
        for strategy in _STRATEGIES:
            run = measured_run(strategy, sized, _WORKERS)
            foretold = foretold_seconds(run, cluster)
            steps = max(1, round(_SECONDS / foretold / _PERIOD)) * _PERIOD
            measured = [
                fmean(launch(run.num_ranks, _train, (run, steps))[:_WORKERS]) for _ in range(starts)
            ]
            cells.append(_Cell(network.name, minibatch, strategy, measured, foretold))
    return cells


def foretold_seconds(run: Run, cluster: Cluster, steps: int = _SIMULATED) -> float:
    """Of a step of one worker, by the virtual clock."""
    samples = run.task.open().train_samples
    stop = Stop(epochs=steps * run.workers * run.minibatch / samples)
    seconds = []
    for start in range(_LUCK):  # what a start has by luck is drawn
        lucky = replace(cluster, jitter_seed=start)
        ended, _ = simulate(replace(run, cluster=lucky, stop=stop), timing_only=True)
        seconds += [rank.time / rank.turns for rank in ended[: run.workers]]
    return fmean(seconds)


def _train(rank: int, size: int, init_method: str, run: Run, steps: int) -> float:
    """Seconds a step of this worker; 0 of a server."""
    with aboard(rank, size, init_method, run) as player:
        if rank < run.workers:
            player.replica.stream = watched = _Watched(player.stream, steps)
        play(player)
        return watched.seconds / steps if rank < run.workers else 0.0


class _Watched:
    """A stream that times the steps between asking for a batch and for one so many later."""

    def __init__(self, stream: Any, steps: int) -> None:
        self.samples = stream.samples
        self.seconds = 0.0
        self._stream, self._steps = stream, steps
        self._asked = 0

    def next(self, number: int | None = None) -> Any | None:
        if self._asked == _WARM_UP:
            self._began = time.perf_counter()
        if self._asked == _WARM_UP + self._steps:
            self.seconds = time.perf_counter() - self._began
            return None
        self._asked += 1
        return self._stream.next(number)
