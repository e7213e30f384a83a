"""`regatta probe`: measure this machine, so that a simulation can foretell it."""

from __future__ import annotations

import json
from contextlib import nullcontext
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.box import SIMPLE_HEAD
from rich.table import Table

from regatta.cli.common import (
    AsJson,
    Settings,
    Threads,
    Workers,
    app,
    cores,
    err,
    for_tables,
    out,
    prepare,
)
from regatta.cli.explaining import Explain, explain_run

if TYPE_CHECKING:
    from regatta.cluster.probe import Fitted
    from regatta.config import Run


@app.command()
def probe(
    recipe: Annotated[
        str | None, typer.Argument(help="a shipped recipe, or FILE.py:FUNCTION: what is computed")
    ] = None,
    workers: Workers = None,
    minibatches: Annotated[
        str | None,
        typer.Option("--minibatch", help="sizes: 32,64,128; else the recipe's"),
    ] = None,
    seconds: Annotated[
        float, typer.Option("--seconds", help="of measuring for every kind of work")
    ] = 1.0,
    source: Annotated[
        Path | None,
        typer.Option("--from", metavar="RUN", help="fit to a run's events instead"),
    ] = None,
    file: Annotated[
        Path | None, typer.Option("--out", "-o", help="a cluster file to write, .toml")
    ] = None,
    settings: Settings = None,
    threads: Threads = None,
    explain: Explain = False,
    as_json: AsJson = False,
) -> None:
    """Measure what this machine's workers do: a cluster for `simulate --cluster FILE`."""
    if (recipe is None) == (source is None):
        raise ValueError("name a recipe to measure, or a run with --from RUN: one of them")
    if file is not None and file.suffix != ".toml":
        raise ValueError(f"--out {file}: a cluster file ends in .toml")
    if seconds <= 0:
        raise ValueError(f"--seconds must be more than 0, not {seconds:g}")
    if source is not None:
        run, fit, title = _of_run(source)
    else:
        assert recipe is not None
        run, fit, title = _measured(
            recipe, workers, minibatches, seconds, settings, threads, as_json
        )
    if file is not None:
        from regatta.aside import write_aside
        from regatta.cluster.probe import as_toml

        write_aside(file, as_toml(fit, title).encode())
    if as_json:
        told = {name: asdict(fit.cluster)[name] for name in fit.sources}
        print(json.dumps({"cluster": told, "sources": fit.sources, "remarks": fit.remarks}))
        return
    for_tables().print(_table(fit, title))
    for remark in fit.remarks:
        err.print(f"note: {remark}", markup=False, soft_wrap=True)
    if explain:
        cluster = replace(fit.cluster, oversubscribe=True)  # as many workers as the run had
        explain_run(replace(run, cluster=cluster), fit.sources)
    if file is not None:
        again = f"regatta simulate {recipe or 'RECIPE'} --cluster {file} -s all-reduce -n 2"
        out.print(f"Cluster: {file}; foretell with: {again}", markup=False, soft_wrap=True)


def _measured(
    recipe: str,
    workers: int | None,
    minibatches: str | None,
    seconds: float,
    settings: list[str] | None,
    threads: int | None,
    as_json: bool,
) -> tuple[Run, Fitted, str]:
    from regatta.cluster.probe import fitted
    from regatta.probing import probe as measure
    from regatta.probing import to_measure
    from regatta.resolve import resolve

    run = resolve(recipe, None, settings, None, None, None, threads)
    devices = max(1, cores() // run.threads)
    workers = devices if workers is None else workers
    if workers > devices:
        raise ValueError(
            f"{workers} workers and {devices} devices: who shares a core is not measured; "
            f"use --workers {devices}"
        )
    sizes = _sizes(minibatches, run.minibatch)
    prepare([run], not as_json)
    title = f"{recipe} on {workers} of {devices} devices, minibatches {', '.join(map(str, sizes))}"
    with nullcontext() if as_json else out.status("measuring what workers do"):
        fit = fitted(measure(run, workers, sizes, seconds), devices)
    return to_measure(run, workers, sizes), fit, title


def _sizes(text: str | None, usual: int) -> tuple[int, ...]:
    if text is None:
        return tuple(sorted({max(1, usual // 4), max(1, usual // 2), usual}))
    try:
        return tuple(int(word) for word in text.split(","))
    except ValueError:
        raise ValueError(f"--minibatch {text}: numbers with commas between, 32,64,128") from None


def _of_run(folder: Path) -> tuple[Run, Fitted, str]:
    from regatta.cluster.recorded import recorded
    from regatta.events import read
    from regatta.folders import open_plan

    plan, stored = open_plan(folder)
    if stored["world"] != "processes":
        raise ValueError(f"{folder} was simulated: its times are those of its own cluster")
    sums = plan.run.strategy.name in ("all-reduce", "averaging")
    try:
        fit = recorded(read(plan.events), plan.run.minibatch, cores(), sums)
    except ValueError as error:
        raise ValueError(f"{folder}: {error}") from None
    title = f"from {folder.name}: {plan.run.strategy.name}, {plan.run.workers} workers"
    return plan.run, fit, title


def _table(fit: Fitted, title: str) -> Table:
    rows = Table(title=title, box=SIMPLE_HEAD, show_edge=False, padding=(0, 1, 0, 0))
    for heading in ("", "value", "from"):
        rows.add_column(heading, overflow="fold")
    for name, source in fit.sources.items():
        rows.add_row(name, _told(name, getattr(fit.cluster, name)), source)
    return rows


def _told(name: str, value: object) -> str:
    if name == "curve":
        assert isinstance(value, tuple)
        return ", ".join(f"{samples:g}: {1000 * seconds:.3g} ms" for samples, seconds in value)
    if isinstance(value, tuple):
        return ", ".join(f"{each:.3f}" for each in value)
    if not isinstance(value, float):
        return str(value)
    if name.endswith("bandwidth"):
        return f"{value / 1e9:.3g} GB/s" if value < 1e14 else "too fast to be seen"
    if name.endswith("latency") or name.endswith("seconds"):
        return f"{1e6 * value:.3g} us"
    return f"{value:.3g}"
