"""Cluster files: TOML, YAML or JSON; what others' files tell; and the clusters that come with
Regatta."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

from regatta import plain
from regatta.cluster import CLUSTERS, Cluster, machines
from regatta.cluster.formats import Unreadable
from regatta.cluster.formats.astra_sim import astra_sim_as_toml
from regatta.cluster.formats.hostfile import hostfile_as_toml
from regatta.cluster.tables import cluster_of
from regatta.wording import nearest

_DEEPEST = 64
_NAMES = re.compile(r"""(?<![\w"'-])(?:[\w"'-]++\s*+\.\s*+){64}""")  # one in another: a.b.c
_ITEMS = re.compile(r"(?:[-?:]\s++){64}")  # of YAML, one in another


def known_clusters() -> list[str]:
    return [*CLUSTERS, *machines.described()]


def cluster_text(name: str) -> str:
    """Of a cluster that `load_cluster` knows, with the remarks beside its values, if it has any."""
    return "" if name in CLUSTERS else _read(name)[0]


def load_cluster(name: str) -> Cluster:
    """A shipped cluster, or a file of one."""
    if name in CLUSTERS:
        return CLUSTERS[name]
    path = Path(name)
    if name not in machines.described() and path.suffix not in _READERS and not path.is_file():
        known = nearest(name, sorted(known_clusters()), "cluster")
        raise ValueError(f"{known}; or a file: .toml, .yaml or .json, or a hostfile")
    try:
        _, values = _read(name)
    except OSError as error:
        raise ValueError(f"cluster file {path}: {error.strerror}") from None
    except RecursionError:
        raise ValueError(f"cluster file {path} is nested too deeply") from None
    except Unreadable as error:
        raise ValueError(f"cluster file {path}: {error}") from None
    except ValueError as error:
        reason = plain.shortened(plain.printable(str(error)))
        raise ValueError(f"cluster file {path} cannot be read: {reason}") from None
    return _cluster(values, path)


def _read(name: str) -> tuple[str, Any]:
    """The text of a cluster file, and what it says; files of others are written as one first."""
    shipped = machines.described()
    path = Path(name)
    text = shipped[name] if name in shipped else path.read_text()
    if name in shipped:
        return text, tomllib.loads(text)
    if path.suffix not in _READERS:
        text = _of_hostfile(text)
        return text, tomllib.loads(text)
    _refuse_depth(text)
    values = _READERS[path.suffix](text)
    if isinstance(values, dict) and "npus_count" in values:
        text = astra_sim_as_toml(values)
        return text, tomllib.loads(text)
    return text, values


def _of_hostfile(text: str) -> str:
    try:
        return hostfile_as_toml(text)
    except Unreadable as error:
        raise Unreadable(
            f"taken for a hostfile: {error}; a cluster file ends in .toml, .yaml or .json"
        ) from None


def _refuse_depth(text: str) -> None:
    """What readers take too long for: time to the square, or all of the stack."""
    depth = 0
    for sign in re.findall(r"[\[\]{}]", text):
        depth = depth + 1 if sign in "[{" else max(depth - 1, 0)
        if depth > _DEEPEST:
            raise RecursionError
    if _NAMES.search(text) or _ITEMS.search(text):
        raise RecursionError


def _yaml(text: str) -> Any:
    import yaml  # few need it

    try:
        return yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise ValueError(" ".join(str(error).split())) from None


_READERS: dict[str, Callable[[str], Any]] = {
    ".toml": tomllib.loads, ".json": plain.loads, ".yaml": _yaml, ".yml": _yaml,
}  # fmt: skip


def _cluster(values: Any, path: Path) -> Cluster:
    if not isinstance(values, dict):
        raise ValueError(f"cluster file {path} must hold fields of a cluster by name")
    try:
        cluster = cluster_of(values, path.parent)
    except ValueError as error:
        raise ValueError(f"cluster file {path}: {error}") from None
    return cluster
