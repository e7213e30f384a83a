"""Half precision: two bytes a number."""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor

from regatta.compress.rows import Rows

_LARGEST = torch.finfo(torch.float16).max


class Fp16:
    name: ClassVar[str] = "fp16"
    remembers: ClassVar[bool] = False

    def nbytes(self, rows: Rows) -> int:
        return 2 * rows.numel

    def encode(self, values: Tensor, rows: Rows, memory: Tensor | None) -> Tensor:
        # What is too large is cut off, not made infinite: the residual brings the rest later.
        return values.clamp(-_LARGEST, _LARGEST).half().view(torch.uint8)

    def decode(self, payload: Tensor, rows: Rows) -> Tensor:
        return payload.view(torch.float16).float()
