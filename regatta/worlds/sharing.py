"""Messages that share links evenly: what a way carries is divided among all who use it.

Shares are max-min fair. A message is held up by the fullest way it takes; what it cannot use
elsewhere, others may. Shares change whenever a message begins or ends. Messages from one rank to
another go one after the other, as through a socket: none overtakes another.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from typing import Any

from regatta.comm import Seconds

Way = Hashable  # what messages share, in one direction or in both
Line = Hashable  # from whom to whom
_DONE = 1e-9  # of a message is a rounding error


def fair_shares(messages: Sequence[Iterable[Way]], bandwidths: Mapping[Way, float]) -> list[float]:
    """Bytes a second of every message, by the ways that each takes."""
    shares = [0.0] * len(messages)
    left = dict(bandwidths)
    waiting: dict[Way, set[int]] = {}
    for number, ways in enumerate(messages):
        for way in ways:
            waiting.setdefault(way, set()).add(number)
    while waiting:
        fullest = min(waiting, key=lambda way: left[way] / len(waiting[way]))
        share = left[fullest] / len(waiting[fullest])
        for number in list(waiting[fullest]):
            shares[number] = share
            for way in messages[number]:
                left[way] = max(left[way] - share, 0.0)
                waiting[way].discard(number)
                if not waiting[way]:
                    del waiting[way]
    return shares


class _Flow:
    __slots__ = ("began", "done", "left", "line", "nbytes", "share", "ways")

    def __init__(
        self, line: Line, ways: Mapping[Way, float], nbytes: float, done: Callable[[Seconds], None]
    ) -> None:
        self.line = line
        self.ways, self.nbytes, self.left = ways, nbytes, nbytes
        self.done = done  # is told when it began
        self.began: Seconds = 0.0
        self.share = 0.0

    def is_done(self, now: Seconds) -> bool:
        """But for a rounding error: of its bytes, or of a clock that cannot tell so little time."""
        return self.left <= _DONE * max(self.nbytes, 1.0) or now + self.left / self.share == now


class Sharing:
    """All messages under way; `at` lets something happen, `now` tells the time."""

    def __init__(
        self,
        at: Callable[[Seconds, Callable[[Any], None], Any], None],
        now: Callable[[], Seconds],
    ) -> None:
        self._at, self._now = at, now
        self._flows: list[_Flow] = []
        self._lines: dict[Line, deque[_Flow]] = {}  # who passes, and who comes after it
        self._bandwidths: dict[Way, float] = {}
        self._since: Seconds = 0.0
        self._changes = 0

    def begin(
        self, line: Line, ways: Mapping[Way, float], nbytes: float, done: Callable[[Seconds], None]
    ) -> None:
        """A message that takes these ways of so much bandwidth; `done` when it has passed."""
        flow = _Flow(line, ways, nbytes, done)
        waiting = self._lines.setdefault(line, deque())
        waiting.append(flow)
        if waiting[0] is flow:
            self._go_on()
            self._start(flow)
            self._divide()

    def _start(self, flow: _Flow) -> None:
        flow.began = self._now()
        self._bandwidths.update(flow.ways)
        self._flows.append(flow)

    def _go_on(self) -> None:
        """Up to now, at the shares that were."""
        now = self._now()
        for flow in self._flows:
            flow.left -= flow.share * (now - self._since)
        self._since = now

    def _divide(self) -> None:
        shares = fair_shares([flow.ways for flow in self._flows], self._bandwidths)
        for flow, share in zip(self._flows, shares, strict=True):
            flow.share = share
        self._changes += 1
        if self._flows:
            next_end = min(max(flow.left, 0.0) / flow.share for flow in self._flows)
            self._at(self._now() + next_end, self._end, self._changes)

    def _end(self, change: int) -> None:
        if change != self._changes:  # shares are others since
            return
        self._go_on()
        ended = [flow for flow in self._flows if flow.is_done(self._since)]
        self._flows = [flow for flow in self._flows if flow not in ended]
        for flow in ended:
            waiting = self._lines[flow.line]
            waiting.popleft()
            if waiting:
                self._start(waiting[0])
            else:
                del self._lines[flow.line]
        self._divide()
        for flow in ended:
            flow.done(flow.began)
