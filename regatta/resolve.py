"""From the words of a command line to a run."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args, get_origin, get_type_hints

from regatta import config, folders, recipes
from regatta.cluster import CLUSTERS, Cluster, machines
from regatta.config import Run


def resolve(
    recipe: str,
    strategy: str | None,
    settings: list[str] | None,
    target: float | None,
    seed: int | None,
    device: str | None = None,
    threads: int | None = None,
    cluster: str | None = None,
) -> Run:
    run = recipes.load(recipe)
    if strategy is not None:
        chosen = config.component("strategy", strategy, run.strategy)
        run = replace(run, workers=max(run.workers, 1) if chosen.name != "single" else 1,
                      strategy=chosen)  # fmt: skip
    if cluster is not None:
        run = replace(run, cluster=load_cluster(cluster))
    run = config.assign(run, settings or [])
    if target is not None:
        run = replace(run, stop=replace(run.stop, target=target))
    given: dict[str, Any] = {"seed": seed, "device": device, "threads": threads}
    return replace(run, **{name: value for name, value in given.items() if value is not None})


def with_workers(run: Run, workers: int | None, settings: list[str] | None) -> Run:
    """As many workers as were asked for; two where nobody said and a strategy needs company."""
    if workers is not None:
        return replace(run, workers=workers)
    asked = any(setting.startswith("workers=") for setting in settings or [])
    needs_company = run.strategy.name != "single" and run.workers == 1
    return replace(run, workers=2) if needs_company and not asked else run


def resumed_plan(
    recipe: str,
    folder: Path | None,
    strategy: str | None,
    workers: int | None,
    settings: list[str] | None,
    target: float | None,
) -> folders.Plan:
    if folder is None:
        raise ValueError("--resume needs --out: the folder of the run to go on with")
    plan, stored = folders.open_plan(folder)
    if stored["world"] != "processes":
        raise ValueError(f"{folder} was simulated, and a simulation cannot be resumed: run it anew")
    if recipes.absolute(recipe) != stored["recipe"]:
        raise ValueError(f"{folder} was made by recipe {stored['recipe']}, not {recipe}")
    run = plan.run
    if strategy is not None and config.component("strategy", strategy) != run.strategy:
        raise ValueError(f"{folder} was trained by {run.strategy}; leave --strategy out")
    if workers is not None and workers != run.workers:
        raise ValueError(f"{folder} has {run.workers} workers; leave --workers out")
    run = config.assign(run, settings or [])
    if run.workers != plan.run.workers:
        raise ValueError(f"{folder} has {plan.run.workers} workers; leave --set workers=... out")
    if run.start != plan.run.start:
        raise ValueError(f"{folder} has begun with other weights; leave --set start... out")
    if target is not None:
        run = replace(run, stop=replace(run.stop, target=target))
    return replace(plan, run=run)


def split_specs(text: str) -> list[str]:
    """`single all-reduce averaging:period=4,state=local`; a comma before a name also parts."""
    specs: list[str] = []
    for word in text.replace(";", " ").split():
        for piece in word.split(","):
            if specs and "=" in piece and ":" not in piece:
                specs[-1] += "," + piece
            elif piece:
                specs.append(piece)
    return specs


# -- clusters ---------------------------------------------------------------------------------


def cluster_text(name: str) -> str:
    """Of a cluster that `load_cluster` knows, with the remarks beside its values, if it has any."""
    shipped = machines.described()
    if name in CLUSTERS:
        return ""
    return shipped[name] if name in shipped else Path(name).read_text()


def load_cluster(name: str) -> Cluster:
    """A shipped cluster, or a TOML, YAML or JSON file with fields of `Cluster`."""
    if name in CLUSTERS:
        return CLUSTERS[name]
    shipped = machines.described()
    if name in shipped:
        return _cluster(tomllib.loads(shipped[name]), name)
    path = Path(name)
    if path.suffix not in _READERS:
        known = config.nearest(name, sorted([*CLUSTERS, *shipped]), "cluster")
        raise ValueError(known + "; or a .toml, .yaml or .json file")
    try:
        values = _READERS[path.suffix](path.read_text())
    except OSError as error:
        raise ValueError(f"cluster file {path}: {error.strerror}") from None
    except ValueError as error:
        raise ValueError(f"cluster file {path} cannot be read: {error}") from None
    return _cluster(values, str(path))


def _yaml(text: str) -> Any:
    import yaml  # few need it

    try:
        return yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise ValueError(" ".join(str(error).split())) from None


_READERS: dict[str, Callable[[str], Any]] = {
    ".toml": tomllib.loads, ".json": json.loads, ".yaml": _yaml, ".yml": _yaml,
}  # fmt: skip


_LIKE = {
    "curve": "like [[32, 0.004], [256, 0.02]]",
    "paces": "like [1.0, 1.02]",
    "faults": 'like ["crash rank=1 at=4"]',
    str: "text",
    bool: "true or false",
}


def _fits(kind: Any, value: Any) -> bool:
    """Whether a value as files have it can stand for a field: tuples are lists there."""
    if get_origin(kind) is not tuple:
        wanted = kind if kind in (str, bool) else int | float
        return isinstance(value, wanted) and (kind is bool or not isinstance(value, bool))
    inner, *others = get_args(kind)
    is_pair = others != [...]
    return (
        isinstance(value, list)
        and all(_fits(inner, each) for each in value)
        and (not is_pair or len(value) == 1 + len(others))
    )


def _cluster(values: Any, path: str) -> Cluster:
    if not isinstance(values, dict):
        raise ValueError(f"cluster file {path} must hold fields of a cluster by name")
    hints = get_type_hints(Cluster)
    for name, value in values.items():
        kind = hints.get(name, float)
        if not _fits(kind, value):
            what = _LIKE.get(name) or _LIKE.get(kind, "a number")
            raise ValueError(f"cluster file {path}: {name} must be {what}, not {value!r}")
    try:
        cluster: Cluster = config.from_plain(Cluster, values)
    except ValueError as error:
        raise ValueError(f"cluster file {path}: {error}") from None
    return cluster
