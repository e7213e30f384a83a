"""Small tasks, and two ways to play: a whole run by the engine, or bare roles in a world."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from regatta.choices import Chance, Live
from regatta.cluster import Cluster
from regatta.config import Checkpointing, Evaluation, Run, Stop, component
from regatta.engine import Rank, Surroundings
from regatta.events import Evaluated, Event, RankEnded, Writer
from regatta.learn.body import Body
from regatta.learn.optimisers import Optimiser, Sgd
from regatta.learn.replica import Replica
from regatta.runs import simulate
from regatta.strategies import Strategy, registry
from regatta.tasks import Metric
from regatta.worlds.virtual import VirtualComm, VirtualWorld

ROUND = Cluster(sample_seconds=1.0, merge_bandwidth=32.0, latency=0.125, bandwidth=16.0)
"""Hosts whose times for a vector of 8 bytes are binary fractions: a minibatch of one sample takes
1 s, a merge 0.25 s, a transmission 0.125 + 0.5 s. Sums of them are exact."""


# -- tasks ----------------------------------------------------------------------------------


class Pairs:
    """Inputs with targets, and the mean square of what a model misses them by."""

    def __init__(self, inputs: Tensor, targets: Tensor) -> None:
        self.train_samples = len(inputs)
        self.inputs, self.targets = inputs, targets

    def batch(self, indices: Tensor) -> tuple[Tensor, Tensor]:
        return self.inputs[indices], self.targets[indices]

    def loss(self, model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
        inputs, targets = batch
        return (model(inputs) - targets).square().mean()

    def evaluate(self, model: nn.Module) -> dict[str, float]:
        return {"loss": self.loss(model, (self.inputs, self.targets)).item()}


class Shift(nn.Module):
    """A bias as a layer of its own; it leaves a quadratic a quadratic."""

    def __init__(self, number: int) -> None:
        super().__init__()
        self.bias = nn.Parameter(torch.tensor([number / 8]))

    def forward(self, inputs: Tensor) -> Tensor:
        return inputs + self.bias


@dataclass(frozen=True)
class Quadratic:
    """Least squares on fixed vectors; the least loss is 0."""

    name: ClassVar[str] = "quadratic"
    metric: ClassVar[Metric] = Metric("loss", higher_is_better=False)

    inputs: int = 4
    train: int = 240
    layers: int = 1

    def model(self) -> nn.Module:
        linear = nn.Linear(self.inputs, 1)
        more = [Shift(number) for number in range(1, self.layers)]
        return nn.Sequential(linear, *more) if more else linear

    def open(self) -> Pairs:
        generator = torch.Generator().manual_seed(7)
        inputs = torch.randn(self.train, self.inputs, generator=generator)
        wanted = torch.arange(1.0, self.inputs + 1)
        return Pairs(inputs, (inputs @ wanted).unsqueeze(1) + 2.0)


@dataclass(frozen=True)
class Normalised(Quadratic):
    """The same with BatchNorm in front, and inputs of mean 3 and variance 4 for it to find."""

    name: ClassVar[str] = "normalised"

    momentum: float | None = 0.1

    def model(self) -> nn.Module:
        norm = nn.BatchNorm1d(self.inputs, momentum=self.momentum)
        return nn.Sequential(norm, nn.Linear(self.inputs, 1), *map(Shift, range(2, self.layers)))

    def open(self) -> Pairs:
        data = super().open()
        return Pairs(3.0 + 2.0 * data.inputs, data.targets)


class Countless:
    """So many samples without contents, for runs that only take time."""

    def __init__(self, samples: int) -> None:
        self.train_samples = samples

    def batch(self, indices: Tensor) -> Any:
        raise AssertionError("a timing-only run looked at its data")

    def loss(self, model: nn.Module, batch: Any) -> Tensor:
        raise AssertionError("a timing-only run computed a loss")

    def evaluate(self, model: nn.Module) -> dict[str, float]:
        raise AssertionError("a timing-only run evaluated")


@dataclass(frozen=True)
class Sized:
    """A model of so many bytes and any number of samples; timing only."""

    name: ClassVar[str] = "sized"
    metric: ClassVar[Metric] = Metric("loss", higher_is_better=False)

    nbytes: int = 4000
    train: int = 1000

    def model(self) -> nn.Module:
        return nn.Linear(self.nbytes // 4 - 1, 1, bias=False)

    def open(self) -> Countless:
        return Countless(self.train)


# -- whole runs, played by the engine -------------------------------------------------------


def every_spec() -> list[str]:
    """Every strategy in every mode that it declares, as one writes it on the command line."""
    return [
        f"{name}:{mode}" if mode else name
        for name, kind in registry().items()
        for mode in kind.modes
    ]


def built(spec: str) -> Strategy:
    return component("strategy", spec)


def strategies_for(*worker_counts: int) -> list[tuple[str, int]]:
    """Every strategy in every mode with every number of workers that it permits."""
    return [
        (spec, workers)
        for spec in every_spec()
        for workers in ((1,) if spec == "single" else worker_counts)
        if permits(built(spec), workers)
    ]


def permits(strategy: Strategy, workers: int) -> bool:
    try:
        strategy.check(workers)
    except ValueError:
        return False
    return True


def layers_for(strategy: Strategy) -> int:
    """How many layers a model must have for as many workers as there are in these tests."""
    return 5 if strategy.needs_layers else 1


def small_run(strategy: Strategy | str, workers: int = 1, **changes: Any) -> Run:
    """Two epochs of the quadratic, 4 samples a minibatch."""
    if isinstance(strategy, str):
        strategy = built(strategy)
    run = Run(
        task=Quadratic(layers=layers_for(strategy)),
        strategy=strategy,
        optimiser=Sgd(lr=0.05),
        workers=workers,
        minibatch=4,
        stop=Stop(epochs=2),
        evaluation=Evaluation(every=1.0),
        checkpointing=Checkpointing(),
    )
    return replace(run, **changes)


@dataclass(frozen=True)
class Played:
    ranks: list[RankEnded]
    events: list[Event]

    @property
    def digests(self) -> list[str | None]:
        return [rank.digest for rank in self.ranks]

    @property
    def losses(self) -> list[float]:
        return [e.results["loss"] for e in self.events if isinstance(e, Evaluated)]

    @property
    def comparable_events(self) -> list[Event]:
        """Without the one wall time among them: how long scoring really took."""
        return [replace(e, seconds=0.0) if isinstance(e, Evaluated) else e for e in self.events]


def play(run: Run, timing_only: bool = False) -> Played:
    """Simulate a run that leaves nothing on disk."""
    return Played(*simulate(run, timing_only=timing_only))


def timed(
    strategy: Strategy, workers: int, turns: int, cluster: Cluster, nbytes: int = 400
) -> list[RankEnded]:
    """The ranks of a timing-only run with so many minibatches of one sample a worker."""
    run = small_run(
        strategy,
        workers,
        task=Sized(nbytes, train=workers * max(turns, 1)),
        minibatch=1,
        stop=Stop(epochs=1 if turns else 0.1),
        cluster=cluster,
    )
    return play(run, timing_only=True).ranks


def play_from(run: Run, chance: Callable[[int], Chance] | None = None, **around: Any) -> Played:
    """As `play`, with the rank's surroundings (resume_from, folder ...) open to the test."""
    log = Writer(None)
    surroundings = Surroundings(world="virtual", data=run.task.open(), log=log, **around)
    world = VirtualWorld(
        run.num_ranks,
        run.cluster,
        run.strategy.groups(run.workers, run.cluster.hosts(run.workers)),
        run.workers,
        chance or (lambda rank: Live()),
        run.strategy.shares(run.workers),
    )
    ranks = [Rank(run, comm, comm.chance, surroundings) for comm in world.comms]
    for rank in ranks:
        rank.begin()
    ended = world.run(lambda comm: ranks[comm.rank].play())
    return Played(ended, log.events)


