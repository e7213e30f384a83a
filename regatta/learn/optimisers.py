"""Optimisers as small frozen configurations; each steps one flat vector."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Protocol

import torch
from torch.nn import Parameter
from torch.optim import Optimizer


class Optimiser(Protocol):
    name: ClassVar[str]

    @property
    def lr(self) -> float: ...
    @property
    def is_plain(self) -> bool:
        """Whether a step is `weights - lr * gradient` and nothing else."""
        ...

    @property
    def memory(self) -> tuple[str, ...]:
        """The names of the vectors that it remembers from step to step."""
        ...

    def build(self, vector: Parameter) -> Optimizer: ...


@dataclass(frozen=True)
class Sgd:
    """Stochastic gradient descent with momentum."""

    name: ClassVar[str] = "sgd"
    lr: float = 0.1
    momentum: float = 0.0
    weight_decay: float = 0.0
    nesterov: bool = False

    @property
    def is_plain(self) -> bool:
        return not (self.momentum or self.weight_decay or self.nesterov)

    @property
    def memory(self) -> tuple[str, ...]:
        return ("momentum_buffer",) if self.momentum else ()

    def build(self, vector: Parameter) -> Optimizer:
        return torch.optim.SGD(
            [vector],
            lr=self.lr,
            momentum=self.momentum,
            weight_decay=self.weight_decay,
            nesterov=self.nesterov,
        )


@dataclass(frozen=True)
class Adam:
    """Adam (Kingma & Ba 2015), weight decay decoupled."""

    name: ClassVar[str] = "adam"
    lr: float = 1e-3
    beta1: float = 0.9
    beta2: float = 0.999
    eps: float = 1e-8
    weight_decay: float = 0.0

    @property
    def is_plain(self) -> bool:
        return False

    @property
    def memory(self) -> tuple[str, ...]:
        return ("exp_avg", "exp_avg_sq")

    def build(self, vector: Parameter) -> Optimizer:
        return torch.optim.AdamW(
            [vector],
            lr=self.lr,
            betas=(self.beta1, self.beta2),
            eps=self.eps,
            weight_decay=self.weight_decay,
        )


def registry() -> dict[str, type[Optimiser]]:
    kinds: tuple[type[Optimiser], ...] = (Sgd, Adam)
    return {kind.name: kind for kind in kinds}
