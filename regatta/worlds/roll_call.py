"""How those who go on after a death agree on who is left.

A rank may die after some of the others have heard its part of a sum, and before the rest have. So
nobody finishes a sum of the world alone: each tells the launcher whom it has heard, and the
launcher, who outlives all ranks, answers all with those whom everybody has heard. That takes one
round trip a sum; worlds that end with the first death do without.
"""

from __future__ import annotations

import os
import signal
import threading
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator
from multiprocessing.connection import Connection
from typing import Any

from regatta.comm import Loss

# What is said on the line: by a rank, that it is ready to survive others, and whom it has heard;
# by the launcher, who is lost, and who takes part in a sum.
READY, HEARD, LOST, DECIDED = "ready", "heard", "lost", "decided"


class Line:
    """A rank's line to its launcher, both ways."""

    def __init__(self, reports: Connection, news: Connection) -> None:
        self._reports, self._news = reports, news
        self._verdicts: dict[int, frozenset[int]] = {}
        self.losses: list[Loss] = []  # that the launcher has told of
        self.ring: Callable[[], None] = lambda: None  # when something has come

    def listen(self) -> None:
        """From a thread of its own; nobody is left behind when the launcher's end closes."""
        threading.Thread(target=self._listen, daemon=True).start()

    def report(self, kind: str, what: Any) -> None:
        self._reports.send((kind, what))

    def verdict(self, number: int) -> frozenset[int] | None:
        """Who takes part in this sum, if the launcher has said so."""
        return self._verdicts.pop(number, None)

    def _listen(self) -> None:
        try:
            while True:
                kind, what = self._news.recv()
                if kind == LOST:
                    self.losses.append(what)
                else:
                    number, members = what
                    self._verdicts[number] = members
                self.ring()
        except EOFError:
            os.kill(os.getpid(), signal.SIGKILL)


class RollCall:
    """The launcher's side: who has heard whom, sum by sum."""

    def __init__(self, size: int) -> None:
        self._awaited = set(range(size))
        self._heard: defaultdict[int, dict[int, frozenset[int]]] = defaultdict(dict)

    def hear(self, rank: int, number: int, heard: Collection[int]) -> None:
        self._heard[number][rank] = frozenset(heard)

    def leave(self, rank: int) -> None:
        """It is dead, or done: nobody waits for it."""
        self._awaited.discard(rank)

    def decided(self) -> Iterator[tuple[int, frozenset[int]]]:
        """Sums for which all have answered, and who takes part in them."""
        for number in sorted(self._heard):
            answers = self._heard[number]
            if self._awaited <= answers.keys():
                del self._heard[number]
                yield number, frozenset.intersection(*answers.values())
