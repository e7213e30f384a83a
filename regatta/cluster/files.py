"""Cluster files: TOML, YAML or JSON; and the clusters that come with Regatta."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

from regatta.cluster import CLUSTERS, Cluster, machines
from regatta.cluster.tables import cluster_of
from regatta.wording import nearest


def known_clusters() -> list[str]:
    return [*CLUSTERS, *machines.described()]


def cluster_text(name: str) -> str:
    """Of a cluster that `load_cluster` knows, with the remarks beside its values, if it has any."""
    shipped = machines.described()
    if name in CLUSTERS:
        return ""
    return shipped[name] if name in shipped else Path(name).read_text()


def load_cluster(name: str) -> Cluster:
    """A shipped cluster, or a file of one."""
    if name in CLUSTERS:
        return CLUSTERS[name]
    shipped = machines.described()
    if name in shipped:
        return _cluster(tomllib.loads(shipped[name]), Path(name))
    path = Path(name)
    if path.suffix not in _READERS:
        known = nearest(name, sorted(known_clusters()), "cluster")
        raise ValueError(known + "; or a .toml, .yaml or .json file")
    try:
        values = _READERS[path.suffix](path.read_text())
    except OSError as error:
        raise ValueError(f"cluster file {path}: {error.strerror}") from None
    except ValueError as error:
        raise ValueError(f"cluster file {path} cannot be read: {error}") from None
    return _cluster(values, path)


def _yaml(text: str) -> Any:
    import yaml  # few need it

    try:
        return yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise ValueError(" ".join(str(error).split())) from None


_READERS: dict[str, Callable[[str], Any]] = {
    ".toml": tomllib.loads, ".json": json.loads, ".yaml": _yaml, ".yml": _yaml,
}  # fmt: skip


def _cluster(values: Any, path: Path) -> Cluster:
    if not isinstance(values, dict):
        raise ValueError(f"cluster file {path} must hold fields of a cluster by name")
    try:
        cluster = cluster_of(values, path.parent)
    except ValueError as error:
        raise ValueError(f"cluster file {path}: {error}") from None
    return cluster
