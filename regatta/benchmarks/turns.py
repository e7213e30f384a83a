"""Blocks of a strategy's turns, timed, with a peer's blocks between them, in one process."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

from regatta.benchmarks import abba
from regatta.benchmarks.peers import Peer


def _need_not_meet() -> None: ...


class Turns:
    """Our loop asks before every turn whether it goes on: so it is the strategy's own."""

    def __init__(
        self,
        peer: Peer,
        block: int,
        pairs: int,
        warm_up: int,
        meet: Callable[[], object] = _need_not_meet,
    ) -> None:
        self.seconds: dict[str, list[float]] = {"A": [], "B": []}
        self._peer, self._block, self._meet = peer, block, meet
        self._course = self._warm_up_and_measure(warm_up, pairs)

    @property
    def ratios(self) -> list[float]:
        """Our speed over the peer's, in each pair of blocks."""
        return [b / a for a, b in zip(self.seconds["A"], self.seconds["B"], strict=True)]

    def goes_on(self) -> bool:
        return next(self._course, False)

    def _warm_up_and_measure(self, warm_up: int, pairs: int) -> Iterator[bool]:
        for _ in range(warm_up):
            yield True
        self._peer.run(self._block)
        for side in abba(pairs):
            self._meet()
            began = time.perf_counter()
            if side == "A":
                for _ in range(self._block):
                    yield True
            else:
                self._peer.run(self._block)
            self._meet()
            self.seconds[side].append(time.perf_counter() - began)
