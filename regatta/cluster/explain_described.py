"""The same for hosts that are described: by kinds of devices, and by the links of every path."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial

from regatta.cluster import Cluster
from regatta.cluster.explain import Figure, Input, Job, of_cluster, of_computing
from regatta.cluster.paths import Paths, Place, Route
from regatta.cluster.site import Site, place_name
from regatta.cluster.topology import Way
from regatta.comm import Seconds


def described_figures(cluster: Cluster, job: Job) -> Iterator[Figure]:
    site = cluster.site(job.workers)
    yield from _of_kinds(cluster, site, job)
    links = _Links(cluster, site, job.nbytes)
    yield from links.messages()
    if job.workers > 1:
        yield from links.sums()


def _of_kinds(cluster: Cluster, site: Site, job: Job) -> Iterator[Figure]:
    """By the first worker on a device of each kind."""
    steady = replace(cluster, jitter=0.0, pauses=0.0)
    told: set[str] = set()
    for worker, place in enumerate(site.places):
        kind = cluster.described.every_host[place.host][1].devices[place.device]
        if kind not in told:
            told.add(kind)
            on = f" on {kind} ({place_name(cluster, place)})"
            named = partial(_named, kind, dict(cluster.described.kind(kind).values))
            charge = site.computing(steady, worker)
            yield from of_computing(cluster, site.devices[worker], charge, job, on, named, worker)


def _named(kind: str, said: dict[str, object], name: str) -> str:
    return f"device.{kind}.{name}" if name in said else name


class _Links:
    """What messages and sums take of them."""

    def __init__(self, cluster: Cluster, site: Site, nbytes: int) -> None:
        self._cluster, self._site, self._nbytes = cluster, site, nbytes
        self._paths = Paths(cluster)
        self._on: dict[int, list[Place]] = {}  # workers' devices, by host
        for place in dict.fromkeys(site.places):
            self._on.setdefault(place.host, []).append(place)

    def messages(self) -> Iterator[Figure]:
        """One for every kind of path, between the first two that have it."""
        told: set[tuple[object, ...]] = set()
        for a, b in self._pairs():
            route = self._paths.route(a, b)
            slowest = min(route.ways, key=lambda way: way.bandwidth)
            kind = (*sorted({way.source for way in route.ways}), slowest.bandwidth, route.latency)
            if kind not in told:
                told.add(kind)
                ends = f"{self._name(a)} to {self._name(b)}"
                latency, bandwidth = self._inputs(route, slowest, ends)
                yield Figure(
                    f"a message from {ends}",
                    f"{latency.name} + {self._nbytes:,} / {bandwidth.name}",
                    route.latency + self._nbytes / slowest.bandwidth,
                    [latency, bandwidth],
                )

    def _pairs(self) -> Iterator[tuple[Place, Place]]:
        """In a host of every kind, and from the first host to the others."""
        told: set[str] = set()
        for places in self._on.values():
            host = self._paths.hosts[places[0].host].name
            if host not in told:
                told.add(host)
                yield from ((a, b) for a in places for b in places if a < b)
        first, *others = [places[0] for places in self._on.values()]
        for other in others:
            yield from ((first, other), (other, first))

    def sums(self) -> Iterator[Figure]:
        """Inside of the slowest host, between hosts, and both."""
        sums = self._paths.sums(self._site.places)
        parts: list[str] = []
        inside = [self._inside(places) for places in self._on.values() if len(places) > 1]
        if inside and self._cluster.sum_bandwidth:
            seconds = self._cluster.sum_latency + self._nbytes / self._cluster.sum_bandwidth
            formula = f"sum_latency + {self._nbytes:,} / sum_bandwidth"
            inputs = of_cluster(self._cluster, "sum_latency", "sum_bandwidth")
            parts.append("that inside a host")
            yield Figure("a sum inside a host", formula, seconds, inputs)
        elif inside:
            yield max(inside, key=lambda figure: figure.seconds)
            parts.append("that inside a host")
        if len(self._on) > 1:
            yield self._between()
            parts.append("that between hosts")
        yield Figure(f"a sum of {len(self._site.places)} workers", " + ".join(parts),
                     sums.all_reduce(self._nbytes), [])  # fmt: skip

    def _inside(self, places: Sequence[Place]) -> Figure:
        host, devices = places[0].host, [place.device for place in places]
        ring = self._paths.ring(host, devices)
        hops = list(zip(ring.order, [*ring.order[1:], ring.order[0]], strict=True))
        routes = {hop: self._paths.route(*(Place(host, end) for end in hop)) for hop in hops}
        users = Counter(way for route in routes.values() for way in route.ways)
        fullest = min(users, key=lambda way: way.bandwidth / users[way])
        longest = max(routes.values(), key=lambda route: route.latency)
        a, b = (self._name(Place(host, end)) for end in ring.slowest)
        name = f"a sum inside a host ({a.rpartition('/')[0]}, slowest from {a} to {b})"
        share = 1 / users[fullest]
        return self._ring(name, len(places), longest, fullest, share, f"{a} to {b}")

    def _between(self) -> Figure:
        on = {host: [place.device for place in places] for host, places in self._on.items()}
        ring = self._paths.ring_of_hosts(on)
        ends = [self._on[host][0] for host in ring.order]
        longest = max(
            (self._paths.route(a, b) for a, b in zip(ends, [*ends[1:], ends[0]], strict=True)),
            key=lambda route: route.latency,
        )
        name = f"a sum between {len(ring.order)} hosts"
        return self._ring(name, len(ring.order), longest, ring.way, ring.share)

    def _ring(
        self, name: str, size: int, longest: Route, fullest: Way, share: float, ends: str = ""
    ) -> Figure:
        latency, bandwidth = self._inputs(longest, fullest, ends)
        width = bandwidth.name
        if share < 1:
            width = f"({width} / {1 / share:g})"
        elif share > 1:
            width = f"({share:g} * {width})"
        hop = longest.latency + self._nbytes / (fullest.bandwidth * share) / size
        formula = f"2({size}-1)({latency.name} + {self._nbytes:,} / {size} / {width})"
        return Figure(name, formula, 2 * (size - 1) * hop, [latency, bandwidth])

    def _inputs(self, route: Route, slowest: Way, ends: str) -> tuple[Input, Input]:
        """The latency of the link that has the longest, and the bandwidth of the fullest."""
        longest = next(
            (way.source for way in route.ways if self._latency(way.source) == route.latency),
            slowest.source,
        )
        return (
            _input(longest, "latency", route.latency, ends),
            _input(slowest.source, "bandwidth", slowest.bandwidth, ends),
        )

    def _latency(self, source: str) -> Seconds | None:
        if source.startswith("link."):
            return self._cluster.described.link(source.removeprefix("link.")).latency
        return {"": self._cluster.latency, "local_": self._cluster.local_latency}.get(source)

    def _name(self, place: Place) -> str:
        return place_name(self._cluster, place)


def _input(source: str, what: str, value: float, ends: str) -> Input:
    """By its name in a cluster file; or, if a topology has it from elsewhere, from there."""
    if source.startswith("link."):
        return Input(f"{source}.{what}", value)
    if source in ("", "local_"):
        return Input(f"{source}{what}", value)
    return Input(f"{what} from {ends}", value, source)
