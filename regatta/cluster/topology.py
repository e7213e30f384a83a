"""How the devices of one host are joined: a tree of switches, and direct links beside it.

`nvidia-smi topo -m` tells for every pair of devices what the path between them crosses. That makes
a tree: devices under one switch are a group, groups under one host bridge a larger one, and so on
up to the whole host. Everything that leaves a group goes through the group's one way out.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Final

from regatta.comm import Seconds

LEVELS: Final = ("PIX", "PXB", "PHB", "NODE", "SYS")  # the farther, the later
DIRECT: Final = "NV"  # a link of the two devices' own

Group = tuple[int, str]  # the least device of a group, and the level at which it is left


@dataclass(frozen=True)
class Path:
    """Between two devices, while nobody else uses any of it."""

    kind: str  # one of LEVELS, or NV
    bandwidth: float  # bytes a second, each way
    latency: Seconds
    source: str = ""  # where the two figures come from

    def __post_init__(self) -> None:
        if self.kind != DIRECT and self.kind not in LEVELS:
            raise ValueError(f"a path of the kind {self.kind}: one of {', '.join(LEVELS)} or NV")
        if not 0 < self.bandwidth < float("inf"):
            raise ValueError(f"bandwidth must be more than 0, not {self.bandwidth:g}")
        if not 0 <= self.latency < float("inf"):
            raise ValueError(f"latency must not be negative, not {self.latency:g}")


@dataclass(frozen=True)
class Topology:
    """Devices by name, and the path of every pair of them."""

    devices: tuple[str, ...]
    paths: Mapping[tuple[int, int], Path]  # (a, b) with a < b
    name: str = ""
    warnings: tuple[str, ...] = field(default=(), compare=False)

    def __post_init__(self) -> None:
        size = len(self.devices)
        if len(set(self.devices)) < size:
            twice = [name for name, count in Counter(self.devices).items() if count > 1]
            raise ValueError(f"device {twice[0]} is there twice")
        for pair in self.paths:
            if not 0 <= pair[0] < pair[1] < size:
                raise ValueError(f"a path between devices {pair}, of {size}")
        for a in range(size):
            for b in range(a + 1, size):
                if (a, b) not in self.paths:
                    both = f"{self.devices[a]} and {self.devices[b]}"
                    raise ValueError(f"nothing is said of the path between {both}")

    def path(self, a: int, b: int) -> Path:
        return self.paths[(a, b) if a < b else (b, a)]

    def only(self, devices: Sequence[int]) -> Topology:
        """A part of it, in this order."""
        paths = {
            (a, b): self.path(devices[a], devices[b]) for b in range(len(devices)) for a in range(b)
        }
        return replace(self, devices=tuple(self.devices[d] for d in devices), paths=paths)

    def with_measured(self, bandwidths: Mapping[tuple[int, int], float], source: str) -> Topology:
        """With bytes a second that were measured between pairs; the tree stays."""
        paths = {
            pair: replace(path, bandwidth=bandwidths[pair], source=source)
            if pair in bandwidths
            else path
            for pair, path in self.paths.items()
        }
        return replace(self, paths=paths)

    def slowed(self, factor: float) -> Topology:
        """All bandwidths times a factor: what a program makes of links, fitted to a measurement."""
        paths = {
            pair: replace(path, bandwidth=path.bandwidth * factor)
            for pair, path in self.paths.items()
        }
        return replace(self, paths=paths)

    # -- the tree ---------------------------------------------------------------------------------

    @cached_property
    def _groups(self) -> dict[str, list[int]]:
        """By level: the group of every device, named by its least device.

        A group of a level is what can be reached without going farther than that level.
        """
        found = {}
        for number, level in enumerate(LEVELS):
            near = set(LEVELS[: number + 1])
            group = list(range(len(self.devices)))
            for (a, b), path in sorted(self.paths.items()):
                if path.kind in near and group[a] != group[b]:
                    keep, lose = sorted((group[a], group[b]))
                    group = [keep if each == lose else each for each in group]
            found[level] = group
        return found

    def _leaves(self, a: int, b: int) -> list[Group]:
        """The groups that a message from a to b leaves, from the inside out."""
        kind = self.path(a, b).kind
        if kind == DIRECT:
            return []
        within = LEVELS[: LEVELS.index(kind)]
        groups: list[Group] = [(a, "device")]
        groups += [(self._groups[level][a], level) for level in within]
        return groups

    @cached_property
    def _ways(self) -> dict[Group, float]:
        """Bytes a second of every group's way out, which is its way in too: as much as the fastest
        path through it has."""
        ways: dict[Group, float] = {}
        for (a, b), path in self.paths.items():
            for group in (*self._leaves(a, b), *self._leaves(b, a)):
                ways[group] = max(ways.get(group, 0.0), path.bandwidth)
        return ways

    def shared(self, hops: Sequence[tuple[int, int]]) -> list[float]:
        """Bytes a second of every hop while all of them carry data at once.

        Who goes through the same way out or in, in the same direction, shares it evenly.
        """
        out = Counter(group for a, b in hops for group in self._leaves(a, b))
        into = Counter(group for a, b in hops for group in self._leaves(b, a))
        ways = self._ways
        return [
            min(
                [self.path(a, b).bandwidth]
                + [ways[group] / out[group] for group in self._leaves(a, b)]
                + [ways[group] / into[group] for group in self._leaves(b, a)]
            )
            for a, b in hops
        ]
