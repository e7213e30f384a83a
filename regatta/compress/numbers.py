"""The little arithmetic that codes share."""

from __future__ import annotations

from regatta.compress.channel import Matrices


def num_values(matrices: Matrices) -> int:
    return sum(rows * columns for rows, columns in matrices)


def num_rows(matrices: Matrices) -> int:
    return sum(rows for rows, _ in matrices)
