"""Where ranks are: on which host, on which device, and what that is like."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from regatta.cluster.device import Device
from regatta.cluster.paths import Place
from regatta.comm import Load, Seconds
from regatta.wording import nearest

if TYPE_CHECKING:
    from regatta.cluster import Cluster


@dataclass(frozen=True)
class Site:
    """By rank: workers, then servers."""

    hosts: list[int]
    shares: list[int | None]  # by server: the worker whose device it has, or None
    owners: list[int]  # the first rank on the same device
    devices: list[Device]  # of what kind
    crowded: list[bool]  # whether several workers are on the same host
    places: Sequence[Place] = ()  # where hosts are described
    whole: Site | None = None  # of which only these members are left
    members: Sequence[int] = ()

    @property
    def workers(self) -> int:
        return len(self.hosts) - len(self.shares)

    def share_of(self, rank: int) -> int | None:
        """The worker whose device this server has; None for others."""
        return None if rank < self.workers else self.shares[rank - self.workers]

    def computing(self, cluster: Cluster, rank: int) -> Callable[[Load], Seconds]:
        """How long a load takes on this rank."""
        if self.whole is not None:
            return self.whole.computing(cluster, self.members[rank])
        share = self.share_of(rank)
        pace_of, crowded = rank if share is None else share, self.crowded[rank]
        return cluster.times(self.devices[rank], rank, pace_of, self.workers, crowded)

    def among(self, members: Sequence[int]) -> Site:
        """Where those of its ranks are that are left; each stays where it was."""
        if tuple(members) == tuple(range(len(self.hosts))):
            return self
        number = {member: rank for rank, member in enumerate(members)}
        servers = [member for member in members if member >= self.workers]
        owners = [self.owners[member] for member in members]
        return Site(
            [self.hosts[member] for member in members],
            [
                number.get(share) if (share := self.share_of(each)) is not None else None
                for each in servers
            ],
            [owners.index(owner) for owner in owners],
            [self.devices[member] for member in members],
            [self.crowded[member] for member in members],
            [self.places[member] for member in members] if self.places else (),
            self,
            members,
        )


def placed_on(cluster: Cluster, workers: int, shares: Sequence[int | None]) -> Site:
    """The ranks of a run on the described hosts of a cluster.

    Workers take devices in the order of `placement`, then in that of the file; servers those of
    `server_placement`, then hosts without devices, then devices that are left.
    """
    found = _Places(cluster)
    order = found.for_workers()
    wanted = workers + sum(share is None for share in shares)
    there = len(order) + len(found.without_devices)
    if workers > len(order) and not cluster.oversubscribe:
        raise ValueError(_too_many(workers, "workers", len(order)))
    places = [order[worker % len(order)] for worker in range(workers)]
    owners = [worker % len(order) for worker in range(workers)]
    free = found.for_servers(taken=set(places))
    shared: list[int | None] = []
    for number, share in enumerate(shares):
        place = None if share is not None else next(free, None)
        if share is None and place is None and not cluster.oversubscribe:
            raise ValueError(_too_many(wanted, "ranks", there))
        if share is None and place in places[:workers]:
            share = places.index(place)
        elif share is None and place is None:
            share = number % workers
        shared.append(share)
        places.append(place or places[share or 0])
        owners.append(workers + number if share is None else owners[share])
    hosts = [place.host for place in places]
    workers_on = Counter(hosts[:workers])
    crowded = [workers_on[host] > 1 for host in hosts]
    return Site(hosts, shared, owners, [*map(found.device_at, places)], crowded, places)


def _too_many(wanted: int, what: str, there: int) -> str:
    return (
        f"{wanted} {what} and {there} places for them: use fewer workers, a larger cluster, "
        "servers that share (placement=colocated), or --oversubscribe"
    )


class _Places:
    """Of a described cluster, by name: `node-0/3` is the fourth device of node-0."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._hosts = cluster.described.every_host
        self._by_name = dict(place_names(cluster))
        self._kinds: dict[str, Device] = {}
        self.without_devices = [
            Place(number, -1) for number, (_, host) in enumerate(self._hosts) if not host.devices
        ]
        self._workers = self._named(cluster.placement, "placement")
        self._servers = self._named(cluster.server_placement, "server_placement")
        if twice := [name for name in cluster.placement if cluster.placement.count(name) > 1]:
            raise ValueError(f"cluster.placement: {twice[0]} is there twice; ranks for which there "
                             "is no device share one with --oversubscribe")  # fmt: skip
        if nowhere := [place for place in self._workers if place.device < 0]:
            name = self._hosts[nowhere[0].host][0]
            raise ValueError(f"cluster.placement: {name} has no devices to compute on")

    def _named(self, names: Sequence[str], option: str) -> list[Place]:
        for name in names:
            if name not in self._by_name:
                known = list(self._by_name)
                raise ValueError(f"cluster.{option}: {nearest(name, known, 'place')}")
        return [self._by_name[name] for name in names]

    def for_workers(self) -> list[Place]:
        """What is named for servers comes last."""
        named, for_servers = set(self._workers), set(self._servers)
        rest = [p for p in self._by_name.values() if p.device >= 0 and p not in named]
        order = [*self._workers, *sorted(rest, key=lambda place: (place in for_servers, place))]
        if not order:
            raise ValueError("no host of this cluster has a device: name some with devices = [...]")
        return order

    def for_servers(self, taken: set[Place]) -> Iterator[Place]:
        yield from self._servers
        taken = taken | set(self._servers)
        others = [*self.without_devices, *self.for_workers()]
        yield from (place for place in others if place not in taken)

    def device_at(self, place: Place) -> Device:
        """A host without devices computes as the cluster says of all; its power is the host's."""
        if place.device < 0:
            return replace(self._cluster, watts=0.0, idle_watts=0.0)
        kind = self._hosts[place.host][1].devices[place.device]
        if kind not in self._kinds:
            self._kinds[kind] = self._cluster.described.kind(kind).beside(self._cluster)
        return self._kinds[kind]


def place_name(cluster: Cluster, place: Place) -> str:
    name = cluster.described.every_host[place.host][0]
    return name if place.device < 0 else f"{name}/{place.device}"


def place_names(cluster: Cluster) -> Iterator[tuple[str, Place]]:
    """Every device, and every host that has none."""
    for number, (_, host) in enumerate(cluster.described.every_host):
        for device in range(len(host.devices)) if host.devices else (-1,):
            place = Place(number, device)
            yield place_name(cluster, place), place
