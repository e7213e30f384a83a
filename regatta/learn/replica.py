"""A model and its optimiser as flat vectors; iterating over it yields local gradients.

The strategy owns the `for`, the replica owns what one turn means: fetch a batch, run forward and
backward inside `comm.compute`, hand over the gradient. Vectors that go in or out are values: a
replica writes to its weights only while nobody else holds them, and takes a copy first otherwise.
"""

from __future__ import annotations

import inspect
from collections.abc import AsyncIterator, Callable
from functools import partial
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.nn import Parameter

from regatta.comm import Comm, Load, Op, Vector
from regatta.data.order import mixed_seed
from regatta.learn.body import Body
from regatta.learn.optimisers import Optimiser


class Stream(Protocol):
    """Where a replica's batches come from."""

    samples: int  # a batch

    def next(self) -> Any | None:
        """The next batch, or None when this replica's part is over."""
        ...


class Replica:
    def __init__(
        self,
        body: Body,
        loss: Callable[[nn.Module, Any], Tensor],
        stream: Stream,
        comm: Comm,
        optimiser: Optimiser,
        seed: int = 0,
        after_step: Callable[[], None] = lambda: None,
        bucket_bytes: int = 0,
    ) -> None:
        self.body = body
        self.model, self.layout = body.model, body.layout
        self.turns = 0  # minibatches computed here
        self.steps = 0  # updates made here
        self.version = 0  # gradients that these weights contain
        self.last_loss: Tensor | None = None
        self.load_of_a_turn = Load(samples=stream.samples)
        self.merging = Load(nbytes=self.layout.numel * self.layout.dtype.itemsize)
        self.stream = stream
        self.comm = comm
        self.bucket_bytes = bucket_bytes
        self.slots: dict[str, Tensor] = {}
        self.lent: Tensor | None = None  # memory given away for sums
        self._loss = loss
        self._seed = seed
        self._after_step = after_step
        self._vector = body.initial()
        self._handed_out = True  # a shared body gives all its replicas the same
        self._prefix = Parameter(self._vector[: self.layout.num_parameters])
        self.optimizer = optimiser.build(self._prefix)
        self._is_plain = optimiser.is_plain
        # Without the profiler's wrapping, which takes longer than a small vector's step.
        self._bare_step = partial(inspect.unwrap(type(self.optimizer).step), self.optimizer)

    # -- what a strategy sees ---------------------------------------------------------------

    def __aiter__(self) -> AsyncIterator[Vector]:
        return self

    async def __anext__(self) -> Vector:
        batch = self.stream.next()
        if batch is None:
            raise StopAsyncIteration
        work = partial(self._gradient, batch)
        gradient = await self.comm.compute(work, self.load_of_a_turn)
        self.turns += 1
        return gradient

    def reduced_by(self, all_reduce: Callable[..., Op[Vector]]) -> AsyncIterator[Vector]:
        """Summed gradients: in buckets of `bucket_bytes` while backward still runs, or whole.

        A replica whose part is over adds nothing until nobody has anything to add. A sum lies in
        memory that the replica lends: it is good until the next turn.
        """
        from regatta.learn.buckets import Reduced

        return Reduced(self, all_reduce)

    @property
    def weights(self) -> Vector:
        self._handed_out = True
        return self._vector

    @property
    def nothing(self) -> Vector:
        """What a replica adds to a sum when it has nothing to add."""
        return self.layout.zeros()

    def load(self, weights: Vector, version: int | None = None) -> None:
        self._vector = weights
        self._handed_out = True
        if version is not None:
            self.version = version

    def step(self, gradient: Vector, born: int | None = None, of: int = 1) -> None:
        """One optimiser step with the mean of `of` gradients, given their sum.

        `born` is the version of the weights that they were computed from; their age is recorded.
        """
        if of > 1:
            # The sum may lie in the memory that this replica lent for it: then nobody else has it.
            in_place = self.lent is not None and gradient is self.lent
            gradient = gradient.div_(of) if in_place else self.body.mean(gradient, of)
        if self._handed_out and self._is_plain:
            self._vector = self._stepped_copy(gradient)
        else:
            if self._handed_out:
                self._vector = self._vector.clone()
            self._update(gradient)
        self._handed_out = False
        self.layout.fold(self._vector, gradient, of / (self.version + of))
        if born is not None:
            self.comm.traffic.note_age(self.version - born)
        self.steps += 1
        self.version += of
        self._after_step()

    def slot(self, name: str) -> Vector:
        """State of a strategy that outlives a turn; a zero vector at first, saved ever after."""
        if name not in self.slots:
            self.slots[name] = self.layout.zeros()
        return self.slots[name]

    def _stepped_copy(self, gradient: Tensor) -> Tensor:
        """Copy and step in one pass, where a step is just `weights - lr * gradient`."""
        num_parameters = self.layout.num_parameters
        rate = self.optimizer.param_groups[0]["lr"]
        stepped = torch.add(self._vector, gradient, alpha=-rate)
        stepped[num_parameters:] = self._vector[num_parameters:]
        return stepped

    def _update(self, gradient: Tensor) -> None:
        num_parameters = self.layout.num_parameters
        self._prefix.data = self._vector[:num_parameters]
        self._prefix.grad = gradient[:num_parameters]
        with torch.no_grad():
            self._bare_step()

    # -- what the engine sees ---------------------------------------------------------------

    def evaluate(self, evaluate: Callable[[nn.Module], dict[str, float]]) -> dict[str, float]:
        """Score these weights, with the statistics that belong to them."""
        self.bind()
        self.layout.fill_buffers(self._vector)
        self.model.eval()
        try:
            with torch.no_grad():
                return evaluate(self.model)
        finally:
            self.model.train()

    def bind(self) -> None:
        """Let the model's parameters be the present weights."""
        self.body.enter(self, self._vector)

    def named_answer(self) -> dict[str, Tensor]:
        """The model by its own names, for use outside."""
        self.bind()
        self.layout.fill_buffers(self._vector)
        return {name: t.detach().clone() for name, t in self.model.state_dict().items()}

    def _gradient(self, batch: Any, out: Tensor | None = None) -> Tensor:
        loss = self.forward(batch)
        gradients = torch.autograd.grad(loss, self.layout.parameters, allow_unused=True)
        return self.layout.gradient(list(gradients), out)

    def forward(self, batch: Any) -> Tensor:
        torch.default_generator.manual_seed(mixed_seed(self._seed, self.comm.rank, self.turns))
        self.bind()
        self.layout.fill_buffers(self._vector, only_inputs=True)
        loss = self._loss(self.model, batch)
        self.last_loss = loss.detach()
        return loss

    # -- what outlives the process ----------------------------------------------------------

    def state(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """Everything a resumed replica needs: tensors, and plain numbers."""
        tensors = {"weights": self._vector}
        numbers: dict[str, Any] = {
            "turns": self.turns, "steps": self.steps, "version": self.version, "optimiser": {},
        }  # fmt: skip
        for name, value in self.optimizer.state_dict()["state"].get(0, {}).items():
            if isinstance(value, Tensor):
                tensors[f"optimiser.{name}"] = value
            else:
                numbers["optimiser"][name] = value
        tensors |= {f"slot.{name}": value for name, value in self.slots.items()}
        self.bind()
        tensors |= {f"local.{name}": value for name, value in self.body.local().items()}
        return tensors, numbers

    def restore(self, tensors: dict[str, Tensor], numbers: dict[str, Any]) -> None:
        weights = tensors["weights"]
        if weights.shape != self._vector.shape:
            raise ValueError(
                f"the checkpoint's model has {weights.numel()} numbers, this one "
                f"{self._vector.numel()}: it belongs to another task or model"
            )
        self.load(weights, numbers["version"])
        self.turns, self.steps = numbers["turns"], numbers["steps"]
        state = dict(numbers["optimiser"]) | _under("optimiser.", tensors)
        if state:
            whole = self.optimizer.state_dict()
            self.optimizer.load_state_dict({**whole, "state": {0: state}})
        self.slots = _under("slot.", tensors)
        self.bind()
        local = self.body.local()
        for name, value in _under("local.", tensors).items():
            local[name].copy_(value)


def _under(prefix: str, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    return {k.removeprefix(prefix): v for k, v in tensors.items() if k.startswith(prefix)}
