"""Outer optimisers: how the common model moves once a block of training apart has been averaged.

All workers train a block from one start. Plain averaging then takes the mean. The others keep a
base, which is the answer, and a momentum, and make a step of their own out of the way from the
start to the mean. Statistics of buffers are never part of such a step: an extrapolated variance
could turn negative, so they are taken from the mean.
"""

from __future__ import annotations

from dataclasses import dataclass

from regatta.comm import Vector
from regatta.learn.replica import Replica


class Outer:
    """None, to begin with: the mean is the new model."""

    def begin(self, replica: Replica) -> None:
        """Where a role starts: the replica holds the answer."""

    def move(self, replica: Replica, mean: Vector, models: int) -> None:
        """The mean of so many models is the outcome of a block."""
        replica.load(mean)

    def end(self, replica: Replica) -> None:
        """Where a role ends: the replica is to hold the answer."""


@dataclass(frozen=True)
class WithMomentum(Outer):
    momentum: float
    lr: float

    def moved(
        self, base: Vector, momentum: Vector, mean: Vector, models: int
    ) -> tuple[Vector, Vector]:
        """The base and the momentum after a block."""
        raise NotImplementedError

    def start(self, base: Vector, momentum: Vector) -> Vector:
        """What the next block is trained from."""
        return base

    def begin(self, replica: Replica) -> None:
        replica.slots["base"] = replica.weights
        if "momentum" in replica.slots:
            self._set_out(replica)

    def move(self, replica: Replica, mean: Vector, models: int) -> None:
        slots = replica.slots
        base, momentum = self.moved(slots["base"], replica.slot("momentum"), mean, models)
        slots["base"], slots["momentum"] = replica.spliced(base, mean), momentum
        self._set_out(replica)

    def end(self, replica: Replica) -> None:
        replica.load(replica.slots.pop("base"))  # the weights keep it from here on

    def _set_out(self, replica: Replica) -> None:
        base = replica.slots["base"]
        start = self.start(base, replica.slots["momentum"])
        replica.load(base if start is base else replica.spliced(start, base))


@dataclass(frozen=True)
class BlockMomentum(WithMomentum):
    """BMUF as Chen & Huo (2016) have it: CBM, or NBM which looks ahead."""

    nesterov: bool = False

    def start(self, base: Vector, momentum: Vector) -> Vector:
        return base + self.momentum * momentum if self.nesterov else base

    def moved(
        self, base: Vector, momentum: Vector, mean: Vector, models: int
    ) -> tuple[Vector, Vector]:
        update = self.momentum * momentum + self.lr * (mean - self.start(base, momentum))
        return base + update, update


@dataclass(frozen=True)
class CntkBlockMomentum(WithMomentum):
    """BMUF as CNTK has it: a sum over models, and a look-ahead that becomes the base."""

    nesterov: bool = False

    def moved(
        self, base: Vector, momentum: Vector, mean: Vector, models: int
    ) -> tuple[Vector, Vector]:
        sum_of_ways_back = models * (base - mean)
        update = self.momentum * momentum + (1 - self.momentum) * self.lr * sum_of_ways_back
        times = 1 + self.momentum if self.nesterov else 1
        return base - times * update, update


@dataclass(frozen=True)
class DiLoCo(WithMomentum):
    """Stochastic gradient descent with Nesterov momentum on the way back to the base."""

    def moved(
        self, base: Vector, momentum: Vector, mean: Vector, models: int
    ) -> tuple[Vector, Vector]:
        gradient = base - mean
        momentum = self.momentum * momentum + gradient
        return base - self.lr * (gradient + self.momentum * momentum), momentum
