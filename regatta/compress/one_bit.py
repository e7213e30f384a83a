"""One bit a number (Seide et al. 2014): on which side of zero, and two levels a row."""

from __future__ import annotations

from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from regatta.compress.rows import Rows, as_bytes


class OneBit:
    name: ClassVar[str] = "one-bit"
    remembers: ClassVar[bool] = False

    def nbytes(self, rows: Rows) -> int:
        return 8 * rows.count + -(-rows.numel // 8)

    def encode(self, values: Tensor, rows: Rows, memory: Tensor | None) -> Tensor:
        """The levels are the mean of a row's negative numbers and that of its others."""
        numbers = values.cpu().numpy()
        up = numbers >= 0
        count = rows.sums(up.astype(np.int32))
        above = rows.sums(np.maximum(numbers, 0)) / np.maximum(count, 1)
        below = rows.sums(np.minimum(numbers, 0)) / np.maximum(rows.lengths - count, 1)
        levels = np.concatenate([below, above]).astype(np.float32)
        return as_bytes(levels, np.packbits(up)).to(values.device)

    def decode(self, payload: Tensor, rows: Rows) -> Tensor:
        fields, split = payload.cpu().numpy(), 8 * rows.count
        below, above = fields[:split].view(np.float32).reshape(2, -1)
        up = np.unpackbits(fields[split:], count=rows.numel).view(np.bool_)
        values = np.where(up, rows.spread(above), rows.spread(below))
        return torch.from_numpy(values).to(payload.device)
