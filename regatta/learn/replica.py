"""A model and its optimiser as flat vectors; iterating over it yields local gradients.

The strategy owns the `for`, the replica owns what one turn means: fetch a batch, run forward and
backward inside `comm.compute`, hand over the gradient.
"""

from __future__ import annotations

import math
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from functools import lru_cache, partial
from typing import Any, Protocol, TypeVar
from weakref import ref

import torch
from torch import Tensor, nn

from regatta.comm import Comm, Load, Op, Unwritten, Vector
from regatta.data.seeds import mixed_seed
from regatta.learn.body import Body, Step
from regatta.learn.layers import split
from regatta.learn.layout import Stretch
from regatta.learn.natural import Gradient, Plain
from regatta.learn.optimisers import Optimiser
from regatta.learn.part import Part, like, under
from regatta.learn.scattered import Scattered, Turns
from regatta.learn.stage import Stage

T = TypeVar("T")


class Stream(Protocol):
    """Where a replica's batches come from."""

    samples: int  # the next batch

    @property
    def planned(self) -> int:
        """Minibatches of all workers in the whole run."""
        ...

    def next(self, number: int | None = None) -> Any | None:
        """The next batch, or None when this replica's part is over.

        `number` asks for one of all workers' minibatches, for a strategy that deals them out.
        """
        ...

    def batch(self, worker: int, turn: int) -> Any | None:
        """Any worker's batch of any turn, for a strategy that shares the work on it."""
        ...

    def together(self, asks: bool) -> Mapping[int, Callable[[], Any]]:
        """The next turn of all workers: by worker, how to fetch its batch, if it has one.

        Nobody has one when the segment is over; who `asks` may find that chance has ended it.
        Others are told that there is a turn, and take it up without asking.
        """
        ...


load_of = lru_cache(Load)  # values that turn after turn has


