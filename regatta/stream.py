"""A worker's batches: until the segment ends, or chance ends it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from regatta.engine import Rank


class Stream:
    __slots__ = (
        "_audio_of", "_data", "_device", "_expect", "_order", "_rank", "_reports", "_timing_only",
        "_varies", "_worker", "audio", "extra", "limit", "samples", "seen", "stopped",
    )  # fmt: skip

    def __init__(self, rank: Rank, worker: int) -> None:
        self.samples = rank.order.minibatch_at(0)  # in the newest batch
        self.seen = 0  # in all batches of this worker
        self.extra = 0  # batches of others among them, who have died
        self.limit = 0
        self.stopped = False
        self._rank = rank
        self._worker = worker
        self._order = rank.order
        self._varies = bool(rank.order.early)
        self._data = rank.around.data
        self._timing_only = rank.around.timing_only
        self._reports = rank.reports
        self._device = rank.run.device
        # Speech is also counted by how long it lasts.
        self._audio_of = getattr(self._data, "audio_seconds", None)
        self.audio: float | None = None if self._audio_of is None else 0.0
        # Among virtual ranks there is nobody beside whom the next batch could be made.
        is_real = rank.around.world == "processes"
        self._expect = getattr(self._data, "expect", None) if is_real else None

    @property
    def place(self) -> int:
        """The turn of its own data that this worker has come to."""
        return int(self._rank.replica.turns) - self.extra

    @property
    def planned(self) -> int:
        """Minibatches of all workers in the whole run."""
        calendar = self._rank.calendar
        return calendar.turns(calendar.end) * self._rank.run.workers

    def next(self, number: int | None = None) -> Any | None:
        """This worker's next batch, or minibatch `number` of all workers'."""
        turn, worker = self._rank.replica.turns - self.extra, self._worker
        if number is not None:
            turn, worker = divmod(number, self._rank.run.workers)
        elif turn >= self.limit:
            worker, turn = self._rank.estate.next() or (worker, turn)
        if self._is_over(turn):
            return None
        if worker != self._worker and number is None:
            self._rank.estate.done()
            self.extra += 1
        if self._reports:
            self._rank.report_progress()
            self._rank.write_a_sentence(turn)
        self._count(turn)
        return True if self._timing_only else self.batch(worker, turn)

    def together(self, asks: bool) -> Mapping[int, Callable[[], Any]]:
        """The next turn of all workers: by worker, how to fetch its batch."""
        turn = self._rank.replica.turns
        if not asks:
            self._rank.heed()
        elif self._is_over(turn):
            return {}
        if self._reports:
            self._rank.report_progress()
            self._rank.write_a_sentence(turn)
        self._count(turn)
        return {n: partial(self.batch, n, turn) for n in range(self._rank.run.workers)}

    def _count(self, turn: int) -> None:
        """The samples of a batch that is about to be used."""
        if self._varies:
            self.samples = self._order.minibatch_at(turn)
        self.seen += self.samples

    def _is_over(self, turn: int) -> bool:
        """Whether the segment ends before this turn, or chance ends it now."""
        if turn >= self.limit or self.stopped:
            return True
        self.stopped = self._rank.stops_at(self._rank.replica.turns)
        return self.stopped

    def batch(self, worker: int, turn: int) -> Any:
        """Any worker's batch of any turn."""
        if self._timing_only:
            return True
        indices = self._order.indices(worker, turn)
        batch = self._data.batch(indices)
        if self._expect is not None:
            self._expect(self._order.indices(worker, turn + 1))
        if self._audio_of is not None:
            self.audio = (self.audio or 0.0) + self._audio_of(indices)
        return batch if self._device == "cpu" else _moved(batch, self._device)


def _moved(batch: Any, device: str) -> Any:
    """A batch (tensors in tuples, lists or dicts) on another device."""
    if isinstance(batch, dict):
        return {name: _moved(part, device) for name, part in batch.items()}
    if isinstance(batch, tuple | list):
        return type(batch)(_moved(part, device) for part in batch)
    return batch.to(device, non_blocking=True)
