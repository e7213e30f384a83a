"""Race strategies to one target."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from regatta.cli.common import (
    AsJson,
    From,
    Out,
    Oversubscribe,
    Recipe,
    Seed,
    Target,
    Threads,
    app,
    beginning_with,
    err,
    for_tables,
    out,
    prepare,
    say_how_long,
    say_what_was_not_read,
    sharing,
    warn_of_crowding,
)  # fmt: skip
from regatta.cli.explaining import Explain, explain_race

if TYPE_CHECKING:
    from regatta.race.entries import Race

_SEEDS = 5  # fewer seldom tell anything apart
_REHEARSED = 8  # lanes, of which it is estimated how long a simulated race takes


@app.command()
def race(
    recipe: Recipe,
    strategies: Annotated[
        str | None, typer.Option("--strategies", help="separated by spaces or ; (default: all)")
    ] = None,
    workers: Annotated[
        str | None, typer.Option("--workers", "-n", help="of each but single (2); several: 1,2,4")
    ] = None,
    minibatches: Annotated[
        str | None, typer.Option("--minibatch", help="samples a worker and turn; several: 64,256")
    ] = None,
    seeds: Annotated[
        int | None, typer.Option("--seeds", help="runs of each, from --seed on (5)")
    ] = None,
    target: Target = None,
    last: Annotated[
        int | None, typer.Option("--last", help="evaluations whose median must reach it (1)")
    ] = None,
    tune: Annotated[
        int | None, typer.Option("--tune", help="learning rates to try for each (the recipe's)")
    ] = None,
    simulated: Annotated[bool, typer.Option("--simulate", help="under a virtual clock")] = False,
    both: Annotated[
        bool, typer.Option("--both", help="on processes and simulated, side by side")
    ] = False,
    cluster: Annotated[
        str | None, typer.Option("--cluster", help="to simulate on; several: a,b.toml")
    ] = None,
    oversubscribe: Oversubscribe = False,
    explain: Explain = False,
    price: Annotated[
        float | None, typer.Option("--price", help="of a host, an hour, in any currency")
    ] = None,
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", help="any field of the run; several values: optimiser.lr=0.1,0.3"),
    ] = None,
    seed: Seed = None,
    source: From = None,
    out_folder: Out = None,
    resume: Annotated[bool, typer.Option("--resume", help="go on with the race in --out")] = False,
    threads: Threads = None,
    as_json: AsJson = False,
) -> None:
    """Race several strategies to one target: a table, a verdict and a report."""
    _warm_up(simulated)
    chosen = sharing(oversubscribe, beginning_with(source, settings))
    given = [*chosen, *_as_settings(price, threads)]
    worlds = _worlds(simulated, both, cluster, explain and not resume)
    asked = (strategies, workers, minibatches, seeds, seed, target, last, tune)
    if resume:
        _refuse_options(*asked, *given, cluster, simulated, both)
        entered, folder = _there(recipe, out_folder)
    else:
        entered = _entered(recipe, given, worlds, _clusters(cluster), *asked)
        folder = out_folder or _next_folder(recipe)
    _run(entered, folder, resume, as_json)
    _show(folder, as_json, entered if explain else None)


def _warm_up(simulated: bool) -> None:
    from regatta.worlds import warm_up

    if not simulated:
        warm_up()


def _run(entered: Race, folder: Path, resume: bool, silent: bool) -> None:
    from regatta.aside import CannotWrite
    from regatta.display import Commentary
    from regatta.lock import held
    from regatta.race.course import enter, run_all

    prepare((entered.run(lane, entered.seeds[0]) for lane in entered.lanes), not silent)
    again = f"regatta race {entered.recipe} --out {folder} --resume"
    commentary = Commentary(out, silent)
    try:
        with held(folder):
            if not resume:
                enter(entered, folder, shlex.join(["regatta", *sys.argv[1:]]))
            if not silent:
                _say_what_to_expect(entered, folder)
            run_all(entered, folder, commentary)
    except KeyboardInterrupt:
        err.print(f"stopped; go on with: {again}", soft_wrap=True)
        raise
    except CannotWrite as error:
        then = f"make room there, then go on with: {again}"
        raise CannotWrite(error.errno, f"{error}: {then}") from None
    finally:
        commentary.close()


def _say_what_to_expect(entered: Race, folder: Path) -> None:
    """That ranks share cores; how long is simulated, where of a grid some lanes stand for all."""
    from regatta.race.course import left
    from regatta.race.entries import PROCESSES, VIRTUAL

    real = [lane for lane in entered.lanes if lane.world == PROCESSES]
    if real:
        runs = (entered.run(lane, entered.seeds[0]) for lane in real)
        warn_of_crowding(max(runs, key=lambda run: run.num_ranks))
    simulated = [
        lane for some in left(entered, folder) for lane, _ in some if lane.world == VIRTUAL
    ]
    lanes = list(dict.fromkeys(simulated))
    some = lanes[:: -(-len(lanes) // _REHEARSED) or 1]
    if some:
        each = [entered.run(lane, entered.seeds[0]) for lane in some]
        say_how_long(each, len(simulated) / len(some))


def _there(recipe: str, folder: Path | None) -> tuple[Race, Path]:
    from regatta.race.entries import declared
    from regatta.recipes import absolute

    if folder is None:
        raise ValueError("--resume needs --out: the folder of the race to go on with")
    entered, _ = declared(folder)
    if entered.recipe != absolute(recipe):
        raise ValueError(f"{folder} races recipe {entered.recipe}, not {recipe}")
    return entered, folder


def _refuse_options(*given: object) -> None:
    if any(option is not None and option is not False for option in given):
        raise ValueError("a race goes on as it began: with --resume leave out all but --out")


def _next_folder(recipe: str) -> Path:
    from regatta.folders import next_free

    return next_free(Path("races"), Path(recipe.partition(":")[0]).stem)


def _show(folder: Path, as_json: bool, explained: Race | None = None) -> None:
    """The table, the verdict, where the report is, and what was charged."""
    from regatta.display import race_table, shown
    from regatta.race.outcome import of_race
    from regatta.race.verdict import verdict
    from regatta.report.combinations import combinations, families
    from regatta.report.files import write_html
    from regatta.report.forms import as_json as all_as_json
    from regatta.report.nodes import accuracies, throughputs
    from regatta.report.tables import predictions
    from regatta.report.tta import tta_beyond_target

    outcome = of_race(folder)
    report = write_html(outcome, folder / "report.html")
    if as_json:
        print(all_as_json(outcome))
        return
    kinds = combinations, families, throughputs, accuracies, tta_beyond_target, predictions
    tables = [table for make in kinds if (table := make(outcome)) is not None]
    for each in (race_table(outcome), *map(shown, tables)):
        out.print()
        for_tables().print(each)
    say_what_was_not_read(outcome.complaints)
    out.print(verdict(outcome), style="bold", markup=False, soft_wrap=True)
    out.print(f"Report: {report}", markup=False, soft_wrap=True)
    if explained is not None:
        explain_race(explained)


def _entered(
    recipe: str, settings: list[str], worlds: list[str], clusters: list[str],
    strategies: str | None, workers: str | None, minibatches: str | None,
    seeds: int | None, seed: int | None, target: float | None, last: int | None, tune: int | None,
) -> Race:  # fmt: skip
    from regatta.race.entries import Race, all_specs, lanes_of
    from regatta.race.grid import grid_of
    from regatta.recipes import absolute, load
    from regatta.resolve import split_specs
    from regatta.start import as_settings, pinned

    grid = grid_of(load(recipe), settings)
    runs = grid.runs(load(recipe))
    run, counts = runs[0], _numbers(workers or "2", "--workers")
    able = [] if strategies else [all_specs(each, counts) for each in runs]
    specs = (
        split_specs(strategies) if strategies
        else [spec for spec in able[0] if all(spec in each for each in able)]
    )  # fmt: skip
    lanes = lanes_of(
        run, specs, counts, _numbers(minibatches, "--minibatch"), worlds, clusters,
        grid.combinations,
    )  # fmt: skip
    first, number = seed or 0, _SEEDS if seeds is None else seeds
    drawn = tuple(range(first, first + number))
    goal = run.stop.target if target is None else target
    lasting = run.stop.last if last is None else last
    for_all = (*grid.settings, *as_settings(pinned(run).start))
    return Race(absolute(recipe), lanes, drawn, goal, lasting, tune or 0, for_all)


def _worlds(simulated: bool, both: bool, cluster: str | None, explain: bool) -> list[str]:
    from regatta.race.entries import PROCESSES, VIRTUAL

    if both:
        return [PROCESSES, VIRTUAL]
    if cluster is not None and not simulated:
        raise ValueError("--cluster is for --simulate or --both: processes run on this machine")
    if explain and not simulated:
        raise ValueError("--explain is for --simulate or --both: processes are not charged")
    return [VIRTUAL if simulated else PROCESSES]


def _as_settings(price: float | None, threads: int | None) -> list[str]:
    given: dict[str, Any] = {"cluster.price_per_hour": price, "threads": threads}
    return [f"{name}={value}" for name, value in given.items() if value is not None]


def _clusters(text: str | None) -> list[str]:
    """Files by their whole path: a race may go on from another folder."""
    return [str(Path(n).resolve()) if Path(n).suffix else n for n in _names(text)]


def _names(text: str | None) -> list[str]:
    return [name.strip() for name in (text or "").split(",") if name.strip()]


def _numbers(text: str | None, option: str) -> list[int]:
    try:
        return [int(word) for word in _names(text)]
    except ValueError:
        raise ValueError(f"{option} {text!r}: numbers, separated by commas") from None
