"""How the data commands speak: bars, tables, and what was wrong."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer
from rich.box import SIMPLE_HEAD
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from regatta.cli.common import count, err, out

if TYPE_CHECKING:
    from regatta.data.checks import Checks
    from regatta.data.manifest import Corpus
    from regatta.data.problems import Problems
    from regatta.data.shards import Index
    from regatta.data.survey import Group, Survey

_EXAMPLES = 3  # of a kind of problem
_ROWS = 12  # of a long table
_WIDEST = 30  # characters of a bar in a table


@contextmanager
def bar(
    title: str, total: float | None, unit: str, quiet: bool = False
) -> Iterator[Callable[..., None]]:
    """On a terminal, a bar; in a pipe, nothing. Told how much more, or how much of how much."""
    columns = (TextColumn(title), BarColumn(), MofNCompleteColumn(), TextColumn(unit),
               TimeRemainingColumn())  # fmt: skip
    hidden = quiet or not err.is_terminal
    shared = sys.stdout.isatty()  # else what is printed would go to the bar's stream
    with Progress(*columns, console=err, disable=hidden, transient=True,
                  redirect_stdout=shared) as progress:  # fmt: skip
        task = progress.add_task(title, total=total)

        def advance(done: float, of: float | None = None) -> None:
            if of is None:
                progress.advance(task, done)
            else:
                progress.update(task, completed=done, total=of)

        yield advance


@contextmanager
def going_on() -> Iterator[None]:
    """Work that can be interrupted: the same command does the rest."""
    try:
        yield
    except KeyboardInterrupt:
        err.print("stopped: the same command goes on from here")
        raise typer.Exit(130) from None


def say_problems(problems: Problems) -> None:
    """How many of each kind, some by name, and what to do."""
    for kind, number in problems.counts().items():
        some = problems.examples(kind, _EXAMPLES)
        fate = escape(problems.fate(kind))
        err.print(f"[yellow]{number} x {kind}[/yellow], {fate}", soft_wrap=True)
        for problem in some:
            detail = f": {problem.detail}" if problem.detail else ""
            err.print(f"    {escape(problem.where)}{escape(detail)}", soft_wrap=True)
        if number > len(some):
            err.print(f"    and {number - len(some)} more")


def say_outside(path: Path, root: Path) -> None:
    """A manifest that names audio outside its own folder is not read without leave."""
    if not root.resolve().is_relative_to(path.resolve().parent):
        err.print(
            "[yellow]note:[/yellow] the audio lies outside the manifest's folder: read it with "
            "--allow-outside"
        )


def print_survey(survey: Survey, corpus: Corpus, checks: Checks) -> None:
    from regatta.data.survey import QUANTILES, quantile

    say_problems(survey.problems)
    lengths, words, symbols = survey.lengths(), survey.words(), survey.symbols()
    left_out = len(survey.problems.left_out)
    facts = {
        "corpus": str(corpus.root),
        "utterances": f"{len(survey.utterances):,} can be used, {left_out:,} left out",
    }
    if not survey.utterances:
        print_facts(facts)
        return
    speakers = set(survey.groups("speaker")) - {""}
    facts |= {
        "hours": f"{survey.seconds / 3600:.3f}",
        "speakers": f"{len(speakers):,}" if speakers else "none named",
        "seconds": ", ".join(f"{k} {quantile(lengths, at):.2f}" for k, at in QUANTILES.items()),
        "words": f"{sum(words.values()):,}, {len(words):,} different",
        "symbols": _symbols(symbols),
        "written in": _alphabet(checks),
        "aligned": f"{sum(bool(u.words) for u in survey.utterances):,} by words, "
        f"{sum(bool(u.phones) for u in survey.utterances):,} by phones",
        "looked at": "every sample"
        if survey.thorough
        else "what files say of themselves (`regatta data validate` reads every sample)",
    }
    print_facts(facts)
    for name in ("split", "language", "speaker"):
        groups = survey.groups(name)
        if len(groups) > 1:
            _print_groups(name, groups)
    _print_histogram(lengths)


def _symbols(symbols: Counter[str]) -> str:
    shown = "".join(sorted(symbols)).replace(" ", "␣")
    return f"{len(symbols)}: {shown[:80]}" + ("…" if len(shown) > 80 else "")


def _alphabet(checks: Checks) -> str:
    shown = checks.alphabet.symbols.replace(" ", "␣")
    return shown + (", accents dropped (--alphabet)" if checks.alphabet.fold else "")


def print_facts(facts: dict[str, str]) -> None:
    table = Table(box=None, show_header=False, pad_edge=False)
    table.add_column(no_wrap=True, style="dim")
    table.add_column(overflow="fold")
    for name, value in facts.items():
        table.add_row(name, escape(value))
    out.print(table)


def _print_groups(name: str, groups: dict[str, Group]) -> None:
    out.print()
    table = Table(box=SIMPLE_HEAD, show_edge=False)
    table.add_column(name)
    for heading in ("utterances", "hours"):
        table.add_column(heading, justify="right")
    for key, (number, seconds) in list(groups.items())[:_ROWS]:
        table.add_row(escape(key) or "(none)", f"{number:,}", f"{seconds / 3600:.3f}")
    if len(groups) > _ROWS:
        table.add_row(f"and {len(groups) - _ROWS} more", "", "")
    out.print(table)


def _print_histogram(lengths: list[float]) -> None:
    """How many utterances last how long."""
    if len(lengths) < 2:
        return
    out.print()
    width = max(lengths[-1] / 10, 0.1)
    counts = Counter(min(9, int(length / width)) for length in lengths)
    table = Table(box=SIMPLE_HEAD, show_edge=False)
    table.add_column("seconds", justify="right")
    table.add_column("utterances", justify="right")
    table.add_column("")
    for number in range(10):
        share = counts[number] / max(counts.values())
        bars = "█" * round(_WIDEST * share)
        table.add_row(
            f"{number * width:.1f}-{(number + 1) * width:.1f}", f"{counts[number]:,}", bars
        )
    out.print(table)


def print_features(index: Index, checks: Checks | None = None) -> None:
    told = features_as_json(index, checks)
    made = index.features
    print_facts(
        {
            "features": str(index.folder),
            "utterances": f"{len(index):,} in {count(len(index.shards), 'shard')}",
            "hours": f"{told['hours']:.3f}",
            "a frame": f"{made.mels} log-mels and {made.mfcc} cepstra, every "
            f"{1000 * made.hop / made.rate:g} ms of {made.rate:,} Hz",
            "on disk": f"{told['megabytes']:,.1f} MB, {index.storage.dtype}, "
            f"{told['compressed']:.0%} of its size in memory",
            "recogniser": f"{told['usable']:,} can be used{_why_not(told['not_usable'])}",
        }
    )


def _why_not(kinds: dict[str, int]) -> str:
    return ": not " + ", ".join(f"{n} {kind}" for kind, n in kinds.items()) if kinds else ""


def features_as_json(index: Index, checks: Checks | None = None) -> dict[str, Any]:
    from regatta.data.checks import Checks
    from regatta.data.utterances import usable

    texts, problems = usable(index, checks or Checks())
    size = sum((index.folder / name).stat().st_size for name, _ in index.shards)
    width = 4 if index.storage.dtype == "float32" else 2
    return {
        "folder": str(index.folder),
        "utterances": len(index),
        "shards": len(index.shards),
        "hours": float(index.seconds.sum()) / 3600,
        "features": asdict(index.features),
        "megabytes": size / 1e6,
        "compressed": size / max(1, int(index.frames.sum()) * index.features.size * width),
        "usable": len(texts),
        "not_usable": problems.counts(),
        "problems": index.problems.to_json(),
    }
