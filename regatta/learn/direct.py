"""Gradients of linear layers written by their matrix product straight into the flat vector.

Autograd gives every gradient memory of its own, and to gather them in a vector is one more pass
over all. A linear layer needs no such thing: its inputs are known and backward passes the gradient
of its outputs, so the product of both can be written to its place. Nothing about the graph is
changed for that: a layer only notes its calls, and autograd is then asked for the gradients of
outputs instead of weights. A weight that the loss depends on in any further way (a penalty, a
second derivative, autocast, an unusual input) gets an ordinary gradient.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from types import MethodType
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.autograd.graph import GradientEdge
from torch.nn.functional import linear

from regatta.learn.layout import LARGE, Layout

# Measured inside turns of small networks: 200 us, and 30 us a layer, against 0.5 us for every 1000
# weights that need not be copied.
FEWEST = 2**19  # of all such layers together
# A product that is not written to whole cache lines takes up to half as long again.
_ALIGNED_BYTES = 64

_noting: list[Call] | None = None  # what has been called since forward began


class Call(NamedTuple):
    layer: nn.Linear
    inputs: Tensor
    inputs_version: int
    node: Any  # of the graph, which the outputs come from


@dataclass(frozen=True)
class Place:
    """Of a layer's parameters in the layout."""

    layer: nn.Linear
    numbers: Sequence[int]
    parameters: Sequence[Tensor]  # as they were found: a layer may be given others

    @property
    def product(self) -> str:
        """The node that multiplies, by the name that autograd has for it."""
        return "MmBackward0" if len(self.parameters) == 1 else "AddmmBackward0"


class Use(NamedTuple):
    """A call as the graph has it."""

    place: Place
    inputs: Tensor
    product: Any  # the node whose backward would multiply
    before: Any  # the node that its inputs come from
    ends: Sequence[Any]  # the nodes where its parameters' gradients would arrive


class Direct:
    """The linear layers of a model, and how to differentiate a loss by all its parameters."""

    def __init__(self, model: nn.Module, layout: Layout) -> None:
        self._layout = layout
        found = list(_candidates(model, layout))
        is_worth_it = sum(place.layer.weight.numel() for place in found) >= FEWEST
        self._places = {id(place.layer): place for place in found if is_worth_it}
        for place in self._places.values():
            place.layer.forward = MethodType(forward, place.layer)  # type: ignore[method-assign]

    def __enter__(self) -> Direct:
        """Calls are noted from here on."""
        global _noting
        _noting = [] if self._places else None
        return self

    def __exit__(self, *error: object) -> None:
        global _noting
        _noting = None

    def gradient(self, loss: Tensor, out: Tensor) -> Tensor:
        """That of a loss just computed, as a vector in `out`."""
        global _noting
        calls, _noting = _noting, None  # a checkpointed layer is called once more in backward
        parameters = self._layout.parameters
        uses = self._uses(loss, calls) if calls and out.data_ptr() % _ALIGNED_BYTES == 0 else []
        if not uses:
            ordinary = torch.autograd.grad(loss, parameters, allow_unused=True)
            return self._layout.gradient(ordinary, out)
        direct = {number for use in uses for number in use.place.numbers}
        others = [p for number, p in enumerate(parameters) if number not in direct]
        wanted: list[Any] = [*(GradientEdge(use.product, 0) for use in uses), *others]
        found = torch.autograd.grad(loss, wanted, allow_unused=True)
        written: set[int] = set()
        with torch.no_grad():
            for use, gradient in zip(uses, found, strict=False):
                if gradient is not None:
                    self._write(use, gradient, out, written)
        further = iter(found[len(uses) :])
        gradients = [None if n in direct else next(further) for n in range(len(parameters))]
        return self._layout.gradient(gradients, out, written)

    def _uses(self, loss: Tensor, calls: Sequence[Call]) -> list[Use]:
        """The calls by which alone a loss depends on the weights of their layers, last first."""
        uses = {}
        for call in reversed(calls):  # as backward adds up
            place = self._places.get(id(call.layer))
            use = None if place is None else _as_in_graph(place, call)
            if use is not None:
                uses[use.product] = use
        reached: set[Any] = set()
        ahead = [loss.grad_fn] if uses else []
        while ahead:
            node = ahead.pop()
            if node is None or node in reached:
                continue
            reached.add(node)
            if node in uses:
                ahead.append(uses[node].before)
            else:
                ahead += [following for following, _ in node.next_functions]
        return [
            use
            for product, use in uses.items()
            if product in reached and reached.isdisjoint(use.ends)
        ]

    def _write(self, use: Use, gradient: Tensor, out: Tensor, written: set[int]) -> None:
        numbers = use.place.numbers
        weight, *bias = (self._layout.view(out, number) for number in numbers)
        inputs = use.inputs.reshape(-1, weight.shape[1])
        if numbers[0] in written:  # used more than once
            weight.add_(gradient.t().mm(inputs))
        else:
            torch.mm(gradient.t(), inputs, out=weight)
        for each in bias:
            if numbers[0] in written:
                each.add_(gradient.sum(0))
            else:
                torch.sum(gradient, 0, out=each)
        written.update(numbers)


def forward(self: nn.Linear, input: Tensor) -> Tensor:
    """In the place of a layer's own forward, and by its name: pickled, it is that again."""
    output = linear(input, self.weight, self.bias)
    if not torch.compiler.is_compiling() and _noting is not None:
        node = output.grad_fn
        if node is not None:
            _noting.append(Call(self, input, input._version, node))
    return output


def _candidates(model: nn.Module, layout: Layout) -> Iterator[Place]:
    """Linear layers as PyTorch has them that share their parameters with no other module."""
    numbers = {id(parameter): number for number, parameter in enumerate(layout.parameters)}
    owners = Counter(id(p) for m in model.modules() for p in m._parameters.values())
    for module in model.modules():
        if type(module) is not nn.Linear or "forward" in vars(module):
            continue
        own = _parameters(module)
        if (
            all(id(p) in numbers and owners[id(p)] == 1 for p in own)
            and own[0].numel() >= LARGE
            and layout.offset(numbers[id(own[0])]) * own[0].element_size() % _ALIGNED_BYTES == 0
        ):
            yield Place(module, [numbers[id(p)] for p in own], own)


def _parameters(layer: nn.Linear) -> list[Tensor]:
    return [layer.weight] if layer.bias is None else [layer.weight, layer.bias]


def _as_in_graph(place: Place, call: Call) -> Use | None:
    """How autograd has recorded a call, if in the ordinary way."""
    inputs, node = call.inputs, call.node
    if "View" in node.name():  # of the rows of all sequences
        node = node.next_functions[0][0]
    if node is None or node.name() != place.product:
        return None
    *biases, (before, _), (transposed, _) = node.next_functions
    if transposed is None or transposed.name() != "TBackward0":
        return None
    ends = [end for end, _ in (*transposed.next_functions, *biases)]
    if inputs._version != call.inputs_version or not inputs.is_contiguous():
        return None
    for end, parameter in zip(ends, place.parameters, strict=True):
        if getattr(end, "variable", None) is not parameter or parameter._backward_hooks:
            return None
    return Use(place, inputs, node, before, ends)
