"""What there is: strategies, recipes, benchmarks."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.box import SIMPLE_HEAD
from rich.table import Table

from regatta.cli.common import AsJson, app, for_tables, out

if TYPE_CHECKING:
    from regatta.cluster.described import Host
    from regatta.strategies import Strategy

_FATES = {
    "go on": "the others go on, and what it has left to do is dealt out to them",
    "stop": "the run stops; --resume goes on from the last checkpoint",
    "restart": "all ranks begin again from the last checkpoint",
    "shrink": "the others begin again from the last checkpoint",
}


_ROLES = {"worker": "a worker", "server": "a server", "holder": "the worker with the answer"}


def _fates_by_mode(kind: type[Strategy]) -> dict[str, dict[str, tuple[str, ...]]]:
    """Choices by role, as usual and with those options that change them."""
    from regatta.config import component

    told: dict[str, dict[str, tuple[str, ...]]] = {}
    for mode in kind.modes:
        made = component("strategy", f"{kind.name}:{mode}" if mode else kind.name)
        fates = {role: fate.choices for role, fate in made.fates.items()}
        parts = [known for known in told if _options_of(known) <= _options_of(mode)]
        nearest = [a for a in parts if not any(_options_of(a) < _options_of(b) for b in parts)]
        if all(told[known] != fates for known in nearest):
            told[mode] = fates
    return told


def _options_of(mode: str) -> frozenset[str]:
    """Any number is as good as another."""
    return frozenset(re.sub(r"=[\d.]+$", "=N", option) for option in mode.split(",") if option)


@app.command()
def strategies(
    name: Annotated[str | None, typer.Argument(help="one of them, with its options")] = None,
    as_json: AsJson = False,
) -> None:
    """The strategies, their options and where they come from."""
    from regatta.config import nearest, option_notes, options
    from regatta.strategies import registry

    if name is not None and name not in registry():
        raise ValueError(nearest(name, list(registry()), "strategy"))
    rows: list[dict[str, Any]] = [
        {
            "name": kind.name,
            "summary": (kind.__doc__ or "").split("\n")[0],
            "options": options(kind),
            "answer": kind().answer,
            "servers": kind().num_servers,
            "deterministic": kind().deterministic,
            "source": kind.source,
            "fates": _fates_by_mode(kind),
            "notes": option_notes(kind),
        }
        for kind in (registry().values() if name is None else [registry()[name]])
    ]
    if as_json:
        print(json.dumps(rows))
        return
    if name is not None:
        _print_strategy(rows[0])
        return
    table = Table(show_lines=True)
    table.add_column("strategy", no_wrap=True)
    for heading in ("what it does", "options", "answer", "order"):
        table.add_column(heading)
    for row in rows:
        given = ", ".join(f"{k}={v}" for k, v in row["options"].items())
        order = "fixed" if row["deterministic"] else "by arrival"
        table.add_row(row["name"], row["summary"], given, row["answer"], order)
    out.print(table)
    out.print("Options are written name:option=value,... as in averaging:period=16")
    out.print("What an option means: regatta strategies NAME")


@app.command()
def recipes(as_json: AsJson = False) -> None:
    """The recipes that come with Regatta."""
    from regatta.recipes import SHIPPED, summary

    rows = {name: summary(recipe) for name, recipe in SHIPPED.items()}
    if as_json:
        print(json.dumps(rows))
        return
    table = Table("recipe", "what it trains")
    for name, text in rows.items():
        table.add_row(name, text)
    out.print(table)
    out.print("Your own: a function that returns a regatta.Run, named FILE.py:FUNCTION")


@app.command()
def clusters(
    name: Annotated[str | None, typer.Argument(help="one of them, or a file: its text")] = None,
    as_json: AsJson = False,
) -> None:
    """The clusters that simulation can charge by, and where their figures come from."""
    from dataclasses import asdict, fields

    from regatta.cluster import machines
    from regatta.cluster.files import cluster_text, known_clusters, load_cluster
    from regatta.cluster.probe import toml_value

    files, known = machines.described(), known_clusters()
    if as_json:
        chosen = known if name is None else [name]
        print(json.dumps({each: asdict(load_cluster(each)) for each in chosen}))
        return
    if name is not None:
        cluster = load_cluster(name)
        text = cluster_text(name) or "".join(
            f"{field.name} = {toml_value(getattr(cluster, field.name))}\n"
            for field in fields(cluster)
            if field.name != "described"
        )
        out.print(text.rstrip(), markup=False, soft_wrap=True)
        if cluster.described:
            places = " ".join(map(_places, cluster.described.hosts))
            out.print(f"# Places: {places}", markup=False, soft_wrap=True)
        return
    table = Table("cluster", "what it is")
    for each in known:
        cluster = load_cluster(each)
        wires = f"hosts of one worker, {8e-9 * cluster.bandwidth:g} Gbit/s"
        table.add_row(each, files[each].split("\n")[0].lstrip("# ") if each in files else wires)
    out.print(table)
    out.print(
        "Values and their sources: regatta clusters NAME. Your own: a .toml, .yaml or .json file, "
        "a network of ASTRA-sim, a hostfile"
    )


def _places(host: Host) -> str:
    """Of all that are alike: old-0..3/0..7."""
    name = host.name + (f"-0..{host.count - 1}" if host.count > 1 else "")
    last = len(host.devices) - 1
    return name + (f"/0..{last}" if last > 0 else "/0" if last == 0 else "")


@app.command()
def bench(
    name: Annotated[str, typer.Argument(help="a benchmark, or all")] = "all",
    check: Annotated[bool, typer.Option("--check", help="exit 1 below the bar")] = False,
    pairs: Annotated[int, typer.Option("--pairs", help="interleaved repetitions")] = 15,
    file: Annotated[
        Path | None, typer.Option("--out", "-o", help="write the results there as JSON, too")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Measure Regatta against peers and limits, both in the same run."""
    if file is not None and not file.resolve().parent.is_dir():
        raise ValueError(f"cannot write to {file}: there is no folder {file.parent}")
    from regatta import benchmarks

    def keep(results: list[Any]) -> None:  # of what takes long, nothing is lost at the end
        if file is not None:
            file.write_text(json.dumps(benchmarks.tracked(results, pairs), indent=1) + "\n")

    show = for_tables().print
    results = benchmarks.run(name, pairs, None if as_json else show, keep)
    if as_json:
        print(json.dumps(benchmarks.tracked(results, pairs)))
    if check and not all(result.holds for result in results):
        raise typer.Exit(1)


def _print_strategy(row: dict[str, Any]) -> None:
    out.print(f"[bold]{row['name']}[/bold]: {row['summary']}")
    if row["source"]:
        out.print(f"Source: {row['source']}")
    for mode, fates in row["fates"].items():
        for role, (usual, *others) in fates.items():
            instead = f" (--on-death {', '.join(others)})" if others else ""
            when = f"With {mode}, when" if mode else "When"
            out.print(f"{when} {_ROLES[role]} dies: {_FATES[usual]}{instead}")
    if not row["options"]:
        return
    table = Table("option", "default", "meaning", box=SIMPLE_HEAD, show_edge=False)
    for option, default in row["options"].items():
        table.add_row(option, str(default).lower(), row["notes"].get(option, ""))
    out.print(table)
