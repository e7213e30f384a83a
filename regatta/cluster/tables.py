"""A cluster from the tables of its file: every name is known, every value of its kind."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import MISSING, fields
from pathlib import Path
from typing import Any, get_type_hints

from regatta import plain
from regatta.cluster import Cluster, machines
from regatta.cluster.described import MOST, Bundle, Described, Host, Kind, Link, Switch, frozen
from regatta.cluster.device import Device
from regatta.cluster.paths import Paths
from regatta.cluster.units import without_unit
from regatta.wording import nearest

_PARTS = {"device": "[device.NAME]", "link": "[link.NAME]", "switch": "[switch.NAME]",
          "host": "[[host]]"}  # fmt: skip
_LIKE = {
    "curve": "like [[32, 0.004], [256, 0.02]]",
    "paces": "like [1.0, 1.02]",
    "faults": 'like ["crash rank=1 at=4"]',
    "devices": 'like ["4 v100"]',
    "placement": 'like ["node-0/0", "node-0/1"]',
    "server_placement": 'like ["node-0/0"]',
    "groups": 'like [{devices = [0, 1], link = "sockets"}]',
    "direct": 'like [{devices = [0, 1], link = "nvlink"}]',
    "paths": 'like {PIX = "pcie", SYS = "sockets"}',
}
_MOST_DIGITS = 10  # of a count that are looked at: it is too large anyway
_OF_KIND = {str: "text", bool: "true or false", int: "a whole number"}


def cluster_of(values: Mapping[str, Any], folder: Path) -> Cluster:
    """What it names beside it is in this folder."""
    parts = {what: values[what] for what in _PARTS if what in values}
    rest = {name: value for name, value in values.items() if name not in _PARTS}
    flat = _values(rest, Cluster, "", beside=[*_PARTS])
    described = _described(parts, folder)
    cluster = Cluster(**flat, described=described)
    if described:
        Paths(cluster)  # whatever is joined in a way that cannot be is refused here,
        cluster.site(1)  # and so are places that there are not
    return cluster


# -- its parts ----------------------------------------------------------------------------------


def _described(parts: Mapping[str, Any], folder: Path) -> Described:
    for what, table in parts.items():
        of_one = table if what == "host" else [*table.values()] if isinstance(table, dict) else None
        if not isinstance(of_one, list) or not all(isinstance(each, dict) for each in of_one):
            raise ValueError(f"{what} must be tables: {_PARTS[what]}")
    if parts and not parts.get("host"):
        raise ValueError(f"{', '.join(parts)}, but no host that has them: add [[host]]")
    named = {
        what: [(str(name), table) for name, table in parts.get(what, {}).items()]
        for what in ("device", "link", "switch")
    }
    return Described(
        tuple(Kind(name, tuple(_values(table, Device, f"device.{name}").items()))
              for name, table in named["device"]),
        tuple(_part(Link, table | {"name": name}, f"link.{name}") for name, table in named["link"]),
        tuple(_host(table, f"host{n}", folder) for n, table in enumerate(parts.get("host", []))),
        tuple(_part(Switch, table | {"name": name}, f"switch.{name}")
              for name, table in named["switch"]),
    )  # fmt: skip


def _host(table: Mapping[str, Any], name: str, folder: Path) -> Host:
    """With what is written in short written out."""
    values = {"name": name} | dict(table)
    where = f"host.{values['name']}"
    for bundles in ("groups", "direct"):
        if isinstance(given := values.get(bundles), list):
            values[bundles] = [_part(Bundle, each, f"{where}.{bundles}") for each in given]
    if isinstance(devices := values.get("devices"), list):
        values["devices"] = [kind for words in devices for kind in _counted(words)]
    if isinstance(paths := values.get("paths"), dict):
        values["paths"] = [list(pair) for pair in paths.items()]
    if isinstance(topology := values.get("topology"), str):
        values["topology"] = _printed(topology, f"{where}.topology", folder)
    host: Host = _part(Host, values, where)
    return host


def _counted(words: Any) -> list[Any]:
    """`4 v100` stands for four of them."""
    count, _, kind = words.partition(" ") if isinstance(words, str) else ("", "", "")
    if not (kind and count.isdecimal()):
        return [words]
    return [kind.strip()] * min(int(count[:_MOST_DIGITS]), MOST + 1)  # which is refused


def _printed(name: str, where: str, folder: Path) -> str:
    """A shipped machine's topology, or that in a file."""
    shipped = machines.topologies()
    if name in shipped:
        return shipped[name]
    try:
        return (folder / name).read_text(errors="replace")
    except OSError as error:
        machine = f"or a shipped machine: {', '.join(shipped)}"
        raise ValueError(f"{where}: {folder / name}: {error.strerror}; {machine}") from None


def _part(kind: Any, table: Any, where: str) -> Any:
    if not isinstance(table, dict):
        raise ValueError(f"{where} must have a table, not {plain.shown(table)}")
    values = _values(table, kind, where)
    for field in fields(kind):
        if field.default is MISSING and field.name not in values:
            raise ValueError(f"{where}: {field.name} is missing")
    return kind(**values)


# -- values -------------------------------------------------------------------------------------


def _values(
    table: Mapping[str, Any], kind: Any, where: str, beside: Sequence[str] = ()
) -> dict[str, Any]:
    """By the names of fields, in seconds and bytes."""
    hints = get_type_hints(kind)
    known = sorted([*(f.name for f in fields(kind) if f.name != "described"), *beside])
    prefix = f"{where}." if where else ""
    values: dict[str, Any] = {}
    for name, given in table.items():
        if not isinstance(name, str):  # as YAML may have it
            raise ValueError(f"{plain.shown(name)} is no name of a field of {where or 'Cluster'}")
        field, (times, by) = without_unit(name, prefix)
        if field not in known:
            raise ValueError(nearest(name, known, f"field of {where or 'Cluster'}"))
        if field in values:
            raise ValueError(f"{prefix}{field} is told twice")
        if not plain.fits(hints[field], given):
            what = _OF_KIND.get(hints[field]) or _LIKE.get(field, "a number")
            raise ValueError(f"{prefix}{name} must be {what}, not {plain.shown(given)}")
        values[field] = frozen(given) if field == name else given * times / by
    return values
