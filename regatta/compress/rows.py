"""The rows of a stretch's matrices: what codes with levels of their own a row go by.

All rows are handled in one sweep (numpy's `reduceat`), however many matrices there are: one call a
matrix takes longer than the arithmetic on a small network.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

Numbers = npt.NDArray[Any]


class Rows:
    def __init__(self, matrices: Sequence[tuple[int, int]]) -> None:
        self.matrices = matrices  # rows and columns, one after another
        rows, columns = (np.array([m[n] for m in matrices], dtype=np.int64) for n in (0, 1))
        self.lengths = np.repeat(columns, rows)
        self.starts = np.concatenate([[0], np.cumsum(self.lengths)[:-1]]).astype(np.int64)
        self.count = len(self.lengths)
        self.numel = int(self.lengths.sum())

    def sums(self, values: Numbers) -> Numbers:
        return np.add.reduceat(values, self.starts) if self.count else values

    def largest(self, values: Numbers) -> Numbers:
        return np.maximum.reduceat(values, self.starts) if self.count else values

    def spread(self, of_rows: Numbers) -> Numbers:
        """Every row's number, for each of its elements."""
        return np.repeat(of_rows, self.lengths)

    def each_matrix(self, values: Tensor) -> Iterator[Tensor]:
        """The matrices, as views."""
        pieces = values.split([rows * columns for rows, columns in self.matrices])
        for piece, shape in zip(pieces, self.matrices, strict=True):
            yield piece.view(shape)


def as_bytes(*fields: Numbers) -> Tensor:
    return torch.from_numpy(np.concatenate([field.view(np.uint8) for field in fields]))