class Replica(Part):
    def __init__(
        self,
        body: Body,
        loss: Callable[[nn.Module, Any], Tensor],
        stream: Stream,
        comm: Comm,
        optimiser: Optimiser,
        seed: int = 0,
        changed: Callable[[], None] = lambda: None,
        bucket_bytes: int = 0,
        gradient: Gradient | None = None,
    ) -> None:
        layout = body.layout
        empty = partial(comm.empty, layout.numel, layout.dtype, layout.device)
        super().__init__(layout, body.initial(empty), optimiser, comm)
        self._handed_out = body.is_shared  # with the other tenants
        self.body = body
        self.model, self.layout = body.model, body.layout
        self.turns = 0  # minibatches computed here
        self.last_loss: Tensor | None = None
        self.stream = stream
        self.bucket_bytes = bucket_bytes
        self.slots: dict[str, Tensor] = {}
        self.counters: dict[str, int] = {}  # numbers of a strategy that outlive a turn
        self.lent: Tensor | None = None  # memory given away for sums
        self._parts: dict[str, Part] = {}
        self._loss = loss
        self._seed = seed
        self._preconditioner = (gradient or Plain()).preconditioner(body.model)
        if not body.is_shared:
            self.bind()  # from here on the model needs no memory of its own
        self.tell(changed)

    # -- what a strategy sees ---------------------------------------------------------------

    def __aiter__(self) -> AsyncIterator[Vector]:
        return self

    async def __anext__(self) -> Vector:
        gradient = await self.gradient()
        if gradient is None:
            raise StopAsyncIteration
        return gradient

    @property
    def load_of_a_turn(self) -> Load:
        """Of which comes a vector."""
        return load_of(self.stream.samples, 0, 0, self.layout.nbytes)

    @property
    def unwritten(self) -> AsyncIterator[Vector]:
        """The same gradients for who only steps with them: they are no vectors."""
        return Turns(partial(self.gradient, written=False))

    def parting(self, written: bool) -> AsyncIterator[Vector]:
        """Gradients for who sends them away, and goes on with the weights that come back.

        Weights that only gradients come from are let go of as soon as these are there.
        """
        return Turns(partial(self.gradient, written=written, parting=True))

    async def gradient(
        self, number: int | None = None, written: bool = True, parting: bool = False
    ) -> Vector | None:
        """That of the next minibatch, or of minibatch `number` of all workers'."""
        batch = self.stream.next(number)
        if batch is None:
            return None
        work = partial(self._gradient if written else self._scattered, batch)
        if parting:
            work = partial(self._and_let_go, work)
        # What is sent away is a vector, though not in a world that has no other processes.
        load = self.load_of_a_turn if written or parting else load_of(self.stream.samples)
        computing = self.comm.compute(work, load, at_once=parting)
        del batch, work  # while this one waits, others may have the memory
        gradient = await computing
        self.turns += 1
        return gradient

    def reduced_by(
        self, all_reduce: Callable[..., Op[Vector]], in_buckets: bool = True, written: bool = True
    ) -> AsyncIterator[Vector]:
        """Summed gradients: in buckets of `bucket_bytes` while backward still runs, or whole.

        Who only steps with them need not have them `written`. A replica whose part is over adds
        nothing until nobody has anything to add. A sum may be all ranks' one copy: nobody writes to
        it, and it is good until the next turn.
        """
        from regatta.learn.buckets import Reduced

        return Reduced(self, all_reduce, in_buckets, written)

    def slot(self, name: str) -> Vector:
        """State of a strategy that outlives a turn; a zero vector at first, saved ever after."""
        if name not in self.slots:
            self.slots[name] = self.layout.zeros()
        return self.slots[name]

    def part(self, number: int, of: int) -> Part:
        """One of `of` stripes of this replica, with an optimiser of its own."""
        return self if of == 1 else self._part(f"{number}/{of}")

    def load(self, weights: Vector, version: int | None = None) -> None:
        """Nobody needs the weights before: the next step may have their memory."""
        self.body.leave()
        super().load(weights, version)

    def stage(self, number: int, of: int, micro: int) -> Stage:
        """One of `of` stages of the model's layers; minibatches come to it in `micro` pieces."""
        part = self._part(f"stage {number}/{of}")
        return Stage(self, part, split(self.model, self.layout, of)[number], number, of, micro)

    def follow(self, part: Part) -> None:
        """A part has stepped for the whole."""
        self.steps, self.version = part.steps, part.version
        self._changed()

    def cut(self, vector: Vector, pieces: int) -> list[Vector]:
        """A vector in stripes; each carries the vector's count."""
        return [vector] if pieces == 1 else [self._cut(s, vector) for s in self._stripes(pieces)]

    def joined(self, pieces: Sequence[Vector]) -> Vector:
        """The vector of which these are the stripes."""
        if len(pieces) == 1:
            return pieces[0]
        vector = self._empty()
        for stripe, piece in zip(self._stripes(len(pieces)), pieces, strict=True):
            stripe.paste(piece, vector)
        vector[-1] = pieces[-1][-1]
        return vector

    def mean(self, total: Vector) -> Vector:
        """That of a sum: a vector's last element counts what it stands for."""
        if not isinstance(total, Unwritten):
            return torch.div(total, total[-1], out=self._empty())

        def divide(piece: Tensor, here: slice, into: Sequence[Tensor]) -> None:
            torch.div(piece, total[-1], out=into[0][here])

        (mean,) = total.use(divide, lambda: [self._empty()], vectors=1, head=self.layout.numel)
        return mean

    def spliced(self, parameters: Vector, rest: Vector) -> Vector:
        """The parameters of one vector with the statistics and count of another."""
        vector, length = self._empty(), self.layout.num_parameters
        vector[:length] = parameters[:length]
        vector[length:] = rest[length:]
        return vector

    def let_go(self) -> None:
        """Of the weights, until others are loaded: whoever has lent them may step them in place.

        Among many ranks of one process as many vectors less are held as there are ranks that wait.
        """
        if self.body.is_shared:
            self._vector = self.body.nowhere

    def score(self, losses: Sequence[Tensor]) -> float:
        """The mean of these losses; not a number where the weights are none any more."""
        if not torch.isfinite(self._vector).all():
            return math.nan
        return float(torch.stack(tuple(losses)).mean())

    def pick(self, among: int) -> int:
        """A number below `among`, by lot; the seed, the rank and the turn decide."""
        return mixed_seed(self._seed, self.comm.rank, self.turns, among) % among

    # -- what the engine sees ---------------------------------------------------------------

    def look(self, at: Callable[[nn.Module], T]) -> T:
        """Use these weights, with the statistics that belong to them."""
        self.bind()
        self.layout.fill_buffers(self._vector)
        self.model.eval()
        try:
            with torch.no_grad():
                return at(self.model)
        finally:
            self.model.train()

    def tell(self, changed: Callable[[], None]) -> None:
        """Who wants to look whenever the weights have changed."""
        self._changed = changed  # type: ignore[method-assign]

    def statistics(self) -> Tensor:
        """The buffers' part of the present weights."""
        return self._vector[self.layout.num_parameters : -1].clone()

    def bind(self) -> None:
        """Let the model's parameters be the present weights."""
        self.body.enter(self, self._vector, self._preconditioner)

    def named_answer(self) -> dict[str, Tensor]:
        """The model by its own names, for use outside."""
        self.bind()
        self.layout.fill_buffers(self._vector)
        return {name: t.detach().clone() for name, t in self.model.state_dict().items()}

    def _gradient(self, batch: Any, out: Tensor | None = None) -> Tensor:
        with self.body.direct as direct:
            loss = self.forward(batch)
            return direct.gradient(loss, self._empty() if out is None else out)

    def _scattered(self, batch: Any) -> Scattered:
        parameters = self.layout.parameters
        gradients = torch.autograd.grad(self.forward(batch), parameters, allow_unused=True)
        return Scattered(self.layout, gradients)

    def _and_let_go(self, work: Callable[[], Vector]) -> Vector:
        gradient = work()
        self.let_go()
        return gradient

    def forward(self, batch: Any) -> Tensor:
        torch.default_generator.manual_seed(mixed_seed(self._seed, self.comm.rank, self.turns))
        self.bind()
        self.layout.fill_buffers(self._vector, only_inputs=True)
        loss = self._loss(self.model, batch)
        self.last_loss = loss.detach()
        return loss

    # -- how it comes about -----------------------------------------------------------------

    def _advance(self, total: Tensor, of: int, rate: float) -> None:
        """As a part does; but ranks in lockstep take the step that the first of them has made."""
        body = self.body
        if not body.is_shared:
            super()._advance(total, of, rate)
            return
        start, how = (self._vector, self._memory, total), (of, rate, self.version)
        last, into_new_memory = body.last_step, self._is_held
        if last is not None and last.is_from(start, how) and last.is_held_by_its_maker():
            self._share_with(last.maker)
            return
        super()._advance(total, of, rate)
        body.last_step = None  # what is written to in place is nobody else's
        if into_new_memory:
            end = ref(self._vector), ref(self._memory)
            weights, memory, _ = start
            body.last_step = Step(self, how, (ref(weights), ref(memory), ref(total)), end)

    def _num_holders(self) -> int:
        """Without the model, which computes with weights only while somebody else has them too."""
        views = len(self.layout.parameters) if self.body.points_to(self._vector) else 0
        return super()._num_holders() - views

    def _share_with(self, other: Replica) -> None:
        self._vector, self._memory = other._vector, other._memory
        for each in (self, other):
            each._handed_out = each._memory_handed_out = True

    def _cut(self, stretch: Stretch, vector: Tensor) -> Tensor:
        return stretch.cut(vector, self.comm.empty(stretch.numel, stretch.dtype, stretch.device))

    def _stripes(self, of: int) -> list[Stretch]:
        return [self.layout.stripe(number, of) for number in range(of)]

    def _part(self, name: str) -> Part:
        if name not in self._parts:
            stretch = self._stretch(name)
            weights = self._cut(stretch, self._vector)
            self._parts[name] = Part(stretch, weights, self._optimiser, self.comm)
            self._parts[name].pace = self.pace
        return self._parts[name]

    def _stretch(self, name: str) -> Stretch:
        """What `number/of` is a stripe of, and `stage number/of` a stage of."""
        number, of = map(int, name.removeprefix("stage ").split("/"))
        if name.startswith("stage "):
            return split(self.model, self.layout, of)[number].stretch
        return self.layout.stripe(number, of)

    def reset_optimiser(self) -> None:
        """Also forget what layers were like: it too was learnt on the way to other weights."""
        super().reset_optimiser()
        if self._preconditioner is not None:
            self._preconditioner.forget()

    # -- what outlives the process ----------------------------------------------------------

    def state(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        tensors, numbers = super().state()
        numbers |= {"turns": self.turns, "counters": self.counters, "parts": {}}
        tensors |= {f"slot.{name}": value for name, value in self.slots.items()}
        for name, part in self._parts.items():
            vectors, numbers["parts"][name] = part.state()
            tensors |= {f"part.{name}.{key}": value for key, value in vectors.items()}
        if self._preconditioner is not None:
            learnt, numbers["preconditioner"] = self._preconditioner.state()
            tensors |= {f"preconditioner.{name}": value for name, value in learnt.items()}
        self.bind()
        tensors |= {f"local.{name}": value for name, value in self.body.local().items()}
        return tensors, numbers

    def restore(self, tensors: dict[str, Tensor], numbers: dict[str, Any]) -> None:
        super().restore(tensors, numbers)
        self.turns = numbers["turns"]
        self.counters = numbers["counters"]
        slots = under("slot.", tensors)
        self.slots = {name: like(self._vector, slot, name) for name, slot in slots.items()}
        for name, of_part in numbers["parts"].items():
            self._part(name).restore(under(f"part.{name}.", tensors), of_part)
        if self._preconditioner is not None:
            learnt = under("preconditioner.", tensors)
            self._preconditioner.restore(learnt, numbers["preconditioner"])
        self.bind()
        local = self.body.local()
        for name, value in under("local.", tensors).items():
            local[name].copy_(like(local[name], value, name))
