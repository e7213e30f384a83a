"""Ranks that stand still: a signal has stopped them. A slow one, or one that waits, does not."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

TOLD_AFTER = 1.0  # seconds
_LOOK_SECONDS = 0.2
_STOPPED = ("T", "t")


class Still(NamedTuple):
    """Of one rank: it has stood still for so long, or goes on again."""

    rank: int
    seconds: float
    goes_on: bool


class Stillness:
    """Looks at processes by their ids; where a system does not tell, none is ever found still."""

    def __init__(self, processes: Mapping[int, int]) -> None:
        """Ids of processes by rank."""
        self._processes = dict(processes)
        self._seconds: dict[int, float] = {}
        self._last = time.monotonic()

    def forget(self, rank: int) -> float:
        """How long it has stood still, if it did when it was last seen."""
        self._processes.pop(rank, None)
        return self._seconds.pop(rank, 0.0)

    def look(self) -> list[Still]:
        """Who stands still now, and who did until now; nobody, if this was asked a moment ago."""
        now = time.monotonic()
        passed = now - self._last
        if passed < _LOOK_SECONDS:
            return []
        self._last = now
        # Who has been stopped together with the launcher has not been seen to stand still.
        passed = min(passed, 5 * _LOOK_SECONDS)
        found: list[Still] = []
        for rank, process in self._processes.items():
            if _is_stopped(process):
                self._seconds[rank] = self._seconds.get(rank, 0.0) + passed
                found.append(Still(rank, self._seconds[rank], False))
            elif rank in self._seconds:
                found.append(Still(rank, self._seconds.pop(rank), True))
        return found


def _is_stopped(process: int) -> bool:
    try:
        text = Path(f"/proc/{process}/stat").read_text()
    except OSError:  # it has just died, or there is no /proc
        return False
    return text.rpartition(")")[2].split()[0] in _STOPPED
