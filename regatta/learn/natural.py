"""Natural gradients: layers that fit their inputs and derivatives to what these have been like.

The gradient of a layer's weights is a product of two matrices, of its inputs and of the derivatives
of its outputs, a row a sample. Backward takes both through a Fisher matrix first (see `fisher`), so
every gradient comes out fitted, whoever asks for it: nothing else in a run need know.

What the matrices have learnt belongs to a worker. It is saved with the worker and forgotten with
its optimiser's memory, but never averaged: the directions of different workers have no mean.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from types import MethodType
from typing import Any, ClassVar, Protocol

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn.functional import linear, pad, unfold

from regatta.learn.fisher import Fisher

# The replica that computes at present; ranks of a virtual world share their layers.
_present: Preconditioner | None = None


class Gradient(Protocol):
    """What is made of a minibatch's gradient before anybody sees it."""

    name: ClassVar[str]

    def preconditioner(self, model: nn.Module) -> Preconditioner | None:
        """One replica's own, if there is anything to be done."""
        ...


@dataclass(frozen=True)
class Plain:
    """The gradient as it is."""

    name: ClassVar[str] = "plain"

    def preconditioner(self, model: nn.Module) -> None:
        return None


@dataclass(frozen=True)
class Natural:
    """Natural gradient of linear and convolutional layers (Povey et al. 2015, Kaldi)."""

    name: ClassVar[str] = "natural"
    rank_in: int = 20  # directions of a layer's inputs; at most half of all
    rank_out: int = 80  # directions of the derivatives of its outputs; at most half of all
    period: int = 4  # gradients from one update of the directions to the next; the first ten all do
    alpha: float = 4.0  # smoothing, in multiples of the mean over all directions
    history: float = 2000.0  # rows after which what was learnt counts about a third

    def __post_init__(self) -> None:
        for name in ("rank_in", "rank_out", "period"):
            if getattr(self, name) < 1:
                raise ValueError(f"natural: {name} must be 1 or more, not {getattr(self, name)}")
        for name in ("alpha", "history"):
            if not getattr(self, name) > 0:
                raise ValueError(f"natural: {name} must be more than 0, not {getattr(self, name)}")

    def preconditioner(self, model: nn.Module) -> Preconditioner:
        return Preconditioner(self, model)


def registry() -> dict[str, type[Gradient]]:
    kinds: tuple[type[Gradient], ...] = (Plain, Natural)
    return {kind.name: kind for kind in kinds}


# -- what a replica has ---------------------------------------------------------------------


