"""Cluster files: TOML, YAML or JSON; and the clusters that come with Regatta."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

from regatta import plain
from regatta.cluster import CLUSTERS, Cluster, machines
from regatta.cluster.tables import cluster_of
from regatta.wording import nearest

_DEEPEST = 64
_NAMES = re.compile(r"""(?<![\w"'-])(?:[\w"'-]++\s*+\.\s*+){64}""")  # one in another: a.b.c
_ITEMS = re.compile(r"(?:[-?:]\s++){64}")  # of YAML, one in another


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
        text = path.read_text()
        _refuse_depth(text)
        values = _READERS[path.suffix](text)
    except OSError as error:
        raise ValueError(f"cluster file {path}: {error.strerror}") from None
    except RecursionError:
        raise ValueError(f"cluster file {path} is nested too deeply") from None
    except ValueError as error:
        reason = plain.shortened(plain.printable(str(error)))
        raise ValueError(f"cluster file {path} cannot be read: {reason}") from None
    return _cluster(values, path)


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
