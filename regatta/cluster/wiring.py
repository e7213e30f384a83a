"""A described host as a topology: from its links, or from what tools print of it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache

from regatta.cluster.described import Described, Host, Link
from regatta.cluster.topology import DIRECT, LEVELS, Group, Path, Topology, WayOut
from regatta.wording import nearest

_DEEPEST = len(LEVELS) - 1  # groups inside one another; the host itself is one more


@lru_cache
def topology_of(host: Host, described: Described, local: Link) -> Topology:
    """How its devices are joined; `local` is the link of who names none."""
    if host.topology:
        return _printed(host, described)
    own = described.link(host.link) if host.link else local
    tree = [_Bundle(frozenset([n]), own) for n in range(len(host.devices))]
    for group in sorted(host.groups, key=lambda group: len(group.devices)):
        tree.append(_around(host, group.devices, described.link(group.link), tree))
    paths = {(a, b): _path(tree, a, b) for b in range(len(host.devices)) for a in range(b)}
    direct: dict[tuple[int, int], Path] = {}
    for bundle in host.direct:
        link = described.link(bundle.link)
        path = Path(DIRECT, link.bandwidth, link.latency, link.source, link.duplex)
        direct |= {(a, b): path for a in bundle.devices for b in bundle.devices if a < b}
    names = tuple(f"{number}" for number in range(len(host.devices)))
    return Topology(names, paths, host.name, direct=direct, ways_out=_ways_out(tree))


@dataclass(frozen=True)
class _Bundle:
    """A device, or some that share a link, and that link."""

    devices: frozenset[int]
    link: Link
    height: int = 0  # groups inside one another; a device is 0


def _around(host: Host, devices: tuple[int, ...], link: Link, tree: list[_Bundle]) -> _Bundle:
    """A group around smaller ones."""
    members = frozenset(devices)
    told = f"host.{host.name}: groups {list(devices)}"
    if not 0 < len(members) < len(host.devices):
        raise ValueError(f"{told} must be some of its devices, not all and not none")
    for other in tree:
        is_inside = other.devices < members or (other.devices == members and not other.height)
        if members & other.devices and not is_inside:
            raise ValueError(f"{told} and {sorted(other.devices)}: one must be in the other")
    height = 1 + max(other.height for other in tree if other.devices <= members)
    if height > _DEEPEST:
        raise ValueError(f"{told}: more than {_DEEPEST} groups inside one another")
    return _Bundle(members, link, height)


def _path(tree: list[_Bundle], a: int, b: int) -> Path:
    """Out of all that holds one of two devices alone, into all that holds the other."""
    left = [bundle for bundle in tree if (a in bundle.devices) != (b in bundle.devices)]
    inside = [bundle for bundle in tree if a in bundle.devices and b in bundle.devices]
    top = min((bundle.height for bundle in inside), default=1 + max(each.height for each in tree))
    slowest = min((bundle.link for bundle in left), key=lambda link: link.bandwidth)
    latency = max(bundle.link.latency for bundle in left)
    return Path(LEVELS[top - 1], slowest.bandwidth, latency, slowest.source)


def _ways_out(tree: list[_Bundle]) -> dict[Group, WayOut]:
    return {
        (min(bundle.devices), "device" if bundle.height == 0 else LEVELS[bundle.height - 1]):
        WayOut(bundle.link.bandwidth, bundle.link.duplex, bundle.link.source)
        for bundle in tree
    }  # fmt: skip


def _printed(host: Host, described: Described) -> Topology:
    """With links in place of NCCL's figures, for the kinds of paths that name one."""
    from regatta.cluster.formats import Unreadable  # few need them
    from regatta.cluster.formats.topology import read_topology

    where = f"host.{host.name}.topology"
    try:
        found = read_topology(host.topology)
    except Unreadable as error:
        raise ValueError(f"{where}: {error}") from None
    if len(found.devices) != len(host.devices):
        raise ValueError(f"{where}: it has {len(found.devices)} devices, the host "
                         f"{len(host.devices)}")  # fmt: skip
    known = (DIRECT, *LEVELS)
    by_kind = {kind: described.link(link) for kind, link in host.paths}
    for kind, link in by_kind.items():
        if kind not in known:
            raise ValueError(f"host.{host.name}.paths: {nearest(kind, known, 'kind of path')}")
        if not link.duplex:
            raise ValueError(f"host.{host.name}.paths: {kind} = {link.name}, which is not duplex: "
                             "describe that host by groups")  # fmt: skip
    paths = {
        pair: replace(
            path,
            bandwidth=by_kind[path.kind].bandwidth,
            latency=by_kind[path.kind].latency,
            source=by_kind[path.kind].source,
        )
        if path.kind in by_kind
        else path
        for pair, path in found.paths.items()
    }
    names = tuple(f"{number}" for number in range(len(found.devices)))
    return replace(found, paths=paths, devices=names, name=host.name)
