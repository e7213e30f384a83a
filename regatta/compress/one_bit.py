"""One bit a number (Seide et al. 2014): on which side of zero, and two levels a row."""

from __future__ import annotations

from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from regatta.compress.channel import Matrices, each_matrix
from regatta.compress.numbers import num_rows, num_values


class OneBit:
    name: ClassVar[str] = "one-bit"
    remembers: ClassVar[bool] = False

    def nbytes(self, matrices: Matrices) -> int:
        return 8 * num_rows(matrices) + -(-num_values(matrices) // 8)

    def encode(self, values: Tensor, matrices: Matrices, memory: Tensor | None) -> Tensor:
        bits = values >= 0
        sides = zip(each_matrix(values, matrices), each_matrix(bits, matrices), strict=True)
        levels = [_levels(matrix, up).view(-1) for matrix, up in sides]
        packed = torch.from_numpy(np.packbits(bits.cpu().numpy())).to(values.device)
        return torch.cat([*(level.view(torch.uint8) for level in levels), packed])

    def decode(self, payload: Tensor, matrices: Matrices) -> Tensor:
        split = 8 * num_rows(matrices)
        levels = payload[:split].view(torch.float32).view(-1, 2)
        unpacked = np.unpackbits(payload[split:].cpu().numpy(), count=num_values(matrices))
        bits = torch.from_numpy(unpacked).to(payload.device).bool()
        rows = levels.split([rows for rows, _ in matrices])
        return torch.cat(
            [
                torch.where(up, level[:, 1:], level[:, :1]).view(-1)
                for up, level in zip(each_matrix(bits, matrices), rows, strict=True)
            ]
            or [levels.view(-1)]
        )


def _levels(matrix: Tensor, up: Tensor) -> Tensor:
    """The mean of a row's negative numbers and that of its others; 0 where there are none."""
    count = up.sum(1)
    above = torch.where(up, matrix, 0).sum(1)
    below = torch.where(up, 0, matrix).sum(1)
    others = matrix.shape[1] - count
    return torch.stack([below / others.clamp_min(1), above / count.clamp_min(1)], 1)
