"""A restricted Boltzmann machine that learns by contrastive divergence, in memory taken once."""

from __future__ import annotations

import math

import torch
from torch import Tensor

_SPREAD = 0.1  # of the first weights, as in Kaldi
_EXPLODES = 2.0  # a reconstruction that varies this many times as much as the data
_SLOWER = 0.9


class Machine:
    """Binary hidden units over binary or, with unit variance, Gaussian visible ones.

    `rows` is where a minibatch is written before `learn`. `weight` and `hidden_bias` have the
    shapes of an `nn.Linear` from visible to hidden units.
    """

    def __init__(self, visible: int, hidden: int, minibatch: int, gaussian: bool) -> None:
        self.gaussian = gaussian
        self.lr_scale = 1.0
        self.guards = 0  # how often weights were about to explode
        self.weight = torch.zeros(hidden, visible)
        self.hidden_bias = torch.zeros(hidden)
        self.visible_bias = torch.zeros(visible)
        self._increment = torch.zeros(hidden, visible)
        self._hidden_increment = torch.zeros(hidden)
        self._visible_increment = torch.zeros(visible)
        self.rows = torch.zeros(minibatch, visible)
        self._again = torch.zeros(minibatch, visible)  # the rows as reconstructed
        self._hidden = torch.zeros(minibatch, hidden)  # probabilities
        self._hidden_again = torch.zeros(minibatch, hidden)
        self._states = torch.zeros(minibatch, hidden)
        self._visible_sum = torch.zeros(visible)
        self._hidden_sum = torch.zeros(hidden)

    def weights(self) -> dict[str, Tensor]:
        return {
            "weight": self.weight,
            "hidden_bias": self.hidden_bias,
            "visible_bias": self.visible_bias,
        }

    def increments(self) -> dict[str, Tensor]:
        """What momentum remembers."""
        return {
            "increment": self._increment,
            "hidden_increment": self._hidden_increment,
            "visible_increment": self._visible_increment,
        }

    def begin(self, rows: Tensor, draws: torch.Generator) -> None:
        """First weights; binary visible units alone are on as often as in these rows."""
        self.weight.normal_(0.0, _SPREAD, generator=draws)
        if not self.gaussian:
            self.visible_bias.copy_(torch.logit(rows.mean(0), eps=1e-4))

    def learn(self, rate: float, momentum: float, l2: float, draws: torch.Generator) -> float:
        """One step of CD-1 on `rows`; how far they are from their reconstruction.

        That is the mean squared difference. It is not finite if the rows or the weights are not.
        """
        rows, again, hidden, states = self.rows, self._again, self._hidden, self._states
        self._up(rows, hidden)
        torch.rand(states.shape, generator=draws, out=states)
        torch.lt(states, hidden, out=states)
        self._down(states, again)
        if self.gaussian and self._guarded():
            torch.sub(rows, again, out=again)
            return _mean_square(again)
        self._up(again, self._hidden_again)
        rate *= self.lr_scale
        share = rate / len(rows)
        self._increment.addmm_(self._hidden_again.t(), again, beta=momentum, alpha=-share)
        self._increment.addmm_(hidden.t(), rows, alpha=share)
        if l2:
            self._increment.add_(self.weight, alpha=-rate * l2)
        self.weight.add_(self._increment)
        torch.sub(hidden, self._hidden_again, out=hidden)
        torch.sum(hidden, 0, out=self._hidden_sum)
        self._hidden_increment.mul_(momentum).add_(self._hidden_sum, alpha=share)
        self.hidden_bias.add_(self._hidden_increment)
        torch.sub(rows, again, out=again)
        torch.sum(again, 0, out=self._visible_sum)
        self._visible_increment.mul_(momentum).add_(self._visible_sum, alpha=share)
        self.visible_bias.add_(self._visible_increment)
        return _mean_square(again)

    def error(self, rows: Tensor) -> float:
        """The mean squared difference from a reconstruction without draws."""
        again = self._down(self.hidden(rows), torch.empty_like(rows))
        return _mean_square(again.sub_(rows))

    def hidden(self, rows: Tensor) -> Tensor:
        """How probably each hidden unit is on."""
        return self._up(rows, rows.new_empty(len(rows), len(self.weight)))

    def free_energy(self, rows: Tensor) -> float:
        """The mean over rows of -log of what a row's probability is proportional to."""
        inputs = torch.addmm(self.hidden_bias, rows, self.weight.t())
        hidden = torch.nn.functional.softplus(inputs).sum(1)
        if self.gaussian:
            visible = (rows - self.visible_bias).square().sum(1) / 2
        else:
            visible = -(rows @ self.visible_bias)
        return (visible - hidden).mean().item()

    def _up(self, rows: Tensor, out: Tensor) -> Tensor:
        return torch.addmm(self.hidden_bias, rows, self.weight.t(), out=out).sigmoid_()

    def _down(self, states: Tensor, out: Tensor) -> Tensor:
        torch.addmm(self.visible_bias, states, self.weight, out=out)
        return out if self.gaussian else out.sigmoid_()

    def _guarded(self) -> bool:
        """Whether weights were about to explode. They are made smaller, and no step is due.

        A Gaussian reconstruction that varies more than the data makes weights grow, and the next
        one vary still more.
        """
        data, reconstruction = _deviation(self.rows), _deviation(self._again)
        if not reconstruction > _EXPLODES * data > 0:  # rows that do not vary say nothing
            return False
        for tensor in self.weights().values():
            tensor.mul_(data / reconstruction)
        for tensor in self.increments().values():
            tensor.zero_()
        self.lr_scale *= _SLOWER
        self.guards += 1
        return True


def _mean_square(values: Tensor) -> float:
    flat = values.view(-1)
    return flat.dot(flat).item() / flat.numel()


def _deviation(values: Tensor) -> float:
    # By sums: torch.std takes five times as long.
    mean = values.sum().item() / values.numel()
    return math.sqrt(max(_mean_square(values) - mean * mean, 0.0))
