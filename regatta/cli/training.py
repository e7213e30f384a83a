"""Train, simulate, replay."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table

from regatta.cli.common import (
    AsJson,
    ClusterOption,
    Device,
    From,
    OnDeath,
    Out,
    Oversubscribe,
    Recipe,
    Rejoin,
    Restarts,
    Seed,
    Settings,
    Silence,
    StrategyOption,
    Target,
    Threads,
    Workers,
    app,
    beginning_with,
    display_of,
    dying,
    err,
    out,
    prepare,
    say_how_long,
    say_note,
    say_what_was_not_read,
    sharing,
    warn_of_crowding,
)  # fmt: skip
from regatta.cli.explaining import Explain, explain_run, sources_of

if TYPE_CHECKING:
    from regatta.folders import Plan
    from regatta.resuming import Resume
    from regatta.worlds.leaving import Notice


Resumes = Annotated[bool, typer.Option("--resume", help="go on with the run in --out")]
Resumable = Annotated[
    bool, typer.Option("--resumable", help="go on with the run in --out, or begin it")
]
Master = Annotated[
    str | None, typer.Option("--master", metavar="HOST[:PORT]", help="where started ranks meet")
]
Interface = Annotated[
    str | None, typer.Option("--interface", help="to the other hosts: eth0 (found out)")
]


@app.command()
def train(
    recipe: Recipe,
    strategy: StrategyOption = None,
    workers: Workers = None,
    settings: Settings = None,
    target: Target = None,
    seed: Seed = None,
    source: From = None,
    on_death: OnDeath = None,
    restarts: Restarts = None,
    rejoin: Rejoin = False,
    silence: Silence = None,
    out_folder: Out = None,
    resume: Resumes = False,
    resumable: Resumable = False,
    master: Master = None,
    interface: Interface = None,
    device: Device = None,
    threads: Threads = None,
    as_json: AsJson = False,
) -> None:
    """Train on processes of this machine, or as a rank that torchrun, srun or mpirun started."""
    from regatta.worlds import started, warm_up
    from regatta.worlds.leaving import Notice

    leaving = Notice().listen()
    started.let_meet(master, interface)
    place = started.place()
    if place is None:
        warm_up()  # while this process imports PyTorch for its own part
    from regatta import folders, lock
    from regatta.resolve import resolve, resumed_plan, with_workers

    settings = dying(on_death, restarts, settings, rejoin, silence)
    how = _how_to_begin(resume, resumable, out_folder)
    if resume:
        if seed is not None or device is not None or threads is not None:
            raise ValueError("a run goes on as it began: leave --seed, --device, --threads out")
        if source is not None:
            raise ValueError("a run goes on with its own weights: leave --from out")
        plan = resumed_plan(recipe, out_folder, strategy, workers, settings, target)
        lock.refuse_if_held(plan.folder)
    else:
        chosen = beginning_with(source, settings)
        ranks = None if place is None else place.size
        run = resolve(
            recipe, strategy, chosen, target, seed, device, threads, workers=workers, ranks=ranks
        )
        if workers is None and ranks is not None:
            workers = ranks - run.strategy.num_servers  # which a setting may have changed
        run = with_workers(run, workers, settings)
        plan = folders.Plan(recipe, run, folders.new_folder(out_folder, recipe, run))
        if place is None:  # before anything is made for it
            lock.refuse_if_held(plan.folder)
            if not resumable:
                folders.refuse_if_taken(plan.folder)
    _train(plan, how, leaving, place is None or place.rank == 0, as_json)


def _how_to_begin(resume: bool, resumable: bool, folder: Path | None) -> Resume:
    from regatta.resuming import Resume

    if resume and resumable:
        raise ValueError("--resumable begins a run or goes on with it: leave --resume out")
    if resumable and folder is None:
        raise ValueError("--resumable needs --out: a folder that is the same every time")
    return Resume.IF_ANY if resumable else Resume(resume)


def _train(plan: Plan, how: Resume, leaving: Notice, is_first: bool, as_json: bool) -> None:
    """Of several processes the first one speaks."""
    from regatta import runs
    from regatta.aside import CannotWrite
    from regatta.worlds.leaving import EXIT_CODE

    speaks = is_first and not as_json
    if speaks:
        warn_of_crowding(plan.run)
    prepare([plan.run], speaks)
    display = display_of(plan.run, speaks)
    again = f"regatta train {plan.recipe} --out {plan.folder} --resume"
    try:
        ended = runs.train(plan, how, display or runs.ignore, leaving, say_note)
    except RuntimeError:
        if speaks and any(plan.checkpoints.glob("[0-9]*")):
            err.print(f"kept up to the last checkpoint; go on with: {again}", soft_wrap=True)
        raise
    except CannotWrite as error:
        is_kept = any(plan.checkpoints.glob("[0-9]*"))
        then = f"go on with: {again}" if is_kept else f"delete {plan.folder} and begin anew"
        raise CannotWrite(error.errno, f"{error}: make room there, then {then}") from None
    finally:
        if display is not None:
            display.close()
    if is_first:
        _print_summary(plan.events, plan.folder, as_json)
    if any(rank.preempted for rank in ended):
        if speaks:
            err.print(f"had to leave and has saved; go on with: {again}", soft_wrap=True)
        raise typer.Exit(EXIT_CODE)


@app.command()
def simulate(
    recipe: Recipe,
    strategy: StrategyOption = None,
    workers: Workers = None,
    cluster: ClusterOption = None,
    timing_only: Annotated[
        bool, typer.Option("--timing-only", help="charge the clock, learn nothing")
    ] = False,
    oversubscribe: Oversubscribe = False,
    explain: Explain = False,
    settings: Settings = None,
    target: Target = None,
    seed: Seed = None,
    source: From = None,
    on_death: OnDeath = None,
    restarts: Restarts = None,
    rejoin: Rejoin = False,
    out_folder: Out = None,
    threads: Threads = None,
    as_json: AsJson = False,
) -> None:
    """Train under a virtual clock: the real mathematics, as many workers as you like."""
    from regatta import folders, lock, runs
    from regatta.aside import CannotWrite
    from regatta.resolve import resolve, with_workers

    settings = dying(on_death, restarts, settings, rejoin)
    chosen = sharing(oversubscribe, beginning_with(source, settings))
    run = resolve(recipe, strategy, chosen, target, seed, None, threads, cluster, workers)
    run = with_workers(run, workers, settings)
    plan = folders.Plan(recipe, run, folders.new_folder(out_folder, recipe, run))
    lock.refuse_if_held(plan.folder)
    folders.refuse_if_taken(plan.folder)
    prepare([run], not as_json)
    if not as_json:
        say_how_long([run], timing_only=timing_only)
    display = display_of(run, not as_json)
    try:
        runs.simulate(run, plan, timing_only, display or runs.ignore)
    except CannotWrite as error:
        then = f"delete {plan.folder} and simulate again"
        raise CannotWrite(error.errno, f"{error}: make room there, then {then}") from None
    finally:
        if display is not None:
            display.close()
    _print_summary(plan.events, plan.folder, as_json)
    if explain and not as_json:
        explain_run(run, sources_of(cluster))


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


def _print_summary(events: Path, folder: Path, as_json: bool) -> None:
    from regatta.display import summary_lines
    from regatta.events import read_what_there_is
    from regatta.metrics import summarise

    log = read_what_there_is(events)
    say_what_was_not_read(log.complaints)
    summary = summarise(log.events)
    if as_json:
        print(json.dumps(asdict(summary) | {"folder": str(folder)}))
        return
    for line in summary_lines(summary):
        out.print(line, soft_wrap=True, markup=False)
    out.print(f"kept in {folder}")
