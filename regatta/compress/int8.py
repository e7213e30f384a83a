"""One byte a number: every row in 255 steps of its own."""

from __future__ import annotations

from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from regatta.compress.rows import Rows, as_bytes

_STEPS = np.float32(127)
_TINY = np.finfo(np.float32).tiny


class Int8:
    name: ClassVar[str] = "int8"
    remembers: ClassVar[bool] = False

    def nbytes(self, rows: Rows) -> int:
        return 4 * rows.count + rows.numel

    def encode(self, values: Tensor, rows: Rows, memory: Tensor | None) -> Tensor:
        numbers = values.cpu().numpy()
        scales = rows.largest(np.abs(numbers)) / _STEPS
        # A row with a NaN has a NaN for its scale, and comes out as such.
        with np.errstate(invalid="ignore"):
            steps = np.rint(numbers / np.maximum(rows.spread(scales), _TINY)).astype(np.int8)
        return as_bytes(scales, steps).to(values.device)

    def decode(self, payload: Tensor, rows: Rows) -> Tensor:
        fields, split = payload.cpu().numpy(), 4 * rows.count
        scales = rows.spread(fields[:split].view(np.float32))
        return torch.from_numpy(fields[split:].view(np.int8) * scales).to(payload.device)
