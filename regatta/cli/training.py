"""Train, simulate, replay."""

from __future__ import annotations

import json
import os
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
    sharing,
    warn_of_crowding,
)  # fmt: skip

if TYPE_CHECKING:
    from regatta.config import Run


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
    silence: Silence = None,
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
    from regatta import folders, runs
    from regatta.resolve import resolve, resumed_plan, with_workers
    from regatta.worlds.processes import environment_rank

    place, settings = environment_rank(), dying(on_death, restarts, settings, silence)
    if resume:
        if seed is not None or device is not None or threads is not None:
            raise ValueError("a run goes on as it began: leave --seed, --device, --threads out")
        if source is not None:
            raise ValueError("a run goes on with its own weights: leave --from out")
        plan = resumed_plan(recipe, out_folder, strategy, workers, settings, target)
    else:
        chosen = beginning_with(source, settings)
        run = resolve(recipe, strategy, chosen, target, seed, device, threads)
        if workers is None and place is not None:
            workers = place[1] - run.strategy.num_servers
        run = with_workers(run, workers, settings)
        plan = folders.Plan(recipe, run, folders.new_folder(out_folder, recipe, run))
        if place is None:
            folders.refuse_if_taken(plan.folder)  # before anything is made for it
    speaks = (place is None or place[0] == 0) and not as_json
    if speaks:
        warn_of_crowding(plan.run)
    prepare([plan.run], speaks)
    display = display_of(plan.run, speaks)
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
    oversubscribe: Oversubscribe = False,
    explain: Annotated[
        bool, typer.Option("--explain", help="what the clock charged: formulas, inputs, sources")
    ] = False,
    settings: Settings = None,
    target: Target = None,
    seed: Seed = None,
    source: From = None,
    on_death: OnDeath = None,
    restarts: Restarts = None,
    out_folder: Out = None,
    threads: Threads = None,
    as_json: AsJson = False,
) -> None:
    """Train under a virtual clock: the real mathematics, as many workers as you like."""
    from regatta import folders, runs
    from regatta.resolve import resolve, with_workers

    settings = dying(on_death, restarts, settings)
    chosen = sharing(oversubscribe, beginning_with(source, settings))
    run = resolve(recipe, strategy, chosen, target, seed, None, threads, cluster)
    run = with_workers(run, workers, settings)
    plan = folders.Plan(recipe, run, folders.new_folder(out_folder, recipe, run))
    folders.refuse_if_taken(plan.folder)
    prepare([run], not as_json)
    display = display_of(run, not as_json)
    try:
        runs.simulate(run, plan, timing_only, display or runs.ignore)
    finally:
        if display is not None:
            display.close()
    _print_summary(plan.events, plan.folder, as_json)
    if explain and not as_json:
        _explain(run, cluster)


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


def _explain(run: Run, cluster: str | None) -> None:
    from regatta.cluster.explain import Job, explained, sources_in
    from regatta.learn.layout import num_vector_bytes
    from regatta.resolve import cluster_text

    hosts = len(set(run.cluster.hosts(run.workers)))
    nbytes = num_vector_bytes(run.task.model())
    sources = sources_in(cluster_text(cluster)) if cluster else {}
    out.print("What the clock charged; who waits for whom is simulated:", markup=False)
    for line in explained(run.cluster, Job(run.workers, hosts, run.minibatch, nbytes), sources):
        out.print(line, markup=False, soft_wrap=True)


def _print_summary(events: Path, folder: Path, as_json: bool) -> None:
    from regatta.display import summary_lines
    from regatta.events import read
    from regatta.metrics import summarise

    summary = summarise(read(events))
    if as_json:
        print(json.dumps(asdict(summary) | {"folder": str(folder)}))
        return
    for line in summary_lines(summary):
        out.print(line, soft_wrap=True, markup=False)
    out.print(f"kept in {folder}")
