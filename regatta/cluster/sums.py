"""What collective operations of a group take: rings and trees, between hosts and inside them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from regatta.comm import Seconds


@dataclass(frozen=True)
class Circle:
    """So many that pass stripes round a ring, or vectors down a tree, by their slowest hop."""

    size: int
    latency: Seconds
    bandwidth: float

    def ring(self, nbytes: float) -> Seconds:
        """Reduce-scatter and all-gather: 2(P-1) messages of a P-th each."""
        hop = self.latency + nbytes / self.bandwidth / max(self.size, 1)
        return 2 * (self.size - 1) * hop

    def tree(self, nbytes: float) -> Seconds:
        """Half of them have it one message before all have."""
        levels = math.ceil(math.log2(max(self.size, 1)))
        return levels * (self.latency + nbytes / self.bandwidth)


@dataclass(frozen=True)
class Sums:
    """A ring inside every host, and between a host's stripes and the same stripes of the others
    one that has to share the hosts' network cards."""

    between: Circle
    inside: Sequence[Circle]  # a host each, where they differ
    sum_latency: Seconds = 0.0  # instead of rings inside: through memory that ranks share ...
    sum_bandwidth: float = 0.0  # ... bytes a second; 0: they share none

    def all_reduce(self, nbytes: int) -> Seconds:
        between = self.between.ring(nbytes)
        if self.sum_bandwidth and any(circle.size > 1 for circle in self.inside):
            return between + self.sum_latency + nbytes / self.sum_bandwidth
        return between + max([circle.ring(nbytes) for circle in self.inside])

    def broadcast(self, nbytes: int) -> Seconds:
        """A binomial tree between hosts, then one inside each."""
        return self.between.tree(nbytes) + max(circle.tree(nbytes) for circle in self.inside)
