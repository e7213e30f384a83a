"""How the devices of one host are joined: a tree of switches, and direct links beside it.

`nvidia-smi topo -m` tells for every pair of devices what the path between them crosses. That makes
a tree: devices under one switch are a group, groups under one host bridge a larger one, and so on
up to the whole host. Everything that leaves a group goes through the group's one way out. A host
that is described link by link is such a tree, too.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Final, NamedTuple

from regatta.comm import Seconds

LEVELS: Final = ("PIX", "PXB", "PHB", "NODE", "SYS")  # the farther, the later
DIRECT: Final = "NV"  # a link of the two devices' own

Group = tuple[int, str]  # the least device of a group, and the level at which it is left


class Way(NamedTuple):
    """What messages share: one direction of a link, or both of one that is not duplex."""

    name: tuple[object, ...]
    bandwidth: float  # bytes a second
    source: str = ""  # of that figure


class WayOut(NamedTuple):
    """Of a group, and its way in."""

    bandwidth: float
    duplex: bool = True
    source: str = ""


@dataclass(frozen=True)
class Path:
    """Between two devices, while nobody else uses any of it."""

    kind: str  # one of LEVELS, or NV
    bandwidth: float  # bytes a second, each way
    latency: Seconds
    source: str = ""  # where the two figures come from
    duplex: bool = True  # of a link of the two devices' own

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
    # Where links are described one by one:
    direct: Mapping[tuple[int, int], Path] = field(default_factory=dict)  # in place of the tree's
    ways_out: Mapping[Group, WayOut] = field(default_factory=dict)

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
        pair = (a, b) if a < b else (b, a)
        return self.direct.get(pair) or self.paths[pair]

    def with_measured(self, bandwidths: Mapping[tuple[int, int], float], source: str) -> Topology:
        """With bytes a second that were measured between pairs; the tree stays."""

        def measured(pair: tuple[int, int], path: Path) -> Path:
            if pair not in bandwidths:
                return path
            return replace(path, bandwidth=bandwidths[pair], source=source)

        return self._with(measured)

    def slowed(self, factor: float) -> Topology:
        """All bandwidths times a factor: what a program makes of links, fitted to a measurement."""
        ways = {
            group: way._replace(bandwidth=way.bandwidth * factor)
            for group, way in self.ways_out.items()
        }
        slower = self._with(lambda pair, path: replace(path, bandwidth=path.bandwidth * factor))
        return replace(slower, ways_out=ways)

    def _with(self, change: Callable[[tuple[int, int], Path], Path]) -> Topology:
        return replace(
            self,
            paths={pair: change(pair, path) for pair, path in self.paths.items()},
            direct={pair: change(pair, path) for pair, path in self.direct.items()},
        )

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

    def leaves(self, a: int, level: str) -> list[Group]:
        """The groups around a device that are left on a path of this kind, from the inside out.

        What is the same group on several levels has one way out.
        """
        groups: list[Group] = [(a, "device")]
        size = 1
        for within in LEVELS[: LEVELS.index(level)]:
            members = self._groups[within]
            group, now = (members[a], within), members.count(members[a])
            if now > size or group in self.ways_out:
                groups.append(group)
                size = now
        return groups

    @cached_property
    def _ways(self) -> dict[Group, WayOut]:
        """Every group's way out, which is its way in too: as described, or else as wide as the
        fastest path through it."""
        widest: dict[Group, WayOut] = {}
        for (a, b), path in self.paths.items():
            if path.kind != DIRECT:
                for group in (*self.leaves(a, path.kind), *self.leaves(b, path.kind)):
                    if group not in widest or widest[group].bandwidth < path.bandwidth:
                        widest[group] = WayOut(path.bandwidth, source=path.source)
        return widest | dict(self.ways_out)

    def way(self, group: Group, direction: str) -> Way:
        """Out of a group, or in; `Way`s that are equal are the same."""
        way = self._ways[group]
        return Way((*group, direction if way.duplex else ""), way.bandwidth, way.source)

    @cached_property
    def _routes(self) -> dict[tuple[int, int], tuple[tuple[Way, ...], tuple[Way, ...]]]:
        return {}  # as they are asked for

    def route(self, a: int, b: int) -> tuple[tuple[Way, ...], tuple[Way, ...]]:
        """What a message from a to b takes: on its way out, and then in."""
        if (a, b) not in self._routes:
            path = self.path(a, b)
            if path.kind == DIRECT:
                ends = (a, b) if path.duplex else (min(a, b), max(a, b))
                self._routes[a, b] = (Way(("direct", *ends), path.bandwidth, path.source),), ()
            else:
                out = [self.way(group, "out") for group in self.leaves(a, path.kind)]
                into = [self.way(group, "in") for group in reversed(self.leaves(b, path.kind))]
                if path.bandwidth < min(way.bandwidth for way in (*out, *into)):
                    out.append(Way(("path", a, b), path.bandwidth, path.source))
                self._routes[a, b] = tuple(out), tuple(into)
        return self._routes[a, b]

    def shared(self, hops: Sequence[tuple[int, int]]) -> list[float]:
        """Bytes a second of every hop while all of them carry data at once.

        Who goes through the same way out or in, in the same direction, shares it evenly.
        """
        routes = [(*out, *into) for out, into in (self.route(*hop) for hop in hops)]
        users = Counter(way for route in routes for way in route)
        return [min(way.bandwidth / users[way] for way in route) for route in routes]
