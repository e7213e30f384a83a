"""Show what came of runs and races: as a page, as tables, in the form of other tools."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from regatta.cli.common import app, count, for_tables, out, say_what_was_not_read

if TYPE_CHECKING:
    from regatta.race.outcome import Outcome


@app.command()
def report(
    folder: Annotated[Path, typer.Argument(metavar="RUN_OR_RACE", help="its folder")],
    out_file: Annotated[
        Path | None, typer.Option("--out", "-o", help="the file to write (default: report.html)")
    ] = None,
    markdown: Annotated[bool, typer.Option("--markdown", help="tables as Markdown")] = False,
    csv: Annotated[bool, typer.Option("--csv", help="one line a run")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="everything as one object")] = False,
    only_tta: Annotated[
        bool, typer.Option("--tta", help="print the times to levels of the results, no more")
    ] = False,
    levels: Annotated[
        list[str] | None, typer.Option("--level", help="of a result: wer=0.5,0.4; repeatable")
    ] = None,
) -> None:
    """One self-contained page with the tables and plots of a run or a race."""
    from regatta.race.verdict import verdict
    from regatta.report import files, forms
    from regatta.report.tta import asked_levels

    if markdown + csv + as_json > 1:
        raise ValueError("choose one of --markdown, --csv and --json")
    outcome = files.outcome_of(folder)
    outcome = replace(outcome, levels=asked_levels(outcome, levels or []))
    say_what_was_not_read(outcome.complaints)
    if only_tta:
        if csv or as_json or out_file is not None:
            raise ValueError("--tta prints one table, on its own or with --markdown")
        _print_levels(outcome, markdown)
        return
    if markdown or csv or as_json:
        text = (
            forms.as_markdown(outcome) if markdown
            else forms.as_csv(outcome) if csv
            else forms.as_json(outcome)
        )  # fmt: skip
        if out_file is None:
            print(text)
            return
        files.write_text(out_file, text)
    else:
        out_file = files.write_html(outcome, out_file or folder / "report.html")
    out.print(verdict(outcome), markup=False, soft_wrap=True)
    out.print(f"Report: {out_file}", markup=False, soft_wrap=True)


def _print_levels(outcome: Outcome, as_markdown: bool) -> None:
    from regatta.display import shown
    from regatta.report.forms import markdown_of
    from regatta.report.tta import tta

    table = tta(outcome)
    if table is None:
        raise ValueError("no evaluation was better than the first: name levels with --level")
    if as_markdown:
        print(markdown_of(table))
        return
    for_tables().print(shown(table))
    out.print(table.note, markup=False)


@app.command()
def convert(
    folder: Annotated[Path, typer.Argument(metavar="RUN", help="the folder of a run")],
    to: Annotated[str, typer.Option("--to", help="mlperf, tensorboard, trace or dawnbench")],
    out_path: Annotated[Path, typer.Option("--out", "-o", help="the file or folder to write")],
    benchmark: Annotated[
        str | None, typer.Option("--benchmark", help="the name that MLPerf knows: rnnt, resnet")
    ] = None,
) -> None:
    """Write a run's events in the form of other tools."""
    from regatta.exports import convert as write

    written = write(folder, to, out_path, benchmark)
    say_what_was_not_read(written.complaints)
    names = ", ".join(map(str, written.files))
    out.print(f"{count(len(written.files), 'file')}: {names}", markup=False, soft_wrap=True)


@app.command()
def watch(
    folder: Annotated[Path, typer.Argument(metavar="RUN_OR_RACE", help="its folder")],
) -> None:
    """Look on at a run or a race that was started elsewhere, until it ends."""
    from regatta.watching import look_on

    look_on(folder, out)
