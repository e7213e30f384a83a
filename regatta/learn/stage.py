"""Some consecutive layers of a model, trained by micro-batches: what a rank of a pipeline has.

A stage computes with its layers by `functional_call` on leaves of its own, cut from its part of the
weights. It never lets the model point at them: ranks of a virtual world share one model, and the
graphs of several micro-batches are open at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.func import functional_call

from regatta.comm import EMPTY, Load, Vector
from regatta.data.seeds import mixed_seed
from regatta.learn.buckets import FORWARD_SHARE
from regatta.learn.layers import Slice

if TYPE_CHECKING:
    from regatta.learn.part import Part
    from regatta.learn.replica import Replica


class Turns:
    """What all stages know of a turn, whether their vectors hold numbers or not."""

    def __init__(self, replica: Any, part: Any, micro: int) -> None:
        # A stage takes that part of the whole model's time that it has of its parameters; the fixed
        # part of a minibatch's time is charged for every pass.
        self._share = part.span.num_parameters / replica.layout.num_parameters / micro
        self.forward_load = self.backward_load = Load()  # of a micro-batch of this turn
        self._replica = replica
        self._part = part
        self._micro = micro
        self._batches: Mapping[int, Callable[[], Any]] = {}  # by worker

    @property
    def micro_batches(self) -> int:
        return len(self._batches) * self._micro

    def begin(self, asks: bool) -> bool:
        """Take up the next turn of all workers; who `asks` finds out whether there is one."""
        stream = self._replica.stream
        self._batches = stream.together(asks)
        samples = stream.samples * self._share
        self.forward_load = Load(samples * FORWARD_SHARE)
        self.backward_load = Load(samples * (1 - FORWARD_SHARE))
        return bool(self._batches)

    def _end(self, gradient: Vector) -> None:
        """A step with the sum of all minibatches' gradients."""
        self._part.step(gradient, of=len(self._batches))
        self._replica.turns += self._replica.comm.rank in self._batches
        self._replica.follow(self._part)


