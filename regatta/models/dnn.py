"""Fully connected networks."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from torch import nn

ACTIVATIONS: dict[str, type[nn.Module]] = {
    "relu": nn.ReLU,
    "tanh": nn.Tanh,
    "softplus": nn.Softplus,
    "sigmoid": nn.Sigmoid,
}


def dnn(sizes: Sequence[int], activation: str = "relu") -> nn.Sequential:
    """Linear layers of these sizes with an activation between them."""
    if activation not in ACTIVATIONS:
        raise ValueError(f"no activation {activation!r}; there are {', '.join(ACTIVATIONS)}")
    layers: list[nn.Module] = []
    for inputs, outputs in pairwise(sizes):
        layers += [nn.Linear(inputs, outputs), ACTIVATIONS[activation]()]
    return nn.Sequential(*layers[:-1])
