"""PowerSGD (Vogels et al. 2019): a matrix as the product of two thin ones.

One step of power iteration, started from the last one's result: P = M Q, made orthogonal, and
Q = M' P. Both are linear in M, so workers can sum P and Q instead of M. A matrix that two thin ones
would not make smaller travels as it is.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from regatta.compress.rows import Rows


@dataclass(frozen=True)
class PowerSgd:
    name: ClassVar[str] = "power-sgd"
    remembers: ClassVar[bool] = True

    rank: int = 4

    def __post_init__(self) -> None:
        if self.rank < 1:
            raise ValueError("the rank must be 1 or more")

    def shrinks(self, rows: int, columns: int) -> bool:
        return self.rank * (rows + columns) < rows * columns

    def nbytes(self, rows: Rows) -> int:
        return 4 * sum(
            self.rank * (height + width) if self.shrinks(height, width) else height * width
            for height, width in rows.matrices
        )

    def encode(self, values: Tensor, rows: Rows, memory: Tensor | None) -> Tensor:
        pieces: list[Tensor] = []
        for matrix, start in self.with_starts(values, rows, memory):
            if start is None:
                pieces.append(matrix)
                continue
            left = orthogonal(matrix @ start)
            right = matrix.T @ left
            start.copy_(right)
            pieces += [left, right]
        return torch.cat([p.reshape(-1).view(torch.uint8) for p in pieces] or [_NO_BYTES])

    def decode(self, payload: Tensor, rows: Rows) -> Tensor:
        numbers, place = payload.view(torch.float32), 0
        pieces: list[Tensor] = []
        for height, width in rows.matrices:
            if not self.shrinks(height, width):
                size = height * width
                pieces.append(numbers[place : place + size])
            else:
                size = self.rank * (height + width)
                left, right = numbers[place : place + size].split(
                    [self.rank * height, self.rank * width]
                )
                pieces.append((left.view(height, -1) @ right.view(width, -1).T).view(-1))
            place += size
        return torch.cat(pieces or [numbers])

    def with_starts(
        self, values: Tensor, rows: Rows, memory: Tensor | None
    ) -> Iterator[tuple[Tensor, Tensor | None]]:
        """Every matrix with where its power iteration starts: kept in the matrix's own place."""
        assert memory is not None
        places = rows.each_matrix(memory)
        for matrix, place in zip(rows.each_matrix(values), places, strict=True):
            height, width = matrix.shape
            if not self.shrinks(height, width):
                yield matrix, None
                continue
            start = place.view(-1)[: width * self.rank].view(width, self.rank)
            if not start.any():  # the first time, or nothing came of the last: anywhere
                start.copy_(_anywhere(width, self.rank))
            yield matrix, start


_NO_BYTES = torch.empty(0, dtype=torch.uint8)


def orthogonal(thin: Tensor) -> Tensor:
    basis: Tensor = torch.linalg.qr(thin).Q
    return basis


def _anywhere(rows: int, columns: int) -> Tensor:
    """Normal numbers, the same on every rank."""
    generator = torch.Generator().manual_seed(rows * 1_000_003 + columns)
    return torch.randn(rows, columns, generator=generator)