class Sides:
    """What the two sides of one layer have been like."""

    def __init__(self, natural: Natural, inputs: int, outputs: int, has_bias: bool) -> None:
        how = natural.period, natural.alpha, natural.history
        in_rank = min(natural.rank_in, (inputs + 1) // 2)
        out_rank = min(natural.rank_out, (outputs + 1) // 2)
        self.inputs = Fisher(inputs, in_rank, has_bias, *how)
        self.outputs = Fisher(outputs, out_rank, False, *how)

    def gradients(self, inputs: Tensor, derivatives: Tensor) -> tuple[Tensor, Tensor | None]:
        """Those of weights and bias, from the rows of both sides."""
        rows, ones, in_scale = self.inputs.precondition(inputs)
        # A loss is a mean over rows; what is known of derivatives is known of those of a sum.
        fitted, _, out_scale = self.outputs.precondition(derivatives, factor=len(derivatives))
        scale, columns = in_scale * out_scale, fitted.t()
        nothing = rows.new_empty(())  # the product is scaled as it is written
        weight = torch.addmm(nothing, columns, rows, beta=0, alpha=scale)
        return weight, None if ones is None else columns.mv(ones * scale)


class Preconditioner:
    """What one replica has learnt of the layers of a model, which it may share with others."""

    def __init__(self, natural: Natural, model: nn.Module) -> None:
        self._names: dict[str, Sides] = {}
        self.layers: dict[nn.Module, Sides] = {}
        for name, layer, forward in _candidates(model):
            has_bias = layer.bias is not None and layer.bias.requires_grad
            inputs = layer.weight[0].numel()
            sides = Sides(natural, inputs, len(layer.weight), has_bias)
            self._names[name] = self.layers[layer] = sides
            layer.forward = MethodType(forward, layer)

    def forget(self) -> None:
        for _, fisher in self._fishers():
            fisher.forget()

    def state(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        tensors: dict[str, Tensor] = {}
        numbers: dict[str, Any] = {}
        for name, fisher in self._fishers():
            own, numbers[name] = fisher.state()
            tensors |= {f"{name}.{key}": value for key, value in own.items()}
        return tensors, numbers

    def restore(self, tensors: dict[str, Tensor], numbers: dict[str, Any]) -> None:
        for name, fisher in self._fishers():
            keys = [key for key in ("directions", "strengths") if f"{name}.{key}" in tensors]
            fisher.restore({key: tensors[f"{name}.{key}"] for key in keys}, numbers[name])

    def _fishers(self) -> Iterator[tuple[str, Fisher]]:
        for name, sides in self._names.items():
            yield f"{name}/in", sides.inputs
            yield f"{name}/out", sides.outputs


def take_up(preconditioner: Preconditioner | None) -> None:
    """Whoever computes from here on has learnt this."""
    global _present
    _present = preconditioner


def _candidates(model: nn.Module) -> Iterator[tuple[str, Any, Callable[..., Tensor]]]:
    """Layers as PyTorch has them, whose weights are learnt, with what is to be their forward."""
    for name, layer in model.named_modules():
        forward = _FORWARDS.get(type(layer))
        own = vars(layer).get("forward")
        weight = layer._parameters.get("weight")
        if forward is None or weight is None or not weight.requires_grad:
            continue
        is_free = own is None or getattr(own, "__func__", None) is forward
        if is_free and getattr(layer, "groups", 1) == 1:
            yield name, layer, forward


# -- layers ---------------------------------------------------------------------------------


def _sides_of(layer: nn.Module) -> Sides | None:
    """What the present replica knows of a layer; nothing, where no gradient is wanted."""
    if _present is None or not torch.is_grad_enabled() or torch.compiler.is_compiling():
        return None
    return _present.layers.get(layer)


def _linear_forward(self: nn.Linear, input: Tensor) -> Tensor:
    sides = _sides_of(self)
    if sides is None:
        return linear(input, self.weight, self.bias)
    output: Tensor = _Linear.apply(input, self.weight, self.bias, sides)  # type: ignore[no-untyped-call]
    return output


def _conv_forward(self: nn.Conv1d | nn.Conv2d, input: Tensor) -> Tensor:
    sides = _sides_of(self)
    if sides is None or input.dim() != self.weight.dim():
        ordinary: Tensor = self._conv_forward(input, self.weight, self.bias)
        return ordinary
    padding: Sequence[int]
    if isinstance(self.padding, str) or self.padding_mode != "zeros":
        mode = "constant" if self.padding_mode == "zeros" else self.padding_mode
        input = pad(input, self._reversed_padding_repeated_twice, mode=mode)
        padding = [0] * len(self.kernel_size)
    else:
        padding = self.padding
    tensors, how = (input, self.weight, self.bias), (self.stride, padding, self.dilation)
    output: Tensor = _Conv.apply(*tensors, sides, *how)  # type: ignore[no-untyped-call]
    return output


# By the name of what they stand for: pickled, a layer has its own forward again.
_linear_forward.__name__ = _conv_forward.__name__ = "forward"
_FORWARDS: dict[type[nn.Module], Callable[..., Tensor]] = {
    nn.Linear: _linear_forward, nn.Conv1d: _conv_forward, nn.Conv2d: _conv_forward,
}  # fmt: skip


class _Linear(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, inputs: Tensor, weight: Tensor, bias: Tensor | None, sides: Sides
    ) -> Tensor:
        ctx.save_for_backward(inputs, weight)
        ctx.sides = sides
        return linear(inputs, weight, bias)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, derivatives: Tensor) -> tuple[Tensor | None, ...]:
        inputs, weight = ctx.saved_tensors
        rows = derivatives.to(weight.dtype).reshape(-1, weight.shape[0])
        of_inputs = of_weight = of_bias = None
        if ctx.needs_input_grad[0]:
            of_inputs = rows.mm(weight).view(inputs.shape).to(inputs.dtype)
        if ctx.needs_input_grad[1]:
            flat = inputs.to(weight.dtype).reshape(-1, weight.shape[1])
            of_weight, of_bias = ctx.sides.gradients(flat, rows)
        return of_inputs, of_weight, of_bias, None


class _Conv(torch.autograd.Function):
    """Every place that the kernel is laid on is a row."""

    @staticmethod
    def forward(
        ctx: Any,
        inputs: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        sides: Sides,
        stride: Sequence[int],
        padding: Sequence[int],
        dilation: Sequence[int],
    ) -> Tensor:
        ctx.save_for_backward(inputs, weight)
        ctx.sides = sides
        ctx.how = stride, padding, dilation
        none = [0] * len(stride)
        return torch.convolution(inputs, weight, bias, stride, padding, dilation, False, none, 1)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, derivatives: Tensor) -> tuple[Tensor | None, ...]:
        inputs, weight = ctx.saved_tensors
        derivatives = derivatives.to(weight.dtype)
        inputs = inputs.to(weight.dtype)
        none = [0] * len(ctx.how[0])
        of_inputs = of_weight = of_bias = None
        if ctx.needs_input_grad[0]:
            of_inputs, _, _ = torch.ops.aten.convolution_backward(
                derivatives, inputs, weight, None, *ctx.how, False, none, 1, (True, False, False)
            )
        if ctx.needs_input_grad[1]:
            rows = _rows(derivatives.flatten(2))
            patches = _rows(_patches(inputs, weight.shape[2:], *ctx.how))
            flat, of_bias = ctx.sides.gradients(patches, rows)
            of_weight = flat.view(weight.shape)
        return of_inputs, of_weight, of_bias, *[None] * 4


def _rows(images: Tensor) -> Tensor:
    """Samples, channels, places: a row for every place of every sample."""
    return images.transpose(1, 2).reshape(-1, images.shape[1])


def _patches(
    inputs: Tensor,
    kernel: Sequence[int],
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
) -> Tensor:
    """What the kernel sees at every place."""
    if len(kernel) == 1:  # an image of one line
        inputs = inputs.unsqueeze(2)
        kernel, stride, dilation = (1, *kernel), (1, *stride), (1, *dilation)
        padding = (0, *padding)
    return unfold(inputs, tuple(kernel), tuple(dilation), tuple(padding), tuple(stride))
