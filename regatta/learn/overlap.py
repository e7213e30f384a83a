"""Whether sums that overlap with backward pay, found out by trying.

Buckets let a network carry the first gradients while backward computes the rest. Between ranks that
share memory nothing is carried, and where all cores compute nobody is free to add up meanwhile:
then one sum after backward is faster. So the first turns take both ways by turns, and the faster
stays. Either way gives the same bits.
"""

from __future__ import annotations

from collections.abc import Callable
from statistics import median

import torch

from regatta.comm import Op, Seconds, Vector

BUCKET_BYTES = 25 * 2**20
FOUND_OUT = -1  # the setting
WHOLE, BUCKETS = 0, 1
_WARM_UP = 2  # turns
_TRIALS = 4  # turns of each way


class Choice:
    """All ranks choose alike: they go by the sum of their times."""

    def __init__(self, made: int | None = None) -> None:
        self.made = made
        self._turn = 0
        self._seconds: tuple[list[Seconds], list[Seconds]] = ([], [])

    @property
    def way(self) -> int:
        """Of the next turn; both are tried in the order ABBA."""
        if self.made is not None:
            return self.made
        if self._turn < _WARM_UP:
            return self._turn % 2
        return (WHOLE, BUCKETS, BUCKETS, WHOLE)[(self._turn - _WARM_UP) % 4]

    async def took(self, seconds: Seconds, add_up: Callable[[Vector], Op[Vector]]) -> None:
        """A turn has taken so long; the last of the trials decides."""
        if self._turn >= _WARM_UP:
            self._seconds[self.way].append(seconds)
        self._turn += 1
        if self._turn == _WARM_UP + 2 * _TRIALS:
            mine = torch.tensor([median(of_way) for of_way in self._seconds])
            total = await add_up(mine)
            self.made = BUCKETS if total[BUCKETS] < total[WHOLE] else WHOLE
