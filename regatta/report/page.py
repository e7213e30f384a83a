"""A report as one page that needs nothing else: tables, plots, and the library that draws them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import fields
from html import escape
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from plotly.offline import get_plotlyjs

from regatta.metrics import Summary
from regatta.plain import printable
from regatta.race.outcome import Outcome
from regatta.race.verdict import verdict
from regatta.report.cells import Table
from regatta.report.drawing import Figure
from regatta.report.figures import all_figures
from regatta.report.forms import finite
from regatta.report.tables import all_tables

_STYLE = """
:root { color-scheme: light; }
* { box-sizing: border-box; }
body { font: 16px/1.5 system-ui, sans-serif; color: #222; background: #fff; margin: 0 auto;
       max-width: 72rem; padding: 1rem 1.25rem 4rem; }
h1 { font-size: 1.7rem; margin: 1rem 0 .5rem; }
h2 { font-size: 1.2rem; margin: 2.5rem 0 .25rem; }
p.verdict { font-size: 1.15rem; border-left: .3rem solid #0072B2; padding: .5rem 1rem;
            background: #f3f8fc; }
p.note, figcaption { color: #555; font-size: .9rem; max-width: 50rem; margin: .25rem 0 .75rem; }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; font-size: .92rem; font-variant-numeric: tabular-nums; }
th, td { padding: .3rem .8rem .3rem 0; text-align: right; white-space: nowrap;
         border-bottom: 1px solid #e6e6e6; }
th { font-weight: 600; color: #444; border-bottom: 2px solid #bbb; }
.words { text-align: left; }
tbody + tbody tr:first-child td { border-top: 2px solid #bbb; }
tr:first-child td { font-weight: 600; }
.plain tr:first-child td { font-weight: 400; }
figure { margin: 0; }
.plot { width: 100%; height: 26rem; }
ul.complaints { background: #fff7e6; border-left: .3rem solid #E69F00;
                padding: .5rem 1rem .5rem 2rem; }
pre { background: #f5f5f5; padding: .75rem 1rem; overflow-x: auto; font-size: .88rem; }
dl { display: grid; grid-template-columns: max-content auto; gap: .1rem 1rem; }
dt { color: #555; } dd { margin: 0; overflow-wrap: anywhere; }
@media print {
  section { break-inside: avoid; }
  h2 { margin-top: 1.5rem; }
  .plot { height: 21rem; }
  .scroll { overflow: visible; }
  table { font-size: .68rem; }
  th, td { white-space: normal; padding-right: .5rem; }
  pre { white-space: pre-wrap; }
  .modebar, details { display: none !important; }
}
"""

_DRAW = """
const figures = JSON.parse(document.getElementById("figures").textContent);
for (const figure of figures) {
  const place = document.getElementById(figure.name);
  if (figure.layout.height) place.style.height = figure.layout.height + "px";
  Plotly.newPlot(place, figure.data, figure.layout, {responsive: true, displaylogo: false})
    .then(() => place.setAttribute("data-drawn", "yes"));
}
// Paper is narrower than most windows, and does not tell when it changes.
const resize = (width, height) => figures.forEach((figure) => Plotly.relayout(
  figure.name, {width, height: figure.layout.height || height, autosize: !width}));
addEventListener("beforeprint", () => resize(680, 330));
addEventListener("afterprint", () => resize(null, null));
"""


def html(outcome: Outcome) -> str:
    figures = all_figures(outcome)
    data = [_as_text({"name": f.name, "data": f.data, "layout": f.layout}) for f in figures]
    body = [
        f"<h1>{_text(_title(outcome))}</h1>",
        f'<p class="verdict">{_text(verdict(outcome))}</p>',
        *(f'<p class="note">Began with {_text(start)}.</p>' for start in outcome.starts),
        _complaints(outcome.complaints),
        *(_table(table) for table in all_tables(outcome)),
        *(_figure(figure) for figure in figures),
        _reproduce(outcome),
        _runs(outcome),
    ]
    # Inside a script no tag may begin, be it in a text.
    packed = json.dumps(finite(data), separators=(",", ":")).replace("<", "\\u003c")
    return "\n".join(
        [
            "<!doctype html>",
            '<html lang="en"><head><meta charset="utf-8">',
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            f"<title>{_text(_title(outcome))}</title>",
            f"<style>{_STYLE}</style>",
            f"<script>{get_plotlyjs()}</script>",
            "</head><body>",
            *body,
            f'<script type="application/json" id="figures">{packed}</script>',
            f"<script>{_DRAW}</script>",
            "</body></html>",
        ]
    )


def _as_text(value: Any) -> Any:
    """Names come from files, and plotly takes texts for HTML; it shows them as they stand."""
    if isinstance(value, str):
        return escape(printable(value), quote=False)
    if isinstance(value, dict):  # of templates the names are escaped already
        return {n: v if n == "hovertemplate" else _as_text(v) for n, v in value.items()}
    return list(map(_as_text, value)) if isinstance(value, list | tuple) else value


def _text(words: str) -> str:
    """Words of unknown origin as HTML that shows them, and does nothing else."""
    return escape(printable(words))


def _title(outcome: Outcome) -> str:
    number = len(outcome.standings)
    if number == 1:
        return f"{outcome.standings[0].label} on {outcome.title}"
    return f"A race on {outcome.title}: {number} ways to train"


def _complaints(complaints: Sequence[str]) -> str:
    if not complaints:
        return ""
    items = "".join(f"<li>{_text(complaint)}</li>" for complaint in complaints)
    return f'<ul class="complaints">{items}</ul>'


def _table(table: Table) -> str:
    kind = "" if table.is_ranked else ' class="plain"'
    head = f"<thead>{_row(table, 'th', table.headings)}</thead>"
    bodies: list[str] = []
    for row in table.rows:
        if not bodies or (table.is_grouped and row[0]):
            bodies.append("")
        bodies[-1] += _row(table, "td", row)
    rows = "".join(f"<tbody>{body}</tbody>" for body in bodies)
    return (
        f'<section><h2>{_text(table.title)}</h2><div class="scroll"><table{kind}>{head}{rows}'
        f'</table></div><p class="note">{_text(table.note)}</p></section>'
    )


def _row(table: Table, tag: str, cells: Sequence[str]) -> str:
    kinds = [' class="words"' if n < table.words else "" for n in range(len(cells))]
    pairs = zip(kinds, cells, strict=True)
    return f"<tr>{''.join(f'<{tag}{kind}>{_text(c)}</{tag}>' for kind, c in pairs)}</tr>"


def _figure(figure: Figure) -> str:
    return (
        f"<section><h2>{_text(figure.title)}</h2><figure>"
        f'<div class="plot" id="{figure.name}"></div>'
        f"<figcaption>{_text(figure.caption)}</figcaption></figure></section>"
    )


def _reproduce(outcome: Outcome) -> str:
    facts = {
        "seeds": ", ".join(map(str, outcome.seeds)),
        "learning rates": f"tuned, {outcome.tune} trials each" if outcome.tune else "untuned",
        "Regatta": _version(),
    } | {name.replace("_", " "): str(value) for name, value in outcome.environment.items()}
    command = f"<pre>{_text(outcome.command)}</pre>" if outcome.command else ""
    items = "".join(f"<dt>{_text(k)}</dt><dd>{_text(v)}</dd>" for k, v in facts.items())
    return f"<section><h2>How to make it again</h2>{command}<dl>{items}</dl></section>"


def _version() -> str:
    try:
        return version("regatta-train")
    except PackageNotFoundError:
        return "not installed"


def _runs(outcome: Outcome) -> str:
    """Every measure of every run, for who wants to see them all."""
    names = [field.name for field in fields(Summary) if field.name != "staleness"]
    finishes = [(s.label, finish) for s in outcome.standings for finish in s.finishes]
    columns = [
        [str(f.folder), *(_cell(getattr(f.summary, name)) for name in names)] for _, f in finishes
    ]
    rows = [
        [heading, *(column[n] for column in columns)]
        for n, heading in enumerate(["folder", *(name.replace("_", " ") for name in names)])
    ]
    table = Table(
        "All runs",
        "A column each.",
        ["", *(f"{label}, seed {f.seed}" for label, f in finishes)],
        rows,
        is_ranked=False,
    )
    return f"<details><summary>All measures of all runs</summary>{_table(table)}</details>"


def _cell(value: object) -> str:
    if value is None:
        return ""
    return f"{value:.6g}" if isinstance(value, float) else str(value)
