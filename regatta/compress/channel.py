"""What a code is, and a way to send with it that loses nothing for good."""

from __future__ import annotations

from typing import ClassVar, Protocol

import torch
from torch import Tensor

from regatta.comm import Phantom, Vector
from regatta.compress.rows import Rows
from regatta.learn.layout import Layout, Stretch
from regatta.learn.replica import Replica


class Code(Protocol):
    name: ClassVar[str]
    remembers: ClassVar[bool]  # something from one encoding to the next

    def nbytes(self, rows: Rows) -> int: ...
    def encode(self, values: Tensor, rows: Rows, memory: Tensor | None) -> Tensor:
        """Parameters as bytes; fields of four bytes come first, so that all are aligned."""
        ...

    def decode(self, payload: Tensor, rows: Rows) -> Tensor: ...


class Channel:
    """One way out for one stretch of a vector.

    With feedback, what the code loses waits in a slot and is added to what is sent next; the slot
    is saved with every checkpoint. A vector that counts 0 is sent as it is and leaves the slot
    alone: who has nothing to add does not bring old debts.
    """

    def __init__(
        self,
        code: Code,
        replica: Replica,
        span: Layout | Stretch,
        slot: str,
        feedback: bool = True,
    ) -> None:
        if span.dtype != torch.float32:
            raise ValueError(f"compress codes models of float32, not {span.dtype}: leave it out")
        self._code = code
        self._span = span
        self._rows = Rows(span.matrices)
        self._tail_bytes = span.nbytes - span.num_parameters * span.dtype.itemsize
        self._residual = _stretch_of(replica.slot(slot), span) if feedback else None
        remembers = code.remembers and slot  # who only decodes needs no memory
        self._memory = _stretch_of(replica.slot(slot + " memory"), span) if remembers else None

    @property
    def nbytes(self) -> int:
        return self._code.nbytes(self._rows) + self._tail_bytes

    def encode(self, vector: Vector) -> Vector:
        if isinstance(vector, Phantom):
            return Phantom(self.nbytes, vector.count)
        rows, split = self._rows, self._span.num_parameters
        values, tail = vector[:split], vector[split:]
        owing = self._residual is not None and vector[-1] != 0
        if owing:
            values = values + self._residual
        encoded = self._code.encode(values, rows, self._memory)
        if owing:
            assert self._residual is not None
            torch.sub(values, self._code.decode(encoded, rows), out=self._residual)
        return torch.cat([tail.view(torch.uint8), encoded])

    def decode(self, payload: Vector) -> Vector:
        if isinstance(payload, Phantom):
            return Phantom(self._span.nbytes, payload.count)
        tail = payload[: self._tail_bytes].view(self._span.dtype)
        return torch.cat([self._code.decode(payload[self._tail_bytes :], self._rows), tail])


def _stretch_of(slot: Vector, span: Layout | Stretch) -> Tensor | None:
    if isinstance(slot, Phantom):
        return None
    start = span.start if isinstance(span, Stretch) else 0
    stretch: Tensor = slot[start : start + span.num_parameters]
    return stretch
