"""A worker's batches: until the segment ends, or chance ends it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from regatta.engine import Rank


class Stream:
    def __init__(self, rank: Rank, worker: int) -> None:
        self.samples = rank.run.minibatch
        self.limit = 0
        self.stopped = False
        self._rank = rank
        self._worker = worker
        self._order = rank.order
        self._device = rank.run.device

    def next(self) -> Any | None:
        turn = self._rank.replica.turns
        if turn >= self.limit or self.stopped:
            return None
        if self._rank.stops_at(turn):
            self.stopped = True
            return None
        self._rank.report_progress()
        around = self._rank.around
        if around.timing_only:
            return True
        batch = around.data.batch(self._order.indices(self._worker, turn))
        return batch if self._device == "cpu" else _moved(batch, self._device)


def _moved(batch: Any, device: str) -> Any:
    """A batch (tensors in tuples, lists or dicts) on another device."""
    if isinstance(batch, dict):
        return {name: _moved(part, device) for name, part in batch.items()}
    if isinstance(batch, tuple | list):
        return type(batch)(_moved(part, device) for part in batch)
    return batch.to(device, non_blocking=True)
