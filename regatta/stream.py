"""A worker's batches: until the segment ends, or chance ends it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
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

    @property
    def planned(self) -> int:
        """Minibatches of all workers in the whole run."""
        calendar = self._rank.calendar
        return calendar.turns(calendar.end) * self._rank.run.workers

    def next(self, number: int | None = None) -> Any | None:
        """This worker's next batch, or minibatch `number` of all workers'."""
        done = self._rank.replica.turns
        workers = self._rank.run.workers
        turn, worker = (done, self._worker) if number is None else divmod(number, workers)
        if self._is_over(turn):
            return None
        self._rank.report_progress()
        return self.batch(worker, turn)

    def together(self, asks: bool) -> Mapping[int, Callable[[], Any]]:
        """The next turn of all workers: by worker, how to fetch its batch."""
        turn = self._rank.replica.turns
        if asks and self._is_over(turn):
            return {}
        self._rank.report_progress()
        return {n: partial(self.batch, n, turn) for n in range(self._rank.run.workers)}

    def _is_over(self, turn: int) -> bool:
        """Whether the segment ends before this turn, or chance ends it now."""
        if turn >= self.limit or self.stopped:
            return True
        self.stopped = self._rank.stops_at(self._rank.replica.turns)
        return self.stopped

    def batch(self, worker: int, turn: int) -> Any:
        """Any worker's batch of any turn."""
        around = self._rank.around
        if around.timing_only:
            return True
        batch = around.data.batch(self._order.indices(worker, turn))
        return batch if self._device == "cpu" else _moved(batch, self._device)


def _moved(batch: Any, device: str) -> Any:
    """A batch (tensors in tuples, lists or dicts) on another device."""
    if isinstance(batch, dict):
        return {name: _moved(part, device) for name, part in batch.items()}
    if isinstance(batch, tuple | list):
        return type(batch)(_moved(part, device) for part in batch)
    return batch.to(device, non_blocking=True)
