"""Hosts, devices, links and switches that are not all equal, as data."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, fields
from functools import cached_property
from typing import Any, TypeVar

from regatta.cluster.checks import refuse_nonsense
from regatta.cluster.device import Device
from regatta.comm import Seconds
from regatta.wording import nearest

MOST = 1_000_000  # devices, or switches, that a cluster has


@dataclass(frozen=True)
class Kind:
    """Devices of one name: what is said of them. The rest is as the cluster says of all."""

    name: str
    values: tuple[tuple[str, Any], ...]  # of a `Device`, by name

    def __post_init__(self) -> None:
        object.__setattr__(self, "values", frozen(self.values))
        known = [f.name for f in fields(Device)]
        for name, _ in self.values:
            if name not in known:
                raise ValueError(nearest(name, known, f"field of device.{self.name}"))
        self.beside(Device())

    def beside(self, others: Device) -> Device:
        said = {f.name: getattr(others, f.name) for f in fields(Device)}
        device = Device(**said | dict(self.values))
        device.check(f"device.{self.name}")
        return device


def frozen(value: Any) -> Any:
    """Lists as files have them, as values that never change."""
    return tuple(map(frozen, value)) if isinstance(value, list | tuple) else value


@dataclass(frozen=True)
class Link:
    """A way that bytes take. Whatever is joined by it has one of its own."""

    name: str  # of those that a cluster has without saying so, "" or "local_"
    bandwidth: float  # bytes a second, each way
    latency: Seconds = 0.0
    duplex: bool = True  # both ways at once; or one way at a time

    @property
    def source(self) -> str:
        """What its values' names begin with, in a cluster file."""
        return self.name if self.name in ("", "local_") else f"link.{self.name}"

    def __post_init__(self) -> None:
        refuse_nonsense(self, f"link.{self.name}", ["bandwidth"], ["latency"])
        if self.bandwidth == math.inf:
            raise ValueError(f"link.{self.name}.bandwidth must be finite")


@dataclass(frozen=True)
class Bundle:
    """Devices of a host that have a link in common."""

    devices: tuple[int, ...]  # by their numbers in the host, from 0
    link: str


@dataclass(frozen=True)
class Host:
    """Some devices and a network card; a host without devices has room for servers."""

    name: str
    devices: tuple[str, ...] = ()  # the kind of each
    count: int = 1  # so many hosts like this
    link: str = ""  # that every device is joined to the others by; "": local_latency, _bandwidth
    groups: tuple[Bundle, ...] = ()  # devices behind a link to all others, which they share
    direct: tuple[Bundle, ...] = ()  # devices with links of their own to one another
    topology: str = field(  # or all of this as `nvidia-smi topo -m` prints it, or NCCL's XML
        default="", metadata={"longest": 1 << 20}
    )
    paths: tuple[tuple[str, str], ...] = ()  # then: the link that each kind of path is
    card: str = ""  # the link to the switch; "": the cluster's latency and bandwidth
    switch: str = ""  # "": the one that joins all
    price_per_hour: float = 0.0  # 0: the cluster's
    watts: float = 0.0  # of all but its devices, all the time; 0: the cluster's host_watts

    def __post_init__(self) -> None:
        where = f"host.{self.name}"
        if not self.name or {"/", ","} & set(self.name):
            raise ValueError(f"{where}: a host needs a name, without / and commas")
        refuse_nonsense(self, where, ["count"], ["price_per_hour", "watts"])
        if self.topology and (self.link or self.groups or self.direct):
            raise ValueError(f"{where}: a topology tells link, groups and direct: leave them out")
        if self.paths and not self.topology:
            raise ValueError(f"{where}: paths are kinds of paths in a topology: give one")
        for bundle in (*self.groups, *self.direct):
            for device in bundle.devices:
                if not 0 <= device < len(self.devices):
                    raise ValueError(f"{where}: there is no device {device}: it has "
                                     f"{len(self.devices)}, from 0")  # fmt: skip
        if any(len(set(bundle.devices)) < 2 for bundle in self.direct):
            raise ValueError(f"{where}.direct: a link joins two devices at least")

    @property
    def links(self) -> Iterator[tuple[str, str]]:
        """Every link that it names, and where."""
        yield from (("link", self.link), ("card", self.card))
        yield from (("groups", bundle.link) for bundle in self.groups)
        yield from (("direct", bundle.link) for bundle in self.direct)
        yield from (("paths", link) for _, link in self.paths)


