"""What a message takes from one place of a described cluster to another, and rings of such hops.

All of it is a tree: devices in groups, groups in hosts, hosts on switches, switches on others. A
message climbs to what holds both ends and comes down again, by one way a link. Links that two
devices have of their own are beside the tree.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

from regatta.cluster.described import Host, Link, copy_name
from regatta.cluster.device import steady
from regatta.cluster.faults import Cut, CutLink
from regatta.cluster.rings import Ring, best_ring
from regatta.cluster.sums import Circle, Sums
from regatta.cluster.topology import Topology, Way
from regatta.cluster.wiring import topology_of
from regatta.comm import Load, Seconds

if TYPE_CHECKING:
    from regatta.cluster import Cluster


class Place(NamedTuple):
    host: int
    device: int  # of that host; -1: the host itself, for a server


@dataclass(frozen=True)
class Route:
    out: tuple[Way, ...]
    into: tuple[Way, ...]
    latency: Seconds  # of its slowest link: a message pays it once

    @property
    def ways(self) -> tuple[Way, ...]:
        return (*self.out, *self.into)


class Paths:
    def __init__(self, cluster: Cluster) -> None:
        self._others = cluster  # what is not said of a device is as it says of all
        self._described = described = cluster.described
        self._local = Link("local_", cluster.local_bandwidth, cluster.local_latency, cluster.duplex)
        self._card = Link("", cluster.bandwidth, cluster.latency, cluster.duplex)
        self._sums = cluster.sum_latency, cluster.sum_bandwidth
        self.hosts = [host for _, host in described.every_host]
        self._topologies = [topology_of(host, described, self._local) for host in self.hosts]
        self._switches = _switches_of(cluster)
        self._rings: dict[tuple[Host, tuple[int, ...]], Ring] = {}

    def topology(self, host: int) -> Topology:
        return self._topologies[host]

    def minibatch(self, host: int, samples: int) -> Iterator[tuple[str, Seconds]]:
        """What it takes on each kind of device."""
        for kind in dict.fromkeys(self.hosts[host].devices):
            device = self._described.kind(kind).beside(self._others)
            yield kind, steady(device, 1.0)(Load(samples=samples))

    def card(self, host: int) -> Link:
        name = self.hosts[host].card
        return self._described.link(name) if name else self._card

    def route(self, a: Place, b: Place) -> Route:
        if a.host == b.host:
            return self._inside(a, b)
        leaving, between, entering = self.leaving(a), self.between(a.host, b.host), self.entering(b)
        return Route(
            leaving.out + between.out,
            between.into + entering.into,
            max(leaving.latency, between.latency, entering.latency),
        )

    def _inside(self, a: Place, b: Place) -> Route:
        """Two devices; or what shares a device or is on none, by its own link there and back."""
        topology = self._topologies[a.host]
        if a.device != b.device and min(a.device, b.device) >= 0:
            out, into = topology.route(a.device, b.device)
            latency = topology.path(a.device, b.device).latency
            return Route(_of(a.host, out), _of(a.host, into), latency)
        device = max(a.device, b.device)
        return Route(
            (self._end(a.host, device, "out"),), (self._end(a.host, device, "in"),),
            self._latency(a.host, device),
        )  # fmt: skip

    def _end(self, host: int, device: int, direction: str) -> Way:
        """A device's own way out or in; that of a host's memory, if there is no other device."""
        topology = self._topologies[host]
        if device >= 0 and (len(topology.devices) > 1 or topology.ways_out):
            return _of(host, [topology.way((device, "device"), direction)])[0]
        name = ("host", host, "memory", direction if self._local.duplex else "")
        return Way(name, self._local.bandwidth, self._local.source)

    def _latency(self, host: int, device: int) -> Seconds:
        described, topology = self.hosts[host], self._topologies[host]
        if described.link and device >= 0:
            return self._described.link(described.link).latency
        others = [n for n in range(len(topology.devices)) if n != device]
        if described.topology and device >= 0 and others:
            return min(topology.path(device, other).latency for other in others)
        return self._local.latency

    def leaving(self, place: Place) -> Route:
        """As far as the host's network card, where the host says how its devices are joined."""
        if not self._says_how(place):
            return Route((), (), 0.0)
        way = self._end(place.host, place.device, "out")
        return Route((way,), (), self._latency(place.host, place.device))

    def entering(self, place: Place) -> Route:
        """From there."""
        if not self._says_how(place):
            return Route((), (), 0.0)
        way = self._end(place.host, place.device, "in")
        return Route((), (way,), self._latency(place.host, place.device))

    def _says_how(self, place: Place) -> bool:
        host = self.hosts[place.host]
        return place.device >= 0 and bool(host.link or host.topology)

    def between(self, a: int, b: int) -> Route:
        """From card to card."""
        up, down = self._switches[a], self._switches[b]
        common = sum(one == other for one, other in zip(up, down, strict=False))
        climbed = [("card", a, self.card(a)), *reversed(up[common:])]
        descended = [*down[common:], ("card", b, self.card(b))]
        return Route(
            tuple(_way(*step, "out") for step in climbed),
            tuple(_way(*step, "in") for step in descended),
            max(link.latency for _, _, link in (*climbed, *descended)),
        )

    # -- rings --------------------------------------------------------------------------------

    def sums(self, places: Sequence[Place]) -> Sums:
        """Of a group that is there."""
        on = _by_host(places)
        inside = dict.fromkeys(self._circle(host, devices) for host, devices in on.items())
        return Sums(self.ring_of_hosts(on).circle, tuple(inside), *self._sums)

    def ways_of_sums(self, places: Sequence[Place]) -> Iterator[Way]:
        """All that such a group's sums take."""
        on = _by_host(places)
        order = self.order_of(on)
        if len(order) > 1:
            for place in places:
                yield from self.leaving(place).ways
            for a, b in pairwise([*order, order[0]]):
                yield from self.between(a, b).ways
        for host, devices in on.items():
            if own := {device for device in devices if device >= 0}:
                circle = self.ring(host, own).order
                for one, other in pairwise([*circle, circle[0]] if len(circle) > 1 else []):
                    yield from self._inside(Place(host, one), Place(host, other)).ways

    def is_cut(self, way: Way, cut: Cut | CutLink) -> bool:
        what, number, *_ = way.name
        if isinstance(cut, Cut):
            return what == "card" and number == cut.host
        if way.source == f"link.{cut.link}":
            return True
        return any(
            what == f"switch.{switch.name}" and copy_name(switch, int(str(number))) == cut.link
            for switch in self._described.switches
        )

    def ring(self, host: int, devices: Iterable[int]) -> Ring:
        """The best there is; hosts that are alike have one search."""
        key = self.hosts[host], tuple(sorted(set(devices)))
        if key not in self._rings:
            self._rings[key] = best_ring(self._topologies[host], key[1])
        return self._rings[key]

    def _circle(self, host: int, devices: Sequence[int]) -> Circle:
        own = {device for device in devices if device >= 0}
        if len(own) > 1:
            ring = self.ring(host, own)
            return Circle(len(devices), ring.latency, ring.bandwidth)
        device = max(devices)
        bandwidth = self._end(host, device, "out").bandwidth
        return Circle(len(devices), self._latency(host, device), bandwidth)

    def order_of(self, hosts: Iterable[int]) -> list[int]:
        """Hosts of one switch stand together, so that a ring leaves each switch once."""
        return sorted(hosts, key=lambda host: ([step[:2] for step in self._switches[host]], host))

    def ring_of_hosts(self, on: Mapping[int, Sequence[int]]) -> HostRing:
        """Between the devices that a group has on each host."""
        order = self.order_of(on)
        if len(order) == 1:
            return HostRing(tuple(order), 0.0, _way("card", order[0], self.card(order[0]), "out"))
        hops = [self.between(a, b) for a, b in pairwise([*order, order[0]])]
        users = Counter(way for hop in hops for way in hop.ways)
        # Stripes of all devices of a host come to its card side by side.
        beside = [(way, 1 / count) for way, count in users.items()]
        for host, devices in on.items():
            own = [self.leaving(Place(host, device)).out for device in set(devices)]
            if all(own):
                slowest = min((way for (way,) in own), key=lambda way: way.bandwidth)
                beside.append((slowest, sum(w.bandwidth for (w,) in own) / slowest.bandwidth))
        way, share = min(beside, key=lambda each: each[0].bandwidth * each[1])
        return HostRing(tuple(order), max(hop.latency for hop in hops), way, share)


