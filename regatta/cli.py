"""The command line. Every command calls one function; errors say what to do instead.

Nothing heavy is imported before a command needs it: `regatta --help` must answer at once.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

if TYPE_CHECKING:
    from regatta.config import Run

app = typer.Typer(
    help="Train a network on many workers under any published strategy, "
    "and learn which one gets there first.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
out = Console(highlight=False)
err = Console(stderr=True, highlight=False)
_PIPE_WIDTH = 110  # of wide tables, where there is no terminal that they must fit

Recipe = Annotated[str, typer.Argument(help="a shipped recipe, or FILE.py:FUNCTION")]
StrategyOption = Annotated[
    str | None, typer.Option("--strategy", "-s", help="name or name:option=value,...")
]
Workers = Annotated[int | None, typer.Option("--workers", "-n", help="how many workers")]
Settings = Annotated[
    list[str] | None, typer.Option("--set", help="any field of the run: stop.epochs=3")
]
Out = Annotated[Path | None, typer.Option("--out", "-o", help="the folder to write to")]
Seed = Annotated[int | None, typer.Option("--seed", help="draws weights and data order")]
Target = Annotated[float | None, typer.Option("--target", help="stop when the metric reaches it")]
Threads = Annotated[int | None, typer.Option("--threads", help="computing threads a rank")]
Device = Annotated[str | None, typer.Option("--device", help="cpu or cuda")]
AsJson = Annotated[bool, typer.Option("--json", help="print one JSON object, nothing else")]
ClusterOption = Annotated[
    str | None, typer.Option("--cluster", help="a shipped cluster, or a .toml or .json file")
]


@app.command()
def train(
    recipe: Recipe,
    strategy: StrategyOption = None,
    workers: Workers = None,
    settings: Settings = None,
    target: Target = None,
    seed: Seed = None,
    out_folder: Out = None,
    resume: Annotated[bool, typer.Option("--resume", help="go on with the run in --out")] = False,
    device: Device = None,
    threads: Threads = None,
    as_json: AsJson = False,
) -> None:
    """Train on processes of this machine, or as a rank that torchrun started."""
    from regatta.worlds import warm_up

    if "RANK" not in os.environ:
        warm_up()  # while this process imports PyTorch for its own part
    from regatta import runs
    from regatta.resolve import resolve, resumed_plan, with_workers
    from regatta.worlds.processes import environment_rank

    place = environment_rank()
    if resume:
        if seed is not None or device is not None or threads is not None:
            raise ValueError("a run goes on as it began: leave --seed, --device, --threads out")
        plan = resumed_plan(recipe, out_folder, strategy, workers, settings, target)
    else:
        run = resolve(recipe, strategy, settings, target, seed, device, threads)
        if workers is None and place is not None:
            workers = place[1] - run.strategy.num_servers
        run = with_workers(run, workers, settings)
        plan = runs.Plan(recipe, run, runs.new_folder(out_folder, recipe, run))
    speaks = (place is None or place[0] == 0) and not as_json
    if speaks:
        _warn_of_crowding(plan.run)
    display = _display(plan.run, speaks)
    try:
        runs.train(plan, resume, display or runs.ignore)
    except RuntimeError:
        if speaks and any(plan.checkpoints.glob("[0-9]*")):
            again = f"regatta train {recipe} --out {plan.folder} --resume"
            err.print(f"kept up to the last checkpoint; go on with: {again}", soft_wrap=True)
        raise
    finally:
        if display is not None:
            display.close()
    if place is None or place[0] == 0:
        _print_summary(plan.events, plan.folder, as_json)


@app.command()
def simulate(
    recipe: Recipe,
    strategy: StrategyOption = None,
    workers: Workers = None,
    cluster: ClusterOption = None,
    timing_only: Annotated[
        bool, typer.Option("--timing-only", help="charge the clock, learn nothing")
    ] = False,
    settings: Settings = None,
    target: Target = None,
    seed: Seed = None,
    out_folder: Out = None,
    threads: Threads = None,
    as_json: AsJson = False,
) -> None:
    """Train under a virtual clock: the real mathematics, as many workers as you like."""
    from regatta import runs
    from regatta.resolve import resolve, with_workers

    run = resolve(recipe, strategy, settings, target, seed, None, threads, cluster)
    run = with_workers(run, workers, settings)
    plan = runs.Plan(recipe, run, runs.new_folder(out_folder, recipe, run))
    display = _display(run, not as_json)
    try:
        runs.simulate(run, plan, timing_only, display or runs.ignore)
    finally:
        if display is not None:
            display.close()
    _print_summary(plan.events, plan.folder, as_json)


@app.command()
def replay(
    folder: Annotated[Path, typer.Argument(metavar="RUN", help="the folder of a run")],
    as_json: AsJson = False,
) -> None:
    """Run a recorded run again, bit for bit, and compare the weights."""
    from regatta import runs

    result = runs.replay(folder)
    if as_json:
        print(json.dumps(asdict(result) | {"identical": result.identical}))
    else:
        table = Table("rank", "recorded", "replayed", "")
        for rank, digest in sorted(result.recorded.items()):
            again = result.replayed.get(rank, "")
            table.add_row(str(rank), digest, again, "same" if digest == again else "DIFFERENT")
        out.print(table)
        for difference in result.differences:
            out.print(f"note: {difference}")
        out.print("identical" if result.identical else "different")
    if not result.identical:
        raise typer.Exit(1)


@app.command()
def race(
    recipe: Recipe,
    strategies: Annotated[
        str | None, typer.Option("--strategies", help="separated by spaces or ; (default: all)")
    ] = None,
    workers: Annotated[int, typer.Option("--workers", "-n", help="of each but single")] = 2,
    target: Target = None,
    simulated: Annotated[bool, typer.Option("--simulate", help="under a virtual clock")] = False,
    cluster: ClusterOption = None,
    settings: Settings = None,
    seed: Seed = None,
    out_folder: Out = None,
    threads: Threads = None,
    as_json: AsJson = False,
) -> None:
    """Race several strategies to one target: a table and a verdict."""
    from regatta.worlds import warm_up

    if not simulated:
        warm_up()
    from regatta import race as racing
    from regatta import runs
    from regatta.display import race_table
    from regatta.resolve import resolve, split_specs

    run = resolve(recipe, None, settings, None, seed, None, threads, cluster)
    target = run.stop.target if target is None else target
    specs = split_specs(strategies) if strategies else racing.all_specs(run, workers)
    entries = racing.lanes(run, specs, workers, target)
    folder = out_folder or runs.next_free(Path("races"), Path(recipe.partition(":")[0]).stem)
    runs.make_folder(folder)
    if not as_json and not simulated:
        _warn_of_crowding(max((lane.run for lane in entries), key=lambda r: r.num_ranks))

    displays: list[Any] = []

    def announce(lane: Any) -> Callable[[list[Any]], None]:
        if as_json:
            return runs.ignore
        out.print(f"[bold]{lane.spec}[/bold], {_count(lane.run.workers, 'worker')}")
        displays.append(_display(lane.run, True))
        return displays[-1]  # type: ignore[no-any-return]

    try:
        finishes = racing.race(recipe, entries, folder, simulated, announce)
    finally:
        for display in displays:
            display.close()
    if as_json:
        print((folder / "race.json").read_text())
        return
    out.print()
    out.print(race_table(finishes))
    out.print(f"Runs and race.json: {folder}")
    out.print(f"[bold]{racing.verdict(finishes)}[/bold]", soft_wrap=True)


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

    show = out.print if out.is_terminal else partial(out.print, width=_PIPE_WIDTH, crop=False)
    results = benchmarks.run(name, pairs, None if as_json else show, keep)
    if as_json:
        print(json.dumps(benchmarks.tracked(results, pairs)))
    if check and not all(result.holds for result in results):
        raise typer.Exit(1)


def _print_strategy(row: dict[str, Any]) -> None:
    out.print(f"[bold]{row['name']}[/bold]: {row['summary']}")
    if row["source"]:
        out.print(f"Source: {row['source']}")
    if not row["options"]:
        return
    table = Table("option", "default", "meaning", box=SIMPLE_HEAD, show_edge=False)
    for option, default in row["options"].items():
        table.add_row(option, str(default).lower(), row["notes"].get(option, ""))
    out.print(table)


# -- what is said ----------------------------------------------------------------------------


def _display(run: Run, speaks: bool) -> Any:
    from regatta.display import Display

    title = f"{run.strategy.name} on {_count(run.workers, 'worker')}"
    return Display(out, title, run.stop.epochs) if speaks else None


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" + ("" if number == 1 else "s")


def _warn_of_crowding(run: Run) -> None:
    affinity = getattr(os, "sched_getaffinity", None)
    cores = len(affinity(0)) if affinity else os.cpu_count() or 1
    if run.device == "cpu" and run.num_ranks * run.threads > cores:
        err.print(
            f"[yellow]note:[/yellow] {run.strategy.name} has {run.num_ranks} ranks of "
            f"{_count(run.threads, 'thread')} on {_count(cores, 'core')}: they share, "
            "and times say less about a bigger machine"
        )


def _print_summary(events: Path, folder: Path, as_json: bool) -> None:
    from regatta.display import summary_lines
    from regatta.events import read
    from regatta.metrics import summarise

    summary = summarise(read(events))
    if as_json:
        print(json.dumps(asdict(summary) | {"folder": str(folder)}))
        return
    for line in summary_lines(summary):
        out.print(line, soft_wrap=True)
    out.print(f"kept in {folder}")


def main() -> None:
    """Run a command; 0 done, 1 failed, 2 wrong usage."""
    try:
        app()
    except ValueError as error:
        _fail(str(error), 1 if type(error).__name__ == "BadCheckpoint" else 2)
    except RuntimeError as error:
        if type(error).__name__ not in ("RankFailed", "WorldFailed", "Deadlock"):
            raise
        if account := getattr(error, "account", ""):
            err.print(account, markup=False, soft_wrap=True)
        _fail(str(error), 1)
    except KeyboardInterrupt:
        _fail("interrupted", 1)


def _fail(message: str, code: int) -> None:
    err.print(f"[red]regatta:[/red] {message}".replace("\n", " "), soft_wrap=True)
    # Not sys.exit: gloo's threads may wait for ranks that are gone.
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)
