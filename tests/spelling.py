"""Recipes whose last layer has a row a symbol: for runs that begin with the weights of others."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import nn

from regatta.config import Checkpointing, Evaluation, Run, Stop
from regatta.learn.optimisers import Sgd
from regatta.tasks import Metric
from regatta.tasks.teacher import LabelledVectors


class Spelt(LabelledVectors):
    """Vectors, each of a symbol; alike in every set of symbols."""

    def __init__(self, task: Spelling) -> None:
        if task.tells:
            self.head, self.symbols = task.head, tuple(task.symbols)
        generator = torch.Generator().manual_seed(5)
        inputs = torch.randn(128, 4, generator=generator)
        labels = torch.randint(len(task.symbols), (128,), generator=generator)
        super().__init__((inputs, labels), (inputs, labels))


@dataclass(frozen=True)
class Spelling:
    name: ClassVar[str] = "spelling"
    metric: ClassVar[Metric] = Metric("loss", higher_is_better=False)

    symbols: str = "abcd"
    hidden: int = 6
    head: str = "head"  # what the last layer is called
    tells: bool = True  # the data name the head and its symbols

    def model(self) -> nn.Module:
        layers: OrderedDict[str, nn.Module] = OrderedDict()
        layers["norm"] = nn.BatchNorm1d(4)
        layers["hidden"] = nn.Linear(4, self.hidden)
        layers["act"] = nn.Tanh()
        layers[self.head] = nn.Linear(self.hidden, len(self.symbols))
        return nn.Sequential(layers)

    def open(self) -> Spelt:
        return Spelt(self)


def first() -> Run:
    return Run(
        task=Spelling(),
        optimiser=Sgd(lr=0.1, momentum=0.9),
        minibatch=8,
        stop=Stop(epochs=2),
        evaluation=Evaluation(every=1.0),
        checkpointing=Checkpointing(every=0.5),
    )
