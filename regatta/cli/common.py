"""What the commands share: the application, options by name, and how they speak."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape

from regatta.plain import printable

if TYPE_CHECKING:
    from rich.status import Status

    from regatta.config import Run

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)


def _version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import version

        print(f"regatta {version('regatta-train')}")
        raise typer.Exit


@app.callback()
def _everything(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="print it")
    ] = False,
) -> None:
    """Train a network on many workers under any published strategy, and learn which one gets
    there first."""


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
From = Annotated[
    Path | None,
    typer.Option("--from", metavar="RUN", help="begin with the weights of a run or a .safetensors"),
]
OnDeath = Annotated[
    str | None,
    typer.Option("--on-death", help="of a rank: auto (see `strategies`), stop, restart or shrink"),
]
Restarts = Annotated[
    int | None, typer.Option("--restarts", help="how often a run may begin again after a death")
]
Silence = Annotated[
    float | None,
    typer.Option("--silence", help="seconds that a frozen rank is waited for; 0: for ever"),
]
Rejoin = Annotated[
    bool, typer.Option("--rejoin", help="who died is back after the next checkpoint")
]
Target = Annotated[float | None, typer.Option("--target", help="stop when the metric reaches it")]
Threads = Annotated[int | None, typer.Option("--threads", help="computing threads a rank")]
Device = Annotated[str | None, typer.Option("--device", help="cpu or cuda")]
AsJson = Annotated[bool, typer.Option("--json", help="print one JSON object, nothing else")]
ClusterOption = Annotated[
    str | None, typer.Option("--cluster", help="a shipped cluster, or a file: .toml, .yaml, .json")
]

Oversubscribe = Annotated[
    bool, typer.Option("--oversubscribe", help="let ranks share the devices of a cluster")
]


def sharing(oversubscribe: bool, settings: list[str] | None) -> list[str]:
    """The settings, and that ranks for which there is no device may share one."""
    return [*(settings or []), *(["cluster.oversubscribe=true"] if oversubscribe else [])]


def beginning_with(source: Path | None, settings: list[str] | None) -> list[str]:
    """The settings and where the weights come from, by its whole path."""
    return [*(settings or []), *([] if source is None else [f"start.run={source.resolve()}"])]


def dying(
    on_death: str | None,
    restarts: int | None,
    settings: list[str] | None,
    rejoin: bool,
    silence: float | None = None,
) -> list[str]:
    """The settings, and what is to follow the death of a rank."""
    given = {"then": on_death, "restarts": restarts, "silence": silence, "rejoin": rejoin or None}
    return [
        *(settings or []),
        *(f"death.{name}={value}" for name, value in given.items() if value is not None),
    ]


def prepare(runs: Iterable[Run], speaks: bool) -> None:
    """Make what tasks need and do not find, before anybody waits for it, and say so."""
    from regatta.cli.telling import going_on

    makers = [getattr(run.task, "prepare", None) for run in runs]
    with going_on(), ExitStack() as stack:
        tell = teller(stack) if speaks else lambda what, share: None
        notes = [note for make in filter(None, makers) for note in make(tell) or ()]
    if speaks:
        say_what_was_not_read(dict.fromkeys(notes))


def teller(stack: ExitStack) -> Callable[[str, float], None]:
    """A live line on a terminal, a line for each kind of work in a pipe."""
    told: list[str] = []
    status: list[Status] = []

    def tell(what: str, share: float) -> None:
        if out.is_terminal:
            if not status:
                status.append(stack.enter_context(out.status(what)))
            status[0].update(f"{what}: {share:.0%}")
        elif what not in told:
            told.append(what)
            out.print(what)

    return tell


def for_tables() -> Console:
    """`out`, or a wider one where there is no terminal: `print(width=...)` can only narrow it."""
    return out if out.is_terminal else Console(highlight=False, width=_PIPE_WIDTH)


def display_of(run: Run, speaks: bool) -> Any:
    from regatta.display import Display

    title = f"{run.strategy.name} on {count(run.workers, 'worker')}"
    return Display(out, title, run.stop.epochs) if speaks else None


def say_how_long(runs: Iterable[Run], times: float = 1, timing_only: bool = False) -> None:
    """What simulations will take on this machine, where that is more than a moment."""
    from regatta.outlook import SHORT, Outlook, outlook

    with out.status("rehearsing"):
        each = [outlook(run, timing_only) for run in runs]
    seconds = times * sum(one.seconds for one in each)
    if seconds > SHORT:
        whole = Outlook(seconds, max(one.nbytes for one in each))
        out.print(f"simulating takes {whole} on this machine, at most", soft_wrap=True)


def count(number: int, noun: str) -> str:
    return f"{number} {noun}" + ("" if number == 1 else "s")


def cores() -> int:
    """Those that this process may use."""
    affinity = getattr(os, "sched_getaffinity", None)
    return len(affinity(0)) if affinity else os.cpu_count() or 1


def warn_of_crowding(run: Run) -> None:
    """Not of ranks that their starter has bound: each of them sees its own cores alone."""
    from regatta.worlds import started

    if started.place() is not None and cores() < (os.cpu_count() or 1):
        return
    if run.device == "cpu" and run.num_ranks * run.threads > cores():
        err.print(
            f"[yellow]note:[/yellow] {run.strategy.name} has {run.num_ranks} ranks of "
            f"{count(run.threads, 'thread')} on {count(cores(), 'core')}: they share, "
            "and times say less about a bigger machine"
        )


def say_what_was_not_read(complaints: Iterable[str]) -> None:
    for complaint in complaints:
        say_note(complaint)


def say_note(text: str) -> None:
    err.print(f"[yellow]note:[/yellow] {escape(printable(text))}", soft_wrap=True)
