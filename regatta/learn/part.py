"""Weights and the optimiser that steps them: a whole model's, or a stretch of one.

A server that holds a stripe of the model has a part; so has a ring whose model travels in chunks. A
replica is the part that is the whole. Vectors that go in or out are values: a part writes to its
weights only while nobody else holds them, and steps into new memory otherwise.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from regatta.comm import Comm, Load, Unwritten, Vector
from regatta.learn.layout import CHUNK, Span
from regatta.learn.optimisers import Optimiser


@dataclass(frozen=True, eq=False)
class Memory:
    """What an optimiser remembers; whoever steps on makes another."""

    vectors: Sequence[Tensor]
    steps: float  # if it counts them; the mean of several workers' need not be a whole number


NO_MEMORY = Memory((), 0.0)  # before the first step; stands for zeros


class Part:
    def __init__(self, span: Span, weights: Tensor, optimiser: Optimiser, comm: Comm) -> None:
        self.span = span
        self.comm = comm
        self.steps = 0  # updates made here
        self.version = 0  # gradients that these weights contain
        self.merging = Load(nbytes=span.nbytes)
        self.pace: Callable[[Part], float] | None = None  # multiplies the learning rate
        self._vector = weights
        self._handed_out = False  # to who may hold them for ever
        self._on_loan = False  # to who holds an alias while it needs them
        self._is_guest = False  # in vectors that are another rank's
        self._shares = False  # vectors with other ranks, as their guest or host
        self._optimiser = optimiser
        self._memory = NO_MEMORY
        self._memory_handed_out = False

    # -- what a strategy sees ---------------------------------------------------------------

    @property
    def weights(self) -> Vector:
        if self._is_guest:  # others will step them, and not know that somebody holds them here
            self._vector, self._is_guest = self._empty().copy_(self._vector), False
        self._handed_out = True
        return self._vector

    @property
    def loan(self) -> Vector:
        """The weights for who lets go of them soon: a step after that need not leave them."""
        if not self.comm.sends_unwritten:  # who can say what other processes hold?
            return self.weights
        self._on_loan = True
        return self._vector.detach()

    @property
    def vector(self) -> Tensor:
        """The weights, for who does not keep them beyond the next step."""
        return self._vector

    @property
    def nothing(self) -> Vector:
        """What is added to a sum by who has nothing to add."""
        return self._empty().zero_()

    def load(self, weights: Vector, version: int | None = None) -> None:
        self._vector = weights
        self._handed_out, self._is_guest = True, False
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
        self._advance(gradient, of, rate if self.pace is None else rate * self.pace(self))
        self.comm.owe(self.span.nbytes)
        if born is not None:
            self.comm.traffic.note_age(self.version - born)
        self.steps += 1
        self.version += of
        self._changed()

    # -- how it comes about -----------------------------------------------------------------

    def _changed(self) -> None:
        """Told after every change that somebody may want to look at."""

    def _empty(self) -> Tensor:
        return self.comm.empty(self.span.numel, self.span.dtype, self.span.device)

    def _advance(self, total: Tensor, of: int, rate: float) -> None:
        """Move the weights: in place, or into new memory if somebody else holds the old."""
        unwritten = total if isinstance(total, Unwritten) else None
        if self._shares and (unwritten is None or not unwritten.is_common):
            # From here on everybody steps alone, away from what is common.
            self._handed_out = self._memory_handed_out = True
            self._shares = self._is_guest = False
        if unwritten is not None:
            if not self._has_advanced_at_once(unwritten, of, rate):
                self._advance_in_pieces(unwritten, of, rate)
            return
        old, self._vector = self._vector, self._next_vector()
        self._optimise(old, total, of, rate)
        tail = total[self.span.num_parameters :]
        self.span.fold(old, self._vector, tail, of, share=of / (self.version + of))
        self._handed_out = self._on_loan = False

    def _next_vector(self) -> Tensor:
        return self._empty() if self._is_held else self._vector

    @property
    def _is_held(self) -> bool:
        """By somebody else, who counts on the weights as they are."""
        return self._handed_out or (self._on_loan and self._num_holders() > 1)

    def _has_advanced_at_once(self, total: Unwritten, of: int, rate: float) -> bool:
        """A plain step in place is one call for all parameters, unless ranks share the sum."""
        if self._is_held or not self._optimiser.is_plain:
            return False
        tail = total.added_to(self._vector, -(self._optimiser.lr * rate / of))
        if tail is None:
            return False
        self.span.fold(self._vector, self._vector, tail, of, share=of / (self.version + of))
        self._on_loan = False
        return True

    def _advance_in_pieces(self, total: Unwritten, of: int, rate: float) -> None:
        """Ranks that step alike from the same weights share them, and each steps a stripe."""
        start, length = (self._vector, *self._memory.vectors), self.span.num_parameters
        steps = self._memory.steps + self._optimiser.counts_steps

        def step(piece: Tensor, here: slice, end: Sequence[Tensor]) -> None:
            if here.start < length:
                self._step(here, start, end, piece, piece, of, steps, rate)
            else:
                self.span.fold(start[0], end[0], piece, of, share=of / (self.version + of))

        def end() -> Sequence[Tensor]:
            return self._next_vector(), *self._next_memory().vectors

        kept = {vector.data_ptr(): vector for vector in start}
        shared = total.use(step, end, 1 + len(self._optimiser.memory), head=length)
        self._vector, *vectors = (kept.get(vector.data_ptr(), vector) for vector in shared)
        self._memory = Memory(vectors, steps)
        self._shares = total.is_common
        self._is_guest = total.is_common and self.comm.rank != 0
        self._handed_out = self._memory_handed_out = self._on_loan = False

    def _optimise(self, old: Tensor, total: Tensor, of: int, rate: float) -> None:
        """A step of the parameters from `old`, which the present weights may be."""
        length = self.span.num_parameters
        if self._optimiser.is_plain:  # one pass takes no pieces
            self._step(slice(length), [old], [self._vector], total[:length], total, of, 0.0, rate)
            return
        before, after = self._memory, self._next_memory()
        start, end = (old, *before.vectors), (self._vector, *after.vectors)
        scratch = old.new_empty(min(CHUNK, length) if of > 1 else 0)
        for first in range(0, length, CHUNK):
            here = slice(first, min(first + CHUNK, length))
            mean = scratch[: here.stop - first]
            self._step(here, start, end, total[here], mean, of, after.steps, rate)
        self._memory, self._memory_handed_out = after, False

    def _step(
        self,
        here: slice,
        start: Sequence[Tensor],
        end: Sequence[Tensor],
        total: Tensor,
        mean: Tensor,
        of: int,
        steps: float,
        rate: float,
    ) -> None:
        """Weights and memory at `start` step to `end`, which may be the same; `mean` is lent."""
        optimiser, old = self._optimiser, start[0][here]
        new = old if end[0] is start[0] else end[0][here]
        if optimiser.is_plain:  # one pass: no mean need be written down
            torch.add(old, total, alpha=-(optimiser.lr * rate / of), out=new)
            return
        for written, read in zip(end, start, strict=False):  # nothing is remembered at first
            if written.data_ptr() != read.data_ptr():
                written[here] = read[here]
        gradient = torch.div(total, of, out=mean) if of > 1 else total
        memory = [vector[here] for vector in end[1:]]
        optimiser.update(new, gradient, memory, steps, rate)

    def _next_memory(self) -> Memory:
        """With vectors to write to: the present ones, or new ones if somebody else holds those."""
        vectors, names = self._memory.vectors, self._optimiser.memory
        if not names:
            return NO_MEMORY
        if not vectors:
            vectors = [self.span.zeros_of(self.span.num_parameters) for _ in names]
        elif self._memory_handed_out:
            vectors = [torch.empty_like(vector) for vector in vectors]
        return Memory(vectors, self._memory.steps + self._optimiser.counts_steps)

    def _num_holders(self) -> int:
        """Of the weights' memory: tensors, whatever their shapes."""
        storage = self._vector.untyped_storage()
        return torch._C._storage_Use_Count(storage._cdata) - 1  # that one is ours

    # -- the optimiser's own memory ---------------------------------------------------------

    @property
    def optimiser_state(self) -> Vector | None:
        """What the optimiser remembers, as one vector that counts 1; None if it never does.

        The steps that it has counted stand before the count: Adam corrects its moments by them.
        """
        if not self._optimiser.memory:
            return None
        vector = self.no_optimiser_state
        length = self.span.num_parameters
        for number, remembered in enumerate(self._memory.vectors):
            vector[number * length : (number + 1) * length] = remembered
        vector[-2] = self._memory.steps
        vector[-1] = 1.0
        return vector

    @property
    def no_optimiser_state(self) -> Vector:
        """What is added to a sum of optimisers' memories by who has nothing to add."""
        span, names = self.span, self._optimiser.memory
        numel = len(names) * span.num_parameters + 2
        return self.comm.empty(numel, span.dtype, span.device).zero_()

    def load_optimiser_state(self, vector: Vector) -> None:
        length = self.span.num_parameters
        self._take_memory(Memory(vector[:-2].split(length), float(vector[-2])))

    def reset_optimiser(self) -> None:
        self._take_memory(NO_MEMORY)

    def _take_memory(self, memory: Memory) -> None:
        self._memory, self._memory_handed_out = memory, True

    # -- what outlives the process ----------------------------------------------------------

    def state(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """Everything a resumed part needs: tensors, and plain numbers."""
        remembered = zip(self._optimiser.memory, self._memory.vectors, strict=False)
        tensors = {"weights": self._vector}
        tensors |= {f"optimiser.{name}": vector for name, vector in remembered}
        numbers: dict[str, Any] = {
            "steps": self.steps, "version": self.version, "optimiser_steps": self._memory.steps,
        }  # fmt: skip
        return tensors, numbers

    def restore(self, tensors: dict[str, Tensor], numbers: dict[str, Any]) -> None:
        weights = like(self._vector, tensors["weights"], "model")
        self._vector, self._handed_out, self._is_guest = weights, True, False
        self.steps, self.version = numbers["steps"], numbers["version"]
        remembered = under("optimiser.", tensors)
        if remembered:
            parameters = self._vector[: self.span.num_parameters]
            vectors = [like(parameters, remembered[n], n) for n in self._optimiser.memory]
            self._take_memory(Memory(vectors, numbers["optimiser_steps"]))


def like(wanted: Tensor, found: Tensor, what: str) -> Tensor:
    """Refuses a tensor that cannot have stood where this one stands."""
    if found.shape != wanted.shape or found.dtype != wanted.dtype:
        raise ValueError(
            f"the checkpoint's {what} has {found.numel()} numbers of {found.dtype}, this one "
            f"{wanted.numel()} of {wanted.dtype}: it belongs to another task or model"
        )
    return found


def under(prefix: str, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    return {k.removeprefix(prefix): v for k, v in tensors.items() if k.startswith(prefix)}