@dataclass(frozen=True)
class HostRing:
    """A ring of hosts, by its slowest hop."""

    order: tuple[int, ...]
    latency: Seconds
    way: Way  # the one that is fullest
    share: float = 1.0  # of its bandwidth, for a hop

    @property
    def circle(self) -> Circle:
        return Circle(len(self.order), self.latency, self.way.bandwidth * self.share)


_Step = tuple[str, int, Link]  # what it leaves, and by which link


def _switches_of(cluster: Cluster) -> list[list[_Step]]:
    """Of every host the switches above it, the highest first; copies are filled evenly."""
    described = cluster.described
    hosts = described.every_host
    found: list[list[_Step]] = []
    places = Counter[str]()
    on_switch = Counter(host.switch for _, host in hosts)
    for _, host in hosts:
        steps: list[_Step] = []
        name, number, among = host.switch, places[host.switch], on_switch[host.switch]
        places[host.switch] += 1
        while name:
            switch = described.switch(name)
            number = number * switch.count // among
            steps.append((f"switch.{name}", number, described.link(switch.link)))
            name, among = switch.above, switch.count
        found.append(steps[::-1])
    return found


def _way(what: str, number: int, link: Link, direction: str) -> Way:
    return Way((what, number, direction if link.duplex else ""), link.bandwidth, link.source)


def _by_host(places: Iterable[Place]) -> dict[int, list[int]]:
    """Their devices."""
    on: dict[int, list[int]] = {}
    for place in places:
        on.setdefault(place.host, []).append(place.device)
    return on


def _of(host: int, ways: Iterable[Way]) -> tuple[Way, ...]:
    """Ways inside a host, told from those of others."""
    return tuple(way._replace(name=("host", host, *way.name)) for way in ways)