# -- bare roles -----------------------------------------------------------------------------


class Shard:
    """A worker's batches, made by hand; it also knows those of the others."""

    samples = 1

    def __init__(self, of_all: list[list[Any]], worker: int) -> None:
        self._of_all = of_all
        self._worker = worker
        self._taken: Counter[int] = Counter()  # by worker, as far as this rank knows

    @property
    def planned(self) -> int:
        return sum(map(len, self._of_all))

    def next(self, number: int | None = None) -> Any | None:
        if number is not None:
            turn, worker = divmod(number, len(self._of_all))
            return self.batch(worker, turn)
        batch = self.batch(self._worker, self._taken[self._worker])
        self._taken[self._worker] += batch is not None
        return batch

    def together(self, asks: bool) -> dict[int, Callable[[], Any]]:
        workers = range(len(self._of_all))
        batches = {worker: self.batch(worker, self._taken[worker]) for worker in workers}
        found = {worker: batch for worker, batch in batches.items() if batch is not None}
        self._taken.update(found.keys())
        return {worker: partial(_itself, batch) for worker, batch in found.items()}

    def batch(self, worker: int, turn: int) -> Any | None:
        batches = self._of_all[worker] if worker < len(self._of_all) else []
        return batches[turn] if turn < len(batches) else None