@dataclass(frozen=True)
class Switch:
    """Joins hosts, and by its own link what is farther away. Copies are filled evenly, in order."""

    name: str
    link: str  # to the switch above; all that leaves or enters shares it
    above: str = ""  # "": the one that joins all
    count: int = 1

    def __post_init__(self) -> None:
        refuse_nonsense(self, f"switch.{self.name}", ["count"])


Part = TypeVar("Part", Kind, Link, Host, Switch)


@dataclass(frozen=True)
class Described:
    """What a cluster file says of its parts; nothing, where hosts are equal and on one switch."""

    kinds: tuple[Kind, ...] = ()
    links: tuple[Link, ...] = ()
    hosts: tuple[Host, ...] = ()
    switches: tuple[Switch, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.hosts)

    def __post_init__(self) -> None:
        for what, parts in (("device", self.kinds), ("link", self.links), ("switch", self.switches),
                            ("host", self.hosts)):  # fmt: skip
            names = Counter(part.name for part in parts)
            if twice := [name for name, count in names.items() if count > 1]:
                raise ValueError(f"there are two of the name {what}.{twice[0]}")
        places = sum(host.count * max(1, len(host.devices)) for host in self.hosts)
        switches = sum(switch.count for switch in self.switches)
        for number, what in ((places, "devices"), (switches, "switches")):
            if number > MOST:
                raise ValueError(f"{number:,} {what}: a cluster has {MOST:,} at most")
        copies = Counter(name for name, _ in self.every_host)
        if twice := [name for name, count in copies.items() if count > 1]:
            raise ValueError(f"there are two of the name host.{twice[0]}: one of them is a copy")
        for host in self.hosts:
            where = f"host.{host.name}"
            for kind in host.devices:
                _known(kind, self.kinds, f"{where}.devices", "device")
            for name, link in host.links:
                _known(link, self.links, f"{where}.{name}", "link")
            _known(host.switch, self.switches, f"{where}.switch", "switch")
        for switch in self.switches:
            where = f"switch.{switch.name}"
            _known(switch.link, self.links, f"{where}.link", "link")
            _known(switch.above, self.switches, f"{where}.above", "switch")
            self._refuse_circles(switch)
        self._refuse_idle_parts()

    def _refuse_idle_parts(self) -> None:
        """Whoever describes a link wants it to be charged."""
        links = {link for host in self.hosts for _, link in host.links}
        above = {switch.above for switch in self.switches}
        used = {
            "device": {kind for host in self.hosts for kind in host.devices},
            "link": links | {switch.link for switch in self.switches},
            "switch": {host.switch for host in self.hosts} | above,
        }
        for what, parts in (
            ("device", self.kinds),
            ("link", self.links),
            ("switch", self.switches),
        ):
            for part in parts:
                if part.name not in used[what]:
                    raise ValueError(f"{what}.{part.name} is used nowhere: name it in a [[host]], "
                                     "or leave it out")  # fmt: skip

    def _refuse_circles(self, switch: Switch) -> None:
        above, seen = switch.above, {switch.name}
        while above:
            if above in seen:
                raise ValueError(f"switch.{switch.name}: above it is {above}, which is below it")
            seen.add(above)
            above = self.switch(above).above

    def kind(self, name: str) -> Kind:
        return _named(name, self.kinds)

    def link(self, name: str) -> Link:
        return _named(name, self.links)

    def switch(self, name: str) -> Switch:
        return _named(name, self.switches)

    @cached_property
    def every_host(self) -> list[tuple[str, Host]]:
        """One by one, by their own names: `node-0`, `node-1`."""
        return [
            (copy_name(host, number), host) for host in self.hosts for number in range(host.count)
        ]

    @property
    def cuttable(self) -> list[str]:
        """What a fault may name: a kind of link, or the one above a switch."""
        return [link.name for link in self.links] + [
            copy_name(switch, n) for switch in self.switches for n in range(switch.count)
        ]


def copy_name(part: Host | Switch, number: int) -> str:
    return part.name if part.count == 1 else f"{part.name}-{number}"


def _named(name: str, parts: Sequence[Part]) -> Part:
    return next(part for part in parts if part.name == name)


def _known(name: str, parts: Sequence[Part], where: str, what: str) -> None:
    names = [part.name for part in parts]
    if name and name not in names:
        raise ValueError(f"{where}: {nearest(name, names, what)}")
