"""Which samples a worker sees, in which order: a pure function, so it needs no state to resume."""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import accumulate
from typing import Any, Protocol

import torch

from regatta.data.seeds import mixed_seed


class Deal(Protocol):
    """How data are dealt that want a say in who stands beside whom."""

    def __call__(self, minibatch: int, workers: int, seed: int, epoch: int) -> Any:
        """Indices, by worker and number of the batch: as many batches as `Order` counts."""
        ...


@lru_cache(maxsize=8)
def _permutation(samples: int, seed: int, epoch: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(mixed_seed(seed, epoch))
    return torch.randperm(samples, generator=generator)


@dataclass(frozen=True)
class Order:
    """Every epoch is shuffled anew and dealt out batch by batch; all workers get equally many.

    The first epochs may have minibatches of their own: `early` has one size an epoch. A turn is a
    minibatch of one worker; turns are counted from 0 through all epochs.
    """

    samples: int
    minibatch: int
    workers: int
    seed: int
    early: tuple[int, ...] = ()
    deal: Deal | None = None

    def __post_init__(self) -> None:
        for minibatch in {*self.early, self.minibatch}:
            if self._batches(minibatch) < 1:
                raise ValueError(
                    f"{self.workers} workers x minibatch {minibatch} need more than the "
                    f"{self.samples} training samples: use fewer workers or a smaller minibatch"
                )

    @cached_property
    def batches_per_epoch(self) -> int:
        """Of one worker; what does not fill a batch for every worker waits for another shuffle."""
        return self._batches(self.minibatch)

    def minibatch_at(self, turn: int) -> int:
        return self._minibatch_in(self._place(turn)[0])

    def indices(self, worker: int, turn: int) -> torch.Tensor:
        epoch, number = self._place(turn)
        minibatch = self._minibatch_in(epoch)
        if self.deal is not None:
            dealt = self.deal(minibatch, self.workers, self.seed, epoch)
            indices: torch.Tensor = dealt[worker][number]
            return indices
        start = (number * self.workers + worker) * minibatch
        return _permutation(self.samples, self.seed, epoch)[start : start + minibatch]

    def turns(self, epochs: float) -> int:
        """Of one worker in so many epochs."""
        whole = min(int(epochs), len(self.early))
        if whole == len(self.early):
            return self._begins[-1] + round((epochs - whole) * self.batches_per_epoch)
        return self._begins[whole] + round((epochs - whole) * self._batches(self.early[whole]))

    def epochs(self, turns: float) -> float:
        """That so many turns of one worker are."""
        if turns >= self._begins[-1]:
            return len(self.early) + (turns - self._begins[-1]) / self.batches_per_epoch
        epoch, _ = self._place(int(turns))
        return epoch + (turns - self._begins[epoch]) / self._batches(self.early[epoch])

    def samples_in(self, gradients: int) -> int:
        """That all workers have seen after so many minibatches of all of them."""
        seen, left = 0, gradients
        for minibatch in self.early:
            here = min(left, self._batches(minibatch) * self.workers)
            seen, left = seen + here * minibatch, left - here
        return seen + left * self.minibatch

    def epochs_of(self, samples: int) -> float:
        """In which all workers together see so many samples."""
        epoch, left = 0, samples
        while left > (whole := self._samples_of(epoch)) and epoch < len(self.early):
            epoch, left = epoch + 1, left - whole
        return epoch + left / whole

    @cached_property
    def _begins(self) -> tuple[int, ...]:
        """The first turns of the early epochs, and of the epoch after them."""
        return tuple(accumulate(map(self._batches, self.early), initial=0))

    def _place(self, turn: int) -> tuple[int, int]:
        """The epoch of a turn, and its number there."""
        if turn >= self._begins[-1]:
            further, number = divmod(turn - self._begins[-1], self.batches_per_epoch)
            return len(self.early) + further, number
        epoch = bisect_right(self._begins, turn) - 1
        return epoch, turn - self._begins[epoch]

    def _minibatch_in(self, epoch: int) -> int:
        return self.early[epoch] if epoch < len(self.early) else self.minibatch

    def _samples_of(self, epoch: int) -> int:
        minibatch = self._minibatch_in(epoch)
        return self._batches(minibatch) * minibatch * self.workers

    def _batches(self, minibatch: int) -> int:
        return self.samples // (minibatch * self.workers)
