"""A checkpoint in memory: a virtual world goes back to it where one of processes reads files."""

from __future__ import annotations

import json
from typing import Any

from torch import Tensor

State = tuple[dict[str, Tensor], dict[str, Any]]


class Kept:
    """The newest one that all ranks have written; none at first."""

    def __init__(self) -> None:
        self.segment: int | None = None
        self.time = 0.0
        self.size = 0  # of the world, the dead among them
        self.members: dict[int, int] = {}  # its ranks, by the names that they had at first
        self._whole: dict[int, tuple[dict[str, Tensor], str]] = {}
        self._aside: dict[int, tuple[dict[str, Tensor], str]] = {}

    def save_rank(self, rank: int, tensors: dict[str, Tensor], numbers: dict[str, Any]) -> None:
        """As files would have it: nobody changes it, and numbers are JSON."""
        copies = {name: tensor.detach().clone() for name, tensor in tensors.items()}
        self._aside[rank] = copies, json.dumps(numbers)

    def publish(self, segment: int, time: float, size: int, members: dict[int, int]) -> None:
        self.segment, self.time, self.size, self.members = segment, time, size, members
        self._whole, self._aside = self._aside, {}

    def load_rank(self, rank: int) -> State:
        tensors, numbers = self._whole[rank]
        return {name: tensor.clone() for name, tensor in tensors.items()}, json.loads(numbers)
