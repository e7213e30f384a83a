"""What a rank computes on, and how long work takes there."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache

from regatta.cluster.checks import refuse_nonsense
from regatta.cluster.curve import checked_curve, on_curve
from regatta.comm import Load, Seconds


@dataclass(frozen=True)
class Device:
    """A processor with memory of its own."""

    sample_seconds: Seconds = 1e-4  # forward and backward of one sample
    batch_seconds: Seconds = 0.0  # the fixed part of every minibatch
    curve: tuple[tuple[float, Seconds], ...] = ()  # or [samples, seconds] as measured, in pairs
    merge_bandwidth: float = 10e9  # bytes a second of a vector merged into another
    step_bandwidth: float = 0.0  # of weights that an optimiser steps; 0: it costs nothing
    gather_bandwidth: float = 0.0  # of gradients brought into one vector, to be sent or summed
    memory: float = 0.0  # bytes; 0: not known
    watts: float = 0.0  # while it computes; 0: not known
    idle_watts: float = 0.0  # while it waits

    def check(self, where: str) -> None:
        """Refuse what cannot be; of a kind of device, or of all that a cluster has."""
        refuse_nonsense(
            self, where, ["merge_bandwidth"],
            ["sample_seconds", "batch_seconds", "step_bandwidth", "gather_bandwidth",
             "memory", "watts", "idle_watts"],
        )  # fmt: skip
        object.__setattr__(self, "curve", checked_curve(self.curve, where))


@lru_cache
def steady(device: Device, slow: float) -> Callable[[Load], Seconds]:
    """How long a load takes without jitter; ranks that are equally fast share it."""
    merge_bandwidth, sample_seconds = device.merge_bandwidth, device.sample_seconds
    batch_seconds, curve = device.batch_seconds, device.curve
    step_bandwidth = device.step_bandwidth or math.inf
    gather_bandwidth = device.gather_bandwidth or math.inf

    def seconds(load: Load) -> Seconds:
        constant = load.nbytes / merge_bandwidth + load.stepped / step_bandwidth
        if load.gathered:
            constant += load.gathered / gather_bandwidth
        if load.samples:
            if curve:
                constant += on_curve(curve, load.samples)
            else:
                constant += batch_seconds + load.samples * sample_seconds
        return constant * slow

    return seconds
