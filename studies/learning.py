"""What strategies do to learning, measured: arms of equal samples, each with its own best rate.

    python studies/learning.py one-bit|damping|damping-uneven|outer|backup|all [--seeds 5]

Every arm tries the same number of learning rates (two seeds each, which the result does not use),
then runs at its best one with further seeds. A row is the mean final accuracy with its 95 %
interval (Student's t); a difference is paired by seed, because arms share initial weights and data
order.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from statistics import mean, stdev

import torch

from regatta import config, recipes
from regatta.cluster import Cluster
from regatta.config import Run
from regatta.metrics import Summary, summarise
from regatta.runs import simulate

SMALL = (
    "task.hidden=128,128", "task.train=16384", "task.dev=4096", "minibatch=32",
    "stop.target=none", "evaluation.every=100",
)  # fmt: skip
T_95 = {4: 2.776, 5: 2.571, 6: 2.447, 7: 2.365, 8: 2.306, 9: 2.262}  # two-sided, by freedom


@dataclass(frozen=True)
class Arm:
    name: str
    spec: str
    workers: int
    epochs: float = 8
    cluster: Cluster = field(default_factory=Cluster)
    settings: tuple[str, ...] = ()  # beside the small teacher's


JITTERY = Cluster(jitter=0.3)
UNEVEN = Cluster(jitter=0.3, stragglers=4, straggle=8.0)
STUDIES: dict[str, list[Arm]] = {
    "one-bit": [
        Arm("uncompressed", "all-reduce", 8, epochs=4),
        Arm("one-bit, feedback", "all-reduce:compress=one-bit", 8, epochs=4),
        Arm("one-bit, no feedback", "all-reduce:compress=one-bit,feedback=no", 8, epochs=4),
        Arm("int8", "all-reduce:compress=int8", 8, epochs=4),
        Arm("top-k 1 %", "all-reduce:compress=top-k/0.01", 8, epochs=4),
        Arm("power-sgd rank 4", "all-reduce:compress=power-sgd/4", 8, epochs=4),
    ],
    "damping": [
        Arm("synchronous", "parameter-server:mode=sync", 32, cluster=JITTERY),
        Arm("asynchronous", "parameter-server", 32, cluster=JITTERY),
        Arm("asynchronous, damped", "parameter-server:damp=staleness", 32, cluster=JITTERY),
        Arm("asynchronous, staleness <= 40", "parameter-server:max_staleness=40", 32,
            cluster=JITTERY),
    ],
    "damping-uneven": [
        Arm("asynchronous", "parameter-server", 32, cluster=UNEVEN),
        Arm("asynchronous, damped", "parameter-server:damp=staleness", 32, cluster=UNEVEN),
        Arm("asynchronous, staleness <= 40", "parameter-server:max_staleness=40", 32,
            cluster=UNEVEN),
    ],
    "outer": [
        Arm("plain averaging", "averaging:period=8", 16),
        Arm("BMUF", "averaging:period=8,outer=bmuf", 16),
        Arm("BMUF, Nesterov", "averaging:period=8,outer=bmuf,nesterov=yes", 16),
        Arm("DiLoCo", "averaging:period=8,outer=diloco", 16),
        Arm("all-reduce", "all-reduce", 16),
    ],
    "backup": [
        Arm(f"{backup} backup workers", f"parameter-server:mode=sync,backup={backup}", 16,
            cluster=JITTERY)
        for backup in (0, 1, 2, 4)
    ],
}  # fmt: skip
RATES = (0.03, 0.1, 0.3, 1.0, 3.0)
FINER = 10**0.25
TUNING_SEEDS = (1000, 1001)


def run_of(arm: Arm, rate: float, seed: int) -> Run:
    run = config.assign(
        recipes.load("teacher"), [*SMALL, f"stop.epochs={arm.epochs}", *arm.settings]
    )
    run = replace(
        run,
        strategy=config.component("strategy", arm.spec),
        workers=arm.workers,
        seed=seed,
        cluster=replace(arm.cluster, jitter_seed=seed),
    )
    return config.assign(run, [f"optimiser.lr={rate}"])


def outcome(arm: Arm, rate: float, seed: int) -> Summary:
    return summarise(simulate(run_of(arm, rate, seed))[1])


def tuned(arm: Arm) -> float:
    """The best of five rates, then of that one and its two nearer neighbours."""

    def score(rate: float) -> float:
        values = [outcome(arm, rate, seed).final or 0.0 for seed in TUNING_SEEDS]
        return mean(0.0 if math.isnan(value) else value for value in values)

    scores = {rate: score(rate) for rate in RATES}
    best = max(scores, key=lambda rate: scores[rate])
    scores |= {rate: score(rate) for rate in (best / FINER, best * FINER)}
    return max(scores, key=lambda rate: scores[rate])


def interval(values: Sequence[float]) -> tuple[float, float]:
    """The mean, and half of its 95 % interval."""
    return mean(values), T_95[len(values) - 1] * stdev(values) / math.sqrt(len(values))


def study(name: str, seeds: int) -> None:
    first: list[float] = []
    print(f"{'arm':32}{'rate':>7}  accuracy            against the first   stale  dropped  seconds")
    for arm in STUDIES[name]:
        rate = tuned(arm)
        results = [outcome(arm, rate, seed) for seed in range(seeds)]
        finals = [result.final or 0.0 for result in results]
        first = first or finals
        middle, half = interval(finals)
        difference = ""
        if finals is not first:
            apart = interval([a - b for a, b in zip(finals, first, strict=True)])
            difference = f"{apart[0]:+.4f} +- {apart[1]:.4f}"
        staleness = mean(result.mean_staleness or 0.0 for result in results)
        dropped = mean(result.dropped_share for result in results)
        seconds = mean(result.seconds for result in results)
        print(
            f"{arm.name:32}{rate:7.3f}  {middle:.4f} +- {half:.4f}    {difference:20}"
            f"{staleness:5.1f}  {dropped:6.1%}  {seconds:7.3f}",
            flush=True,
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else "")
    parser.add_argument("name", choices=[*STUDIES, "all"])
    parser.add_argument("--seeds", type=int, default=5, choices=range(5, 11))
    given = parser.parse_args()
    torch.set_num_threads(1)
    for name in STUDIES if given.name == "all" else [given.name]:
        print(f"\n{name}: teacher, hidden layers of 128, 16,384 samples, minibatch 32 a worker")
        study(name, given.seeds)


if __name__ == "__main__":
    main()
