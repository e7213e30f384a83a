"""Start the ranks of a run by Slurm, or on a list of hosts."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import Annotated

import typer

from regatta.cli.common import app, err, say_note

launch = typer.Typer(no_args_is_help=True, help="Start ranks elsewhere: by Slurm, or over ssh.")
app.add_typer(launch, name="launch")

Words = Annotated[
    list[str], typer.Argument(metavar="-- train ...", help="the command that each rank runs")
]


@launch.command()
def hosts(
    where: Annotated[str, typer.Argument(metavar="HOSTS", help="a host file, or a:4,b:2")],
    words: Words,
    master: Annotated[
        str | None, typer.Option("--master", metavar="HOST[:PORT]", help="where ranks meet")
    ] = None,
    folder: Annotated[
        Path | None, typer.Option("--folder", help="to work in, on every host (this one)")
    ] = None,
    ssh: Annotated[str | None, typer.Option("--ssh", help="instead of ssh: 'ssh -p 2222'")] = None,
    python: Annotated[str | None, typer.Option("--python", help="on every host (this one)")] = None,
    variables: Annotated[
        list[str] | None, typer.Option("--env", help="NAME, or NAME=VALUE, for every rank")
    ] = None,
    restarts: Annotated[
        int, typer.Option("--restarts", help="how often all may begin again when a host has failed")
    ] = 0,
    only_print: Annotated[bool, typer.Option("--print", help="what would be started")] = False,
) -> None:
    """Start a run on a list of hosts over ssh; the first host has rank 0."""
    from regatta.launching.hosts import SSH, Fleet, HostFailed, read_slots, run_until_done
    from regatta.worlds.leaving import Notice
    from regatta.worlds.started import address_and_port

    leaving = Notice().listen()
    address, port = address_and_port(master or "")
    fleet = Fleet(
        read_slots(where),
        folder or Path.cwd(),
        address,
        port,
        ssh or SSH,
        python or sys.executable,
        tuple(variables or ()),
    )
    if only_print:
        for command in fleet.commands(words).values():
            print(shlex.join(command))
        return
    try:
        code = run_until_done(fleet, words, restarts, leaving, say_note)
    except HostFailed as error:
        err.print(f"[red]regatta:[/red] {error}", soft_wrap=True)
        code = error.code
    raise typer.Exit(code)


@launch.command()
def slurm(
    words: Words,
    tasks: Annotated[int, typer.Option("--tasks", "-n", help="one a rank")] = 2,
    nodes: Annotated[int, typer.Option("--nodes", "-N", help="that they are on")] = 1,
    cpus: Annotated[int, typer.Option("--cpus", "-c", help="a rank")] = 1,
    time: Annotated[str, typer.Option("--time", "-t", help="at most: 1-12:00:00")] = "",
    partition: Annotated[str, typer.Option("--partition", "-p")] = "",
    name: Annotated[str, typer.Option("--name", "-J")] = "regatta",
    notice: Annotated[
        int, typer.Option("--notice", help="seconds before the time is up to save in; 0: none")
    ] = 120,
    requeues: Annotated[
        int, typer.Option("--requeues", help="how often it may go back into the queue")
    ] = 100,
    more: Annotated[
        list[str] | None, typer.Option("--sbatch", help="any other option: --gres=gpu:2")
    ] = None,
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="the script to write (standard output)")
    ] = None,
) -> None:
    """Write a batch script that trains, saves when its time is up, and goes on by itself."""
    from regatta.launching.slurm import Job, script

    job = Job(tasks, nodes, cpus, time, partition, name, notice, requeues, tuple(more or ()))
    text = script(job, words)
    if out is None:
        print(text, end="")
        return
    if out.exists():
        raise ValueError(f"{out} is there already: choose another --out")
    out.write_text(text)
    err.print(f"start it with: sbatch {out}", soft_wrap=True)
