"""Weights and the optimiser that steps them: a whole model's, or a stretch of one.

A server that holds a stripe of the model has a part; so has a ring whose model travels in chunks. A
replica is the part that is the whole. Vectors that go in or out are values: a part writes to its
weights only while nobody else holds them, and takes a copy first otherwise.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn import Parameter

from regatta.comm import Load, Traffic, Vector
from regatta.learn.layout import Span
from regatta.learn.optimisers import Optimiser


class Part:
    def __init__(self, span: Span, weights: Tensor, optimiser: Optimiser, traffic: Traffic) -> None:
        self.span = span
        self.steps = 0  # updates made here
        self.version = 0  # gradients that these weights contain
        self.merging = Load(nbytes=span.nbytes)
        self._traffic = traffic
        self._vector = weights
        self._handed_out = True  # a shared body gives all its replicas the same
        self._prefix = Parameter(self._vector[: span.num_parameters])
        self._optimiser = optimiser
        self._take_optimizer(optimiser.build(self._prefix))

    def _take_optimizer(self, optimizer: torch.optim.Optimizer) -> None:
        self.optimizer = optimizer
        # Without the profiler's wrapping, which takes longer than a small vector's step.
        self._bare_step = partial(inspect.unwrap(type(optimizer).step), optimizer)

    # -- what a strategy sees ---------------------------------------------------------------

    @property
    def weights(self) -> Vector:
        self._handed_out = True
        return self._vector

    @property
    def vector(self) -> Tensor:
        """The weights, for who does not keep them beyond the next step."""
        return self._vector

    @property
    def nothing(self) -> Vector:
        """What is added to a sum by who has nothing to add."""
        return self.span.zeros()

    def load(self, weights: Vector, version: int | None = None) -> None:
        self._vector = weights
        self._handed_out = True
        if version is not None:
            self.version = version
            self._changed()

    def step(
        self, gradient: Vector, born: int | None = None, of: int = 1, rate: float = 1.0
    ) -> None:
        """One optimiser step with the mean of `of` gradients, given their sum.

        `born` is the version of the weights that they were computed from; their age is recorded.
        `rate` multiplies the learning rate of this step.
        """
        if of > 1:
            gradient = self._mean(gradient, of)
        if self._handed_out and self._optimiser.is_plain:
            self._vector = self._stepped_copy(gradient, rate)
        else:
            if self._handed_out:
                self._vector = self._vector.clone()
            self._update(gradient, rate)
        self._handed_out = False
        self.span.fold(self._vector, gradient, of / (self.version + of))
        if born is not None:
            self._traffic.note_age(self.version - born)
        self.steps += 1
        self.version += of
        self._changed()

    # -- how it comes about -----------------------------------------------------------------

    def _changed(self) -> None:
        """Told after every change that somebody may want to look at."""

    def _mean(self, total: Tensor, of: int) -> Tensor:
        return total / of

    def _stepped_copy(self, gradient: Tensor, rate: float) -> Tensor:
        """Copy and step in one pass, where a step is just `weights - lr * gradient`."""
        num_parameters = self.span.num_parameters
        step = self.optimizer.param_groups[0]["lr"] * rate
        stepped = torch.add(self._vector, gradient, alpha=-step)
        stepped[num_parameters:] = self._vector[num_parameters:]
        return stepped

    def _update(self, gradient: Tensor, rate: float) -> None:
        num_parameters = self.span.num_parameters
        self._prefix.data = self._vector[:num_parameters]
        self._prefix.grad = gradient[:num_parameters]
        with torch.no_grad(), at_rate(self.optimizer, rate):
            self._bare_step()

    # -- the optimiser's own memory ---------------------------------------------------------

    @property
    def optimiser_state(self) -> Vector | None:
        """What the optimiser remembers, as one vector that counts 1; None if it never does.

        The steps that it has counted stand before the count: Adam corrects its moments by them.
        """
        names = self._optimiser.memory
        if not names:
            return None
        state = self.optimizer.state_dict()["state"].get(0, {})
        pieces = [
            torch.zeros_like(self._prefix) if state.get(name) is None else state[name]
            for name in names
        ]
        steps = self._prefix.new_tensor([float(state.get("step", 0.0))])
        return torch.cat([*pieces, steps, self._prefix.new_ones(1)]).detach()

    @property
    def no_optimiser_state(self) -> Vector:
        """What is added to a sum of optimisers' memories by who has nothing to add."""
        return self._prefix.new_zeros(len(self._optimiser.memory) * self._prefix.numel() + 2)

    def load_optimiser_state(self, vector: Vector) -> None:
        names = self._optimiser.memory
        pieces = vector[:-2].view(len(names), -1).clone()
        known = self.optimizer.state_dict()["state"].get(0, {})
        state = known | {"step": torch.tensor(float(vector[-2]))}
        self._restore_optimizer(state | dict(zip(names, pieces, strict=True)))

    def reset_optimiser(self) -> None:
        self._take_optimizer(self._optimiser.build(self._prefix))

    def _restore_optimizer(self, state: dict[str, Any]) -> None:
        whole = self.optimizer.state_dict()
        self.optimizer.load_state_dict({**whole, "state": {0: state}})

    # -- what outlives the process ----------------------------------------------------------

    def state(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """Everything a resumed part needs: tensors, and plain numbers."""
        tensors = {"weights": self._vector}
        numbers: dict[str, Any] = {
            "steps": self.steps, "version": self.version, "optimiser": {},
        }  # fmt: skip
        for name, value in self.optimizer.state_dict()["state"].get(0, {}).items():
            if isinstance(value, Tensor):
                tensors[f"optimiser.{name}"] = value
            else:
                numbers["optimiser"][name] = value
        return tensors, numbers

    def restore(self, tensors: dict[str, Tensor], numbers: dict[str, Any]) -> None:
        weights = tensors["weights"]
        if weights.shape != self._vector.shape:
            raise ValueError(
                f"the checkpoint's model has {weights.numel()} numbers, this one "
                f"{self._vector.numel()}: it belongs to another task or model"
            )
        self._vector, self._handed_out = weights, True
        self.steps, self.version = numbers["steps"], numbers["version"]
        state = dict(numbers["optimiser"]) | under("optimiser.", tensors)
        if state:
            self._restore_optimizer(state)


@contextmanager
def at_rate(optimizer: torch.optim.Optimizer, rate: float) -> Iterator[None]:
    """Multiply the learning rate for a while."""
    usual = [group["lr"] for group in optimizer.param_groups]
    if rate != 1.0:
        for group in optimizer.param_groups:
            group["lr"] *= rate
    yield
    for group, lr in zip(optimizer.param_groups, usual, strict=True):
        group["lr"] = lr


def under(prefix: str, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    return {k.removeprefix(prefix): v for k, v in tensors.items() if k.startswith(prefix)}
