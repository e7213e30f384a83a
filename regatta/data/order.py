"""Which samples a worker sees, in which order: a pure function, so it needs no state to resume."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import torch

from regatta.data.seeds import mixed_seed


@lru_cache(maxsize=8)
def _permutation(samples: int, seed: int, epoch: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(mixed_seed(seed, epoch))
    return torch.randperm(samples, generator=generator)


@dataclass(frozen=True)
class Order:
    """Every epoch is shuffled anew and dealt out batch by batch; all workers get equally many."""

    samples: int
    minibatch: int
    workers: int
    seed: int

    def __post_init__(self) -> None:
        if self.batches_per_epoch < 1:
            raise ValueError(
                f"{self.workers} workers x minibatch {self.minibatch} need more than the "
                f"{self.samples} training samples: use fewer workers or a smaller minibatch"
            )

    @property
    def batches_per_epoch(self) -> int:
        """Of one worker; what does not fill a batch for every worker waits for another shuffle."""
        return self.samples // (self.minibatch * self.workers)

    def indices(self, worker: int, turn: int) -> torch.Tensor:
        epoch, number = divmod(turn, self.batches_per_epoch)
        start = (number * self.workers + worker) * self.minibatch
        return _permutation(self.samples, self.seed, epoch)[start : start + self.minibatch]
