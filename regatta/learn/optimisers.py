"""Optimisers as small frozen configurations; each steps any stretch of a flat vector in place.

All arithmetic is element by element and in the order of `torch.optim`, so a vector may be stepped
whole or in chunks that stay in the processor's cache: the bits are those of torch's own step.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol

import torch
from torch import Tensor


class Optimiser(Protocol):
    name: ClassVar[str]
    counts_steps: ClassVar[bool]  # a step depends on how many there have been

    @property
    def lr(self) -> float: ...
    @property
    def is_plain(self) -> bool:
        """Whether a step is `weights - lr * gradient` and nothing else."""
        ...

    @property
    def memory(self) -> tuple[str, ...]:
        """The names of the vectors that it remembers from step to step; all zeros at first."""
        ...

    def update(
        self, weights: Tensor, gradient: Tensor, memory: Sequence[Tensor], step: float, rate: float
    ) -> None:
        """Step number `step` (from 1), at `rate` times the learning rate.

        Writes to the weights and to its memory, never to the gradient.
        """
        ...


@dataclass(frozen=True)
class Sgd:
    """Stochastic gradient descent with momentum."""

    name: ClassVar[str] = "sgd"
    counts_steps: ClassVar[bool] = False
    lr: float = 0.1
    momentum: float = 0.0
    weight_decay: float = 0.0
    nesterov: bool = False

    def __post_init__(self) -> None:
        _not_negative(self, "lr", "momentum", "weight_decay")

    @property
    def is_plain(self) -> bool:
        return not (self.momentum or self.weight_decay or self.nesterov)

    @property
    def memory(self) -> tuple[str, ...]:
        return ("momentum_buffer",) if self.momentum else ()

    def update(
        self, weights: Tensor, gradient: Tensor, memory: Sequence[Tensor], step: float, rate: float
    ) -> None:
        if self.nesterov and not self.momentum:  # not before: options are set one by one
            raise ValueError("sgd: nesterov=true needs a momentum: set momentum, or leave it out")
        if self.weight_decay:
            gradient = gradient.add(weights, alpha=self.weight_decay)
        if self.momentum:
            (buffer,) = memory
            buffer.mul_(self.momentum).add_(gradient)
            gradient = gradient.add(buffer, alpha=self.momentum) if self.nesterov else buffer
        weights.add_(gradient, alpha=-self.lr * rate)


@dataclass(frozen=True)
class Adam:
    """Adam (Kingma & Ba 2015), weight decay decoupled."""

    name: ClassVar[str] = "adam"
    counts_steps: ClassVar[bool] = True
    lr: float = 1e-3
    beta1: float = 0.9
    beta2: float = 0.999
    eps: float = 1e-8
    weight_decay: float = 0.0

    def __post_init__(self) -> None:
        _not_negative(self, "lr", "beta1", "beta2", "eps", "weight_decay")
        for name in ("beta1", "beta2"):
            if getattr(self, name) >= 1:
                raise ValueError(f"adam: {name} must be below 1, not {getattr(self, name)}")

    @property
    def is_plain(self) -> bool:
        return False

    @property
    def memory(self) -> tuple[str, ...]:
        return ("exp_avg", "exp_avg_sq")

    def update(
        self, weights: Tensor, gradient: Tensor, memory: Sequence[Tensor], step: float, rate: float
    ) -> None:
        first, second = memory
        lr = self.lr * rate
        if self.weight_decay:
            weights.mul_(1 - lr * self.weight_decay)
        first.lerp_(gradient, 1 - self.beta1)
        second.mul_(self.beta2).addcmul_(gradient, gradient, value=1 - self.beta2)
        # Both moments started at zero and are that much too small.
        first_share, second_share = 1 - self.beta1**step, 1 - self.beta2**step
        root = torch.sqrt(second).div_(second_share**0.5).add_(self.eps)
        weights.addcdiv_(first, root, value=-lr / first_share)


@dataclass(frozen=True)
class AdaDelta:
    """AdaDelta (Zeiler 2012): steps as large as those before them were."""

    name: ClassVar[str] = "adadelta"
    counts_steps: ClassVar[bool] = False
    lr: float = 1.0
    rho: float = 0.95
    eps: float = 1e-6
    weight_decay: float = 0.0

    def __post_init__(self) -> None:
        _not_negative(self, "lr", "rho", "eps", "weight_decay")
        if self.rho >= 1:
            raise ValueError(f"adadelta: rho must be below 1, not {self.rho}")

    @property
    def is_plain(self) -> bool:
        return False

    @property
    def memory(self) -> tuple[str, ...]:
        return ("square_avg", "acc_delta")

    def update(
        self, weights: Tensor, gradient: Tensor, memory: Sequence[Tensor], step: float, rate: float
    ) -> None:
        squares, deltas = memory
        if self.weight_decay:
            gradient = gradient.add(weights, alpha=self.weight_decay)
        squares.mul_(self.rho).addcmul_(gradient, gradient, value=1 - self.rho)
        delta = deltas.add(self.eps).sqrt_().div_(squares.add(self.eps).sqrt_()).mul_(gradient)
        deltas.mul_(self.rho).addcmul_(delta, delta, value=1 - self.rho)
        weights.add_(delta, alpha=-self.lr * rate)


@dataclass(frozen=True)
class RmsProp:
    """RMSProp as TensorFlow has it: `eps` stands inside the root, and mean squares begin at 1."""

    name: ClassVar[str] = "rmsprop"
    counts_steps: ClassVar[bool] = False
    lr: float = 0.1
    decay: float = 0.9  # of the mean square
    eps: float = 1.0
    momentum: float = 0.0
    weight_decay: float = 0.0

    def __post_init__(self) -> None:
        _not_negative(self, "lr", "decay", "eps", "momentum", "weight_decay")
        if self.decay >= 1:
            raise ValueError(f"rmsprop: decay must be below 1, not {self.decay}")

    @property
    def is_plain(self) -> bool:
        return False

    @property
    def memory(self) -> tuple[str, ...]:
        beyond = ("momentum_buffer",) if self.momentum else ()
        return ("square_avg_less_1", *beyond)  # whatever is remembered begins at 0

    def update(
        self, weights: Tensor, gradient: Tensor, memory: Sequence[Tensor], step: float, rate: float
    ) -> None:
        squares, *buffers = memory
        if self.weight_decay:
            gradient = gradient.add(weights, alpha=self.weight_decay)
        new = 1 - self.decay
        squares.mul_(self.decay).addcmul_(gradient, gradient, value=new).sub_(new)
        change = gradient / squares.add(1 + self.eps).sqrt_()
        if buffers:
            # The rate is part of what is remembered: a change of it counts from then on.
            buffers[0].mul_(self.momentum).add_(change, alpha=self.lr * rate)
            weights.sub_(buffers[0])
        else:
            weights.add_(change, alpha=-self.lr * rate)


def _not_negative(optimiser: Any, *names: str) -> None:
    for name in names:
        value = getattr(optimiser, name)
        if not value >= 0:  # nor is it not a number
            raise ValueError(f"{optimiser.name}: {name} must be 0 or more, not {value}")


def registry() -> dict[str, type[Optimiser]]:
    kinds: tuple[type[Optimiser], ...] = (Sgd, Adam, AdaDelta, RmsProp)
    return {kind.name: kind for kind in kinds}
