"""`vectors`: random vectors, nothing to learn; the raw throughput of a network of given sizes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn

from regatta.models import dnn
from regatta.tasks import Metric, device_of


class UnlabelledVectors:
    def __init__(self, inputs: Tensor, dev: int = 256) -> None:
        self.train_samples = len(inputs)
        self._inputs = inputs
        self._dev = inputs[:dev]

    def batch(self, indices: Tensor) -> Tensor:
        return self._inputs[indices]

    def loss(self, model: nn.Module, batch: Tensor) -> Tensor:
        outputs: Tensor = model(batch)
        return outputs.square().mean()

    def evaluate(self, model: nn.Module) -> dict[str, float]:
        return {"loss": self.loss(model, self._dev.to(device_of(model))).item()}


@dataclass(frozen=True)
class Vectors:
    """Random vectors, unlabelled: throughput of a DNN of these sizes."""

    name: ClassVar[str] = "vectors"
    metric: ClassVar[Metric] = Metric("loss", higher_is_better=False)

    sizes: tuple[int, ...] = (440, 1024, 768, 200)
    train: int = 16_384
    seed: int = 1

    def __post_init__(self) -> None:
        if len(self.sizes) < 2:
            raise ValueError("task.sizes needs at least an input and an output size")

    def model(self) -> nn.Module:
        return dnn(self.sizes)

    def open(self) -> UnlabelledVectors:
        generator = torch.Generator().manual_seed(self.seed)
        return UnlabelledVectors(torch.randn(self.train, self.sizes[0], generator=generator))

    def outline(self) -> UnlabelledVectors:
        return UnlabelledVectors(torch.zeros(1).expand(self.train, self.sizes[0]))
