"""What makes equal work take unequal times."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from regatta.cluster.checks import refuse_nonsense
from regatta.cluster.device import Device, steady
from regatta.comm import Load, Seconds

_MOST_JITTER = 100.0


@dataclass(frozen=True)
class Jitter:
    """Of computing times: from one work to the next, from worker to worker, and rare pauses."""

    crowded: float = 1.0  # all of them times this, where several workers share a host
    jitter: float = 0.0  # coefficient of variation of computing times
    jitter_shape: str = "lognormal"  # or normal
    uneven: float = 0.0  # coefficient of variation of the workers' own speeds, which they keep
    paces: tuple[float, ...] = ()  # factors of the first workers' times that are always so
    pauses: float = 0.0  # chance that some work is interrupted ...
    pause_seconds: Seconds = 0.1  # ... for so long, in the mean
    stragglers: int = 0  # the last so many workers are slow ...
    straggle: float = 5.0  # ... by this factor
    jitter_seed: int = 0

    def check_jitter(self) -> None:
        refuse_nonsense(
            self, "cluster", ["straggle", "crowded"],
            ["jitter", "stragglers", "uneven", "pauses", "pause_seconds"],
        )  # fmt: skip
        if not max(self.jitter, self.uneven) <= _MOST_JITTER:
            raise ValueError(
                f"cluster.jitter and cluster.uneven are shares of a mean: {_MOST_JITTER:g} at most"
            )
        if self.pauses > 1:
            raise ValueError(f"cluster.pauses is a chance, 1 at most, not {self.pauses:g}")
        if math.isinf(self.pause_seconds):
            raise ValueError("cluster.pause_seconds must be finite")
        if self.jitter_shape not in ("lognormal", "normal"):
            raise ValueError(f"cluster.jitter_shape: lognormal or normal, not {self.jitter_shape}")
        if not all(0 < pace < math.inf for pace in self.paces):
            raise ValueError("cluster.paces must all be more than 0")

    def times(
        self, device: Device, rank: int, owner: int, workers: int, is_crowded: bool
    ) -> Callable[[Load], Seconds]:
        """How long a load takes on a device for this rank; `owner` is the device's own worker.

        What varies from work to work has a generator of its own a rank.
        """
        slow = self.straggle if owner in range(workers - self.stragglers, workers) else 1.0
        if is_crowded:
            slow *= self.crowded
        slow *= self._own_pace(owner)
        if not self.jitter and not self.pauses:
            return steady(device, slow)
        generator = random.Random(self.jitter_seed * 1_000_003 + rank)
        draw, alone = self._drawing(generator), steady(device, 1.0)
        if not self.pauses:
            return lambda load: alone(load) * draw() * slow
        chance, mean = self.pauses, self.pause_seconds

        def seconds(load: Load) -> Seconds:
            taken = alone(load) * draw() * slow
            if load.samples and generator.random() < chance:
                taken += generator.expovariate(1 / mean) if mean else 0.0
            return taken

        return seconds

    def _own_pace(self, rank: int) -> float:
        """A worker's own factor, the same for all its work; drawn apart from its jitter."""
        pace = self.paces[rank] if rank < len(self.paces) else 1.0
        if not self.uneven:
            return pace
        generator = random.Random(f"{self.jitter_seed}/{rank}")
        return pace * generator.lognormvariate(*_around_one(self.uneven))

    def _drawing(self, generator: random.Random) -> Callable[[], float]:
        """Factors around 1, as different from one another as `jitter` says."""
        if not self.jitter:
            return lambda: 1.0
        if self.jitter_shape == "normal":
            return partial(_positive, generator.gauss, 1.0, self.jitter)
        return partial(generator.lognormvariate, *_around_one(self.jitter))


def _around_one(variation: float) -> tuple[float, float]:
    """What a lognormal distribution with mean 1 and this coefficient of variation is made by."""
    spread = math.sqrt(math.log1p(variation**2))
    return -spread * spread / 2, spread


def _positive(draw: Callable[[float, float], float], mean: float, spread: float) -> float:
    """A draw above 0; a normal one with a small spread always is."""
    while (value := draw(mean, spread)) <= 0:
        pass
    return value
