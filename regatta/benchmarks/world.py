"""The networks of benchmarks, and runs that train them and do nothing else."""

from __future__ import annotations

from dataclasses import dataclass, field

from regatta.config import Evaluation, Recording, Run, component
from regatta.data.order import Order
from regatta.learn.optimisers import Optimiser, Sgd
from regatta.tasks import Data, Task
from regatta.tasks.sequences import Sequences
from regatta.tasks.vectors import Vectors

_NEVER = 1e12  # epochs


@dataclass(frozen=True)
class Network:
    """What is trained, and in what portions: short blocks, for machines change within seconds."""

    name: str
    task: Task
    minibatch: int
    steps: int  # a block
    repeats: int  # blocks of either side in a fresh start
    starts: int = 1  # a pair that was asked for; more where they are cheap and luck is large
    optimiser: Optimiser = field(default_factory=lambda: Sgd(lr=0.01))


DNN = Network("DNN of 1.4 M", Vectors(), 256, steps=5, repeats=8, starts=2)
LARGE = Network(
    "DNN of 44 M",
    Vectors(sizes=(680, 2048, 2048, 60, 2048, 2048, 16765), train=2048),
    256,
    steps=1,
    repeats=5,
)
LSTM = Network("LSTM of 1.8 M", Sequences(), 16, steps=2, repeats=4)
NETWORKS = (DNN, LARGE, LSTM)


def measured_run(strategy: str, network: Network, workers: int = 2, bucket_bytes: int = 0) -> Run:
    """A run that trains and does nothing else: an evaluation is off the training clock."""
    return Run(
        task=network.task,
        strategy=component("strategy", strategy),
        workers=workers,
        minibatch=network.minibatch,
        optimiser=network.optimiser,
        bucket_bytes=bucket_bytes,
        recording=Recording(usage=0, spans=0),
        evaluation=Evaluation(every=_NEVER),
    )


def order_of(network: Network, data: Data, workers: int) -> Order:
    """The batches of a measured run, for a peer that has none of it."""
    return Order(data.train_samples, network.minibatch, workers, seed=0)