class Stage(Turns):
    """One rank's layers, and the graphs of micro-batches that have come but not gone back."""

    def __init__(
        self, replica: Replica, part: Part, own: Slice, number: int, of: int, micro: int
    ) -> None:
        super().__init__(replica, part, micro)
        self._own = own
        self._number, self._is_first, self._is_last = number, number == 0, number == of - 1
        self._chunks: dict[int, tuple[Any, float]] = {}
        self._open: dict[int, tuple[Tensor | None, Tensor, float]] = {}  # inputs, output, weight
        self._comes: list[int] = []  # the shape of what the previous stage sends
        self._goes: list[int] | None = None  # the shape that the next stage has been told
        self._leaves: list[Tensor] = []
        self._leaves_lie_in: Tensor | None = None
        in_place = any(getattr(module, "inplace", False) for module in own.layers.modules())
        self._writes_to_inputs = in_place and not self._is_first
        self._total = own.stretch.zeros()  # of this turn's gradients
        self._sums = own.parameters_in(self._total)
        self._is_first_to_add = True
        self._loss = self._total.new_zeros(())

    # -- what a strategy sees ---------------------------------------------------------------

    def begin(self, asks: bool) -> bool:
        self._is_first_to_add = True
        self._total[self._own.stretch.num_parameters :] = 0.0
        self._loss = self._total.new_zeros(())
        return super().begin(asks)

    def expect(self, shape: Vector) -> None:
        """What comes has this shape from now on."""
        self._comes = shape.tolist()

    def forward(self, number: int, received: Vector | None = None) -> Vector:
        """A micro-batch through these layers; what comes out, flat."""
        again = (number,) if number else ()  # the first is seeded as a whole minibatch is
        seed = mixed_seed(self._replica._seed, self._number, self._part.steps, *again)
        torch.default_generator.manual_seed(seed)
        self._replica.bind()  # for the counters, which are no part of the vector
        inputs = None if received is None else self._leaf(received)
        output, weight = self._output(number, inputs)
        self._open[number] = (inputs, output, weight)
        return output.detach().reshape(-1)

    def news_of_shape(self, number: int) -> Vector | None:
        """The shape of what came out, unless the next stage knows it."""
        shape = list(self._open[number][1].shape)
        if shape == self._goes:
            return None
        self._goes = shape
        return torch.tensor(shape, dtype=torch.int64)

    def backward(self, number: int, received: Vector | None = None) -> Vector:
        """The same micro-batch back; the gradient of what had come, flat."""
        inputs, output, weight = self._open.pop(number)
        wanted = list(self._present_leaves())
        if inputs is not None and inputs.requires_grad:
            wanted.append(inputs)
        if self._is_last:
            seed = None if weight == 1.0 else torch.full_like(output, weight)
        else:
            seed = None if received is None or not received.numel() else received.view_as(output)
        found: Sequence[Tensor | None] = [None] * len(wanted)
        if output.requires_grad and (self._is_last or seed is not None):
            found = torch.autograd.grad(output, wanted, seed, allow_unused=True)
        self._add(found[: len(self._sums)])
        back = found[-1] if len(wanted) > len(self._sums) else None
        return EMPTY if back is None else back.reshape(-1)

    def step(self) -> None:
        """End the turn with the mean of all minibatches' gradients."""
        minibatches = len(self._batches)
        self._total[-1] = minibatches
        if self._is_last:
            self._replica.last_loss = self._loss / minibatches
        self._end(self._total)

    def alone(self) -> Vector:
        """The model's vector, with zeros where others have their weights."""
        vector: Tensor = self._replica.nothing
        self._own.stretch.paste(self._part.vector, vector)
        vector[-1] = float(self._is_first)  # all together count one model
        return vector

    # -- how it comes about -----------------------------------------------------------------

    def _leaf(self, received: Tensor) -> Tensor:
        inputs = received.view(self._comes)
        return inputs.requires_grad_() if inputs.is_floating_point() else inputs

    def _output(self, number: int, inputs: Tensor | None) -> tuple[Tensor, float]:
        """What goes on to the next stage, or the loss and its weight."""
        if inputs is not None and not self._is_last:
            return self._through_layers(inputs), 1.0
        batch, weight = self._chunk(number)
        loss = self._replica._loss
        if not self._is_last:
            return activation_in(loss, batch, self._through_layers), 1.0
        # Whatever the loss gives to the model has come here by way of the other stages.
        model = self._through_layers if inputs is None else lambda _: self._through_layers(inputs)
        value = value_of(loss, batch, model)
        self._loss += weight * value.detach()
        return value, weight

    def _chunk(self, number: int) -> tuple[Any, float]:
        if number not in self._chunks:
            which = number // self._micro
            fetch = self._batches[sorted(self._batches)[which]]
            pieces = chunks(fetch(), self._micro)
            self._chunks |= dict(enumerate(pieces, which * self._micro))
        return self._chunks.pop(number)

    def _through_layers(self, inputs: Any) -> Tensor:
        own = self._own
        if self._writes_to_inputs:
            inputs = inputs.clone()  # a leaf, whose numbers the previous stage still needs
        leaves = self._present_leaves()
        state = {name: leaves[place] for name, place in own.numbers.items()}
        kept = own.stretch.statistics(self._part.vector)
        state |= {name: t.clone() for name, t in zip(own.buffers, kept, strict=True)}
        # The names of tied weights are all there, so nothing is left for it to tie.
        output = functional_call(own.layers, state, (inputs,), tie_weights=False)
        if not isinstance(output, Tensor):
            raise ValueError(
                "pipeline sends one tensor from stage to stage, and a stage ends with "
                f"{type(own.layers[-1]).__name__}, which gives a {type(output).__name__}: "
                "wrap that layer, or use another number of workers"
            )
        seen = own.stretch.statistics(self._total)
        for name, total in zip(own.buffers, seen, strict=True):
            total.add_(state[name].detach(), alpha=1 / self._micro)
        return output

    def _present_leaves(self) -> list[Tensor]:
        """The weights as parameters; other than the model's own, which all ranks may share."""
        vector = self._part.vector
        if self._leaves_lie_in is not vector:
            self._leaves_lie_in = vector
            self._leaves = [t.detach().requires_grad_() for t in self._own.parameters_in(vector)]
        return self._leaves

    def _add(self, gradients: Sequence[Tensor | None]) -> None:
        for total, gradient in zip(self._sums, gradients, strict=True):
            if self._is_first_to_add:
                total.zero_() if gradient is None else total.copy_(gradient)
            elif gradient is not None:
                total.add_(gradient)
        self._is_first_to_add = False


# -- minibatches in pieces ------------------------------------------------------------------


