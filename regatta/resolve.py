"""From the words of a command line to a run."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from regatta import config, folders, recipes
from regatta.cluster.files import load_cluster as load_cluster
from regatta.config import Run
from regatta.strategies import Strategy


def resolve(
    recipe: str,
    strategy: str | None,
    settings: list[str] | None,
    target: float | None,
    seed: int | None,
    device: str | None = None,
    threads: int | None = None,
    cluster: str | None = None,
    workers: int | None = None,
    ranks: int | None = None,  # that have been started, servers among them
) -> Run:
    run = recipes.load(recipe)
    if strategy is not None:
        chosen = config.component("strategy", strategy, run.strategy)
        if workers is None and ranks is not None:
            workers = ranks - chosen.num_servers
        count = _workers_for(chosen, run, workers, settings)
        run = replace(run, workers=count, strategy=chosen)
    if cluster is not None:
        run = replace(run, cluster=load_cluster(cluster))
    run = config.assign(run, settings or [])
    if target is not None:
        run = replace(run, stop=replace(run.stop, target=target))
    given: dict[str, Any] = {"seed": seed, "device": device, "threads": threads}
    return replace(run, **{name: value for name, value in given.items() if value is not None})


def _workers_for(
    strategy: Strategy, run: Run, workers: int | None, settings: list[str] | None
) -> int:
    """Those that it will have in the end: there are strategies that make no sense with fewer."""
    asked = [setting.partition("=")[2] for setting in settings or [] if _is_of_workers(setting)]
    if workers is not None:
        return workers
    if asked and asked[-1].isdecimal():
        return int(asked[-1])
    return 1 if strategy.name == "single" else max(run.workers, 2)


def _is_of_workers(setting: str) -> bool:
    return setting.startswith("workers=")


def with_workers(run: Run, workers: int | None, settings: list[str] | None) -> Run:
    """As many workers as were asked for; two where nobody said and a strategy needs company."""
    if workers is not None:
        return replace(run, workers=workers)
    asked = any(map(_is_of_workers, settings or []))
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
    stored = folders.read_stored(folder)
    if stored["world"] != "processes":
        raise ValueError(f"{folder} was simulated, and a simulation cannot be resumed: run it anew")
    if recipes.absolute(recipe) != stored["recipe"]:  # whose file has not been executed yet
        raise ValueError(f"{folder} was made by recipe {stored['recipe']}, not {recipe}")
    plan, _ = folders.open_plan(folder)
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
