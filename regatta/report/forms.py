"""An outcome as Markdown, CSV and JSON."""

from __future__ import annotations

import csv
import io
import json
import math
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from regatta.events import Evaluated
from regatta.race.outcome import Finish, Outcome, Standing
from regatta.race.verdict import verdict
from regatta.report.cells import Table
from regatta.report.combinations import rows_of
from regatta.report.tables import all_tables
from regatta.report.tta import reached_levels


def as_markdown(outcome: Outcome) -> str:
    parts = [f"# {_text(outcome.title)}", "", _text(verdict(outcome)), ""]
    parts += [f"Began with {_text(start)}.\n" for start in outcome.starts]
    parts += map(markdown_of, all_tables(outcome))
    parts += [f"- {_text(complaint)}" for complaint in outcome.complaints]
    if outcome.command:
        parts += ["", f"Made by `{outcome.command.replace('`', '')}`"]
    return "\n".join(parts).rstrip() + "\n"


def markdown_of(table: Table) -> str:
    rule = ["---"] * table.words + ["---:"] * (len(table.headings) - table.words)
    lines = [_line(row) for row in (table.headings, rule, *table.rows)]
    return "\n".join([f"## {_text(table.title)}", "", *lines, "", _text(table.note), ""])


def _line(cells: Sequence[str]) -> str:
    return "| " + " | ".join(_text(cell).replace("|", "\\|") for cell in cells) + " |"


def _text(text: str) -> str:
    """Whoever shows Markdown may take a name from a file for HTML."""
    return text.replace("<", "&lt;")


def as_csv(outcome: Outcome) -> str:
    """One line a run."""
    rows = [
        _flat(standing, finish) for standing in outcome.standings for finish in standing.finishes
    ]
    text = io.StringIO()
    columns = list(dict.fromkeys(name for row in rows for name in row)) or ["lane", "seed"]
    writer = csv.DictWriter(text, columns, lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


def _flat(standing: Standing, finish: Finish) -> dict[str, Any]:
    settings = dict(setting.partition("=")[::2] for setting in standing.lane.settings)
    values = {"lane": standing.label} | settings | asdict(finish.summary)
    values["staleness"] = json.dumps(values["staleness"])
    return values


def as_json(outcome: Outcome) -> str:
    """Everything, with null where there is no number."""
    values = {
        "regatta_report": 1,
        "title": outcome.title,
        "verdict": verdict(outcome),
        "metric": outcome.metric,
        "target": outcome.target,
        "last": outcome.last,
        "seeds": outcome.seeds,
        "tune": outcome.tune,
        "command": outcome.command,
        "environment": outcome.environment,
        "complaints": outcome.complaints,
        "standings": [_values(outcome, standing) for standing in outcome.standings],
        "combinations": [asdict(row) for row in rows_of(outcome)],
        "levels": [asdict(reached) for reached in reached_levels(outcome)],
    }
    return json.dumps(finite(values), indent=1)


def _values(outcome: Outcome, standing: Standing) -> dict[str, Any]:
    first = outcome.of_world(standing.lane.world)[0]
    comparison = None if standing is first else outcome.comparison(first, standing)
    return asdict(standing.lane) | {
        "label": standing.label,
        "reached": standing.reached,
        "median": standing.median,
        "interval": asdict(standing.interval),
        "olympic_mean": standing.olympic,
        "throughput": standing.throughput,
        "speedup": outcome.scaling(standing),
        "speedup_to_target": outcome.speedup(standing),
        "scaling": outcome.kind_of_scaling(standing),
        "lr": standing.lr,
        "final": standing.final,
        "cost_to_target": standing.cost,
        "behind_first": None if comparison is None
        else asdict(comparison) | {"is_tie": comparison.is_tie},
        "runs": [
            asdict(f.summary) | {"folder": str(f.folder), "curve": _curve(f)}
            for f in standing.finishes
        ],
    }  # fmt: skip


def _curve(finish: Finish) -> list[dict[str, Any]]:
    """Results over training time and over samples."""
    return [
        {"training": e.training, "samples": e.samples, "epoch": e.epoch} | e.results
        for e in finish.events
        if isinstance(e, Evaluated)
    ]


def finite(value: Any) -> Any:
    """JSON knows neither infinity nor what is no number."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {str(name): finite(inner) for name, inner in value.items()}
    if isinstance(value, list | tuple):
        return [finite(inner) for inner in value]
    return value