def chunks(batch: Any, count: int) -> list[tuple[Any, float]]:
    """A minibatch cut along its samples, every piece with its share of them."""
    if count == 1:
        return [(batch, 1.0)]
    lengths = {len(tensor) if tensor.dim() else 0 for tensor in _tensors(batch)}
    samples = min(lengths, default=0)
    if len(lengths) != 1 or samples < count:
        raise ValueError(
            f"pipeline: micro={count} cuts every tensor of a minibatch along its first dimension, "
            f"of equally many samples, {count} or more; here they are {sorted(lengths)}: use "
            "micro=1, or a smaller micro"
        )
    bounds = [samples * number // count for number in range(count + 1)]
    return [(_cut(batch, slice(a, b)), (b - a) / samples) for a, b in pairwise(bounds)]


def _tensors(batch: Any) -> list[Tensor]:
    if isinstance(batch, Mapping):
        batch = list(batch.values())
    if isinstance(batch, list | tuple):
        return [tensor for part in batch for tensor in _tensors(part)]
    return [batch] if isinstance(batch, Tensor) else []


def _cut(batch: Any, piece: slice) -> Any:
    if isinstance(batch, Mapping):
        return {name: _cut(part, piece) for name, part in batch.items()}
    if isinstance(batch, list | tuple):
        parts = [_cut(part, piece) for part in batch]
        return type(batch)(*parts) if hasattr(batch, "_fields") else type(batch)(parts)
    return batch[piece] if isinstance(batch, Tensor) else batch


# -- what a loss sees -----------------------------------------------------------------------


class _Left(BaseException):
    """Leaves a loss as soon as it has called the model: the rest of it is not computed here.

    No `Exception`, so that no loss catches it.
    """

    def __init__(self, activation: Tensor) -> None:
        self.activation = activation


class _StandIn:
    """What a loss is given in the place of the model: it may call it, once, and nothing else."""

    training = True

    def __init__(self, compute: Callable[[Any], Tensor]) -> None:
        self._compute = compute
        self.calls = 0

    def __call__(self, inputs: Any) -> Tensor:
        self.calls += 1
        return self._compute(inputs)

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(
            f"in a pipeline a loss may only call the model, which nobody has as a whole; this one "
            f"asks for its {name!r} (decay weights by the optimiser's weight_decay)"
        )


def activation_in(
    loss: Callable[..., Tensor], batch: Any, compute: Callable[[Any], Tensor]
) -> Tensor:
    """What `compute` makes of the inputs that a loss gives to the model."""

    def compute_and_leave(inputs: Any) -> Tensor:
        raise _Left(compute(inputs))

    try:
        loss(_StandIn(compute_and_leave), batch)
    except _Left as early:
        return early.activation
    raise ValueError("in a pipeline a loss must call the model, and this one does not")


def value_of(loss: Callable[..., Tensor], batch: Any, compute: Callable[[Any], Tensor]) -> Tensor:
    """A loss whose model is `compute`."""
    model = _StandIn(compute)
    value = loss(model, batch)
    if model.calls != 1:
        raise ValueError(
            f"in a pipeline a loss must call the model once, and this one does {model.calls} times"
        )
    return value


# -- sizes alone ----------------------------------------------------------------------------


@dataclass(frozen=True)
class Rehearsal:
    """What a timing-only run needs to find the sizes of activations."""

    model: nn.Module
    data: Any  # a task's
    indices: Callable[[int], Tensor]  # of the samples to rehearse a turn with

    def between(self, slices: Sequence[Slice], micro: int, turn: int) -> list[Tensor]:
        """What goes from each stage to the next in a turn, without its numbers."""
        crossing: list[Tensor] = []

        def without_numbers(inputs: Any) -> Tensor:
            activation: Tensor = inputs.to("meta")
            for part in slices[:-1]:
                tensors = [*part.layers.named_parameters(), *part.layers.named_buffers()]
                state = {name: torch.empty_like(t, device="meta") for name, t in tensors}
                activation = functional_call(part.layers, state, (activation,))
                crossing.append(activation)
            return activation

        batch, _ = chunks(self.data.batch(self.indices(turn)), micro)[0]
        try:
            with torch.no_grad():
                activation_in(self.data.loss, batch, without_numbers)
        except (NotImplementedError, RuntimeError) as error:
            raise ValueError(
                f"pipeline cannot tell the sizes of activations without computing them ({error}): "
                "simulate without --timing-only"
            ) from None
        return crossing
