"""Weights to begin with."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

_KINDS = (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d)


def _lecun(weight: Tensor) -> None:
    """Gaussian; a sum over inputs of variance 1 has variance 1."""
    fan_in = weight[0].numel()
    nn.init.normal_(weight, std=fan_in**-0.5)


_DRAWS: dict[str, Callable[[Tensor], object]] = {
    "xavier": nn.init.xavier_uniform_,  # Glorot & Bengio 2010
    "lecun": _lecun,  # LeCun et al. 1998
}
KNOWN = (*_DRAWS, "torch")


@torch.no_grad()
def initialise(model: nn.Module, how: str) -> None:
    """Draw the weights of linear, recurrent and (not transposed) convolution layers anew.

    Biases become 0; only that of an LSTM's forget gate becomes 1, so that it remembers at first.
    `torch` leaves everything as PyTorch made it. All other layers stay as they are. Draws come from
    torch's global generator, in the order of `model.modules()`.
    """
    if how not in KNOWN:
        raise ValueError(f"no initialisation {how!r}; there are {', '.join(KNOWN)}")
    if how == "torch":
        return
    for module in model.modules():
        if isinstance(module, _KINDS):
            _DRAWS[how](module.weight)
            if module.bias is not None:
                module.bias.zero_()
        elif isinstance(module, nn.RNNBase):
            _recurrent(module, _DRAWS[how])


def _recurrent(module: nn.RNNBase, draw: Callable[[Tensor], object]) -> None:
    for name, parameter in module.named_parameters():
        if name.startswith("weight"):
            draw(parameter)
            continue
        parameter.zero_()
        if isinstance(module, nn.LSTM) and name.startswith("bias_ih"):
            parameter[module.hidden_size : 2 * module.hidden_size] = 1.0  # input, forget, ...
