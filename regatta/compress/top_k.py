"""Only the largest few numbers of a stretch, each with its place."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from regatta.compress.rows import Rows


@dataclass(frozen=True)
class TopK:
    name: ClassVar[str] = "top-k"
    remembers: ClassVar[bool] = False

    share: float = 0.01  # of the numbers

    def __post_init__(self) -> None:
        if not 0 < self.share <= 1:
            raise ValueError("the share must be more than 0 and at most 1")

    def _count(self, rows: Rows) -> int:
        return math.ceil(self.share * rows.numel)

    def nbytes(self, rows: Rows) -> int:
        return 8 * self._count(rows)

    def encode(self, values: Tensor, rows: Rows, memory: Tensor | None) -> Tensor:
        places = values.abs().topk(self._count(rows), sorted=False).indices
        chosen = values[places].view(torch.uint8)
        return torch.cat([chosen, places.to(torch.int32).view(torch.uint8)])

    def decode(self, payload: Tensor, rows: Rows) -> Tensor:
        split = len(payload) // 2
        values = torch.zeros(rows.numel, device=payload.device)
        values[payload[split:].view(torch.int32).long()] = payload[:split].view(torch.float32)
        return values
