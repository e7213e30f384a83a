"""One byte a number: every row in 255 steps of its own."""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor

from regatta.compress.channel import Matrices, each_matrix
from regatta.compress.numbers import num_rows, num_values

_STEPS = 127


class Int8:
    name: ClassVar[str] = "int8"
    remembers: ClassVar[bool] = False

    def nbytes(self, matrices: Matrices) -> int:
        return 4 * num_rows(matrices) + num_values(matrices)

    def encode(self, values: Tensor, matrices: Matrices, memory: Tensor | None) -> Tensor:
        scales = [m.abs().amax(1) / _STEPS for m in each_matrix(values, matrices)]
        steps = [
            torch.round(m / scale.clamp_min(torch.finfo(scale.dtype).tiny)[:, None]).view(-1)
            for m, scale in zip(each_matrix(values, matrices), scales, strict=True)
        ]
        return torch.cat(
            [t.view(torch.uint8) for t in scales]
            + [t.to(torch.int8).view(torch.uint8) for t in steps]
            or [values.new_empty(0, dtype=torch.uint8)]
        )

    def decode(self, payload: Tensor, matrices: Matrices) -> Tensor:
        split = 4 * num_rows(matrices)
        scales, steps = payload[:split].view(torch.float32), payload[split:].view(torch.int8)
        rows = scales.split([rows for rows, _ in matrices])
        return torch.cat(
            [
                (m * scale[:, None]).view(-1)
                for m, scale in zip(each_matrix(steps, matrices), rows, strict=True)
            ]
            or [scales]
        )
