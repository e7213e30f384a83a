"""`teacher`: vectors labelled by a hidden random network, so that there is something to learn."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from regatta.models import dnn
from regatta.tasks import Metric, device_of


class LabelledVectors:
    def __init__(self, train: tuple[Tensor, Tensor], dev: tuple[Tensor, Tensor]) -> None:
        self.train_samples = len(train[0])
        self._inputs, self._labels = train
        self._dev = dev

    def batch(self, indices: Tensor) -> tuple[Tensor, Tensor]:
        return self._inputs[indices], self._labels[indices]

    def loss(self, model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
        inputs, labels = batch
        return cross_entropy(model(inputs), labels)

    def evaluate(self, model: nn.Module) -> dict[str, float]:
        inputs, labels = (part.to(device_of(model)) for part in self._dev)
        outputs = model(inputs)
        accuracy = (outputs.argmax(1) == labels).float().mean()
        return {"accuracy": accuracy.item(), "loss": cross_entropy(outputs, labels).item()}


@dataclass(frozen=True)
class Teacher:
    """Vectors labelled by a hidden random network; dev accuracy."""

    name: ClassVar[str] = "teacher"
    metric: ClassVar[Metric] = Metric("accuracy")

    inputs: int = 32
    hidden: tuple[int, ...] = (512, 512)
    classes: int = 10
    teacher_hidden: int = 16
    train: int = 65_536
    dev: int = 4_096
    seed: int = 1  # of the data; the run's own seed draws weights and order

    def model(self) -> nn.Module:
        return dnn((self.inputs, *self.hidden, self.classes))

    def open(self) -> LabelledVectors:
        generator = torch.Generator().manual_seed(self.seed)

        def normal(*shape: int) -> Tensor:
            return torch.randn(*shape, generator=generator)

        inputs = normal(self.train + self.dev, self.inputs)
        hidden = torch.tanh(inputs @ normal(self.inputs, self.teacher_hidden) / self.inputs**0.5)
        labels = (hidden @ normal(self.teacher_hidden, self.classes)).argmax(1)
        train, dev = slice(None, self.train), slice(self.train, None)
        return LabelledVectors((inputs[train], labels[train]), (inputs[dev], labels[dev]))

    def outline(self) -> LabelledVectors:
        def nothing(samples: int) -> tuple[Tensor, Tensor]:
            inputs = torch.zeros(1).expand(samples, self.inputs)
            return inputs, torch.zeros(1, dtype=torch.long).expand(samples)

        return LabelledVectors(nothing(self.train), nothing(self.dev))