def _itself(batch: Any) -> Any:
    return batch


class Weight(nn.Module):
    """One weight that starts at 1."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(1))


def slope(model: nn.Module, batch: float) -> Tensor:
    """A loss whose gradient is the batch itself, wherever the weight stands."""
    loss: Tensor = batch * model.weight.sum()  # type: ignore[operator, union-attr]
    return loss


def shifts() -> nn.Module:
    """Layers for whoever splits them."""
    return nn.Sequential(*[Shift(number) for number in range(5)])


def mean_output(model: nn.Module, batch: Tensor) -> Tensor:
    """A loss by which every shift has a gradient of 1."""
    output: Tensor = model(batch)
    return output.mean()


@dataclass
class Crew:
    """Replicas that play a strategy's roles in a virtual world, without an engine."""

    strategy: Strategy
    workers: int
    make_model: Callable[[], nn.Module] | None = None  # one weight, or one a layer
    loss: Callable[[nn.Module, Any], Tensor] | None = None
    optimiser: Optimiser = field(default_factory=lambda: Sgd(lr=1.0))
    cluster: Cluster = ROUND
    bucket_bytes: int = 2**20
    wrap: Callable[[VirtualComm], Any] = lambda comm: comm

    def __post_init__(self) -> None:
        by_layers = self.strategy.needs_layers
        self.make_model = self.make_model or (shifts if by_layers else Weight)
        self.loss = self.loss or (mean_output if by_layers else slope)
        size = self.workers + self.strategy.num_servers
        groups = self.strategy.groups(self.workers, self.cluster.hosts(self.workers))
        self.world = VirtualWorld(
            size, self.cluster, groups, self.workers, shares=self.strategy.shares(self.workers)
        )
        self.batches: list[list[Any]] = [[] for _ in range(self.workers)]
        self.shards = [Shard(self.batches, rank) for rank in range(size)]
        self.replicas: list[Replica] = []
        for comm, shard in zip(self.world.comms, self.shards, strict=True):
            torch.manual_seed(3)  # equal initial weights
            self.replicas.append(
                Replica(
                    Body(self.make_model()),
                    self.loss,
                    shard,
                    comm,
                    self.optimiser,
                    bucket_bytes=self.bucket_bytes,
                )
            )

    def play(self, shards: Sequence[Sequence[Any]]) -> Crew:
        """One segment: these batches for the workers, until every role has ended."""
        for known, more in zip(self.batches, shards, strict=True):
            known.extend(more)
        self.world.run(self._role)
        return self

    def play_counts(self, counts: Sequence[int]) -> Crew:
        """One segment with so many batches for each worker."""
        batch = torch.full((4, 1), 2.0) if self.strategy.needs_layers else 2.0
        return self.play([[batch] * count for count in counts])

    def _role(self, comm: VirtualComm) -> Any:
        role = self.strategy.role(comm.rank, self.workers)
        return role(self.wrap(comm), self.replicas[comm.rank])

    @property
    def holder(self) -> Replica:
        return self.replicas[self.strategy.holder(self.workers)]

    @property
    def computed(self) -> int:
        """How many gradients the workers have computed."""
        return sum(replica.turns for replica in self.replicas)

    @property
    def used(self) -> int:
        """How many gradients the answer contains, or were dropped on the way to it."""
        if self.strategy.answer == "meeting" and not self.strategy.needs_layers:
            return sum(replica.steps for replica in self.replicas)
        dropped = sum(comm.traffic.dropped for comm in self.world.comms)
        return self.holder.version + dropped // max(1, self.strategy.num_servers)

    @property
    def exchanged(self) -> tuple[int, int]:
        """Messages and bytes, over all ranks."""
        traffic = [comm.traffic for comm in self.world.comms]
        return sum(t.messages for t in traffic), sum(t.nbytes for t in traffic)

    @property
    def final(self) -> list[list[float]]:
        return [replica.weights.tolist() for replica in self.replicas]
