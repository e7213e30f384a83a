"""`sequences`: random sequences of frames, nothing to learn; the raw throughput of an LSTM."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import nn

from regatta.models import ConvLstm
from regatta.tasks import Metric
from regatta.tasks.vectors import UnlabelledVectors


@dataclass(frozen=True)
class Sequences:
    """Random sequences, unlabelled: throughput of a convolution and LSTM layers."""

    name: ClassVar[str] = "sequences"
    metric: ClassVar[Metric] = Metric("loss", higher_is_better=False)

    frames: int = 200  # a sequence
    features: int = 80  # a frame
    hidden: int = 256  # channels of the convolution, and units of a layer
    layers: int = 3
    outputs: int = 30
    kernel: int = 11
    stride: int = 2
    train: int = 512
    seed: int = 1

    def __post_init__(self) -> None:
        for field in ("features", "hidden", "layers", "outputs", "kernel", "stride"):
            if getattr(self, field) < 1:
                raise ValueError(f"task.{field} must be 1 or more, not {getattr(self, field)}")
        if self.frames < self.kernel:
            raise ValueError(
                f"task.frames={self.frames} are fewer than the convolution sees at once: "
                f"use {self.kernel} or more, or a smaller task.kernel"
            )

    def model(self) -> nn.Module:
        return ConvLstm(
            self.features, self.hidden, self.layers, self.outputs, self.kernel, self.stride
        )

    def open(self) -> UnlabelledVectors:
        generator = torch.Generator().manual_seed(self.seed)
        shape = (self.train, self.frames, self.features)
        return UnlabelledVectors(torch.randn(shape, generator=generator), dev=16)

    def outline(self) -> UnlabelledVectors:
        shape = (self.train, self.frames, self.features)
        return UnlabelledVectors(torch.zeros(1).expand(shape), dev=16)
