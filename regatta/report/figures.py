"""The plots of a report, as plain data for plotly.js."""

from __future__ import annotations

import math
from collections.abc import Sequence
from html import escape
from typing import Any

from regatta.events import Evaluated, Progress
from regatta.race.entries import VIRTUAL
from regatta.race.outcome import Finish, Outcome, Standing
from regatta.report.activity import timeline, utilisation
from regatta.report.drawing import COLOURS, Figure, new_layout
from regatta.statistics import arrivals


def all_figures(outcome: Outcome) -> list[Figure]:
    made = [over_time(outcome), over_samples(outcome), loss(outcome), reached(outcome)]
    made += [scaling(outcome), staleness(outcome), costs(outcome)]
    made += [utilisation(outcome), timeline(outcome)]
    return [figure for figure in made if figure is not None]


def colours(outcome: Outcome) -> dict[str, str]:
    labels = [standing.label for standing in outcome.standings]
    return {label: COLOURS[n % len(COLOURS)] for n, label in enumerate(labels)}


def over_time(outcome: Outcome) -> Figure | None:
    return _curves(
        outcome,
        "over-time",
        f"{outcome.metric} over training time".capitalize(),
        "One line a seed. The training clock stands still during evaluation; the dotted line is "
        "the target, where runs end.",
        lambda e: e.training,
        "training time, s",
    )


def over_samples(outcome: Outcome) -> Figure | None:
    return _curves(
        outcome,
        "over-samples",
        f"{outcome.metric} over samples".capitalize(),
        "The same by what was learnt from, whatever time that took: how well a strategy uses its "
        "data.",
        lambda e: float(e.samples),
        "samples of all workers",
    )


def _curves(
    outcome: Outcome, name: str, title: str, caption: str, place: Any, axis: str
) -> Figure | None:
    traces = []
    for standing in outcome.standings:
        for finish in standing.finishes:
            metric = finish.summary.metric
            found = [e for e in finish.events if isinstance(e, Evaluated) and metric in e.results]
            x, y = [place(e) for e in found], [e.results[metric] for e in found]
            traces.append(_line(outcome, standing, finish, x, y))
    if not any(trace["x"] for trace in traces):
        return None
    layout = new_layout(axis, outcome.metric)
    if outcome.target is not None:
        layout["shapes"] = [_target_line(outcome.target)]
        layout["annotations"] = [_target_note(outcome.target)]
    return Figure(name, title, caption, traces, layout)


def loss(outcome: Outcome) -> Figure | None:
    """Of the evaluations, if they tell it; else that of the training minibatches."""
    traces, sources = [], set()
    for standing in outcome.standings:
        for finish in standing.finishes:
            scored = [e for e in finish.events if isinstance(e, Evaluated) and "loss" in e.results]
            seen = [
                e for e in finish.events
                if isinstance(e, Progress) and e.rank == 0 and e.loss is not None
            ]  # fmt: skip
            sources.add("evaluations" if scored else "training minibatches of rank 0")
            x = [e.training for e in scored] or [e.time for e in seen]
            y = [e.results["loss"] for e in scored] or [e.loss or 0.0 for e in seen]
            traces.append(_line(outcome, standing, finish, x, y))
    if not any(trace["x"] for trace in traces):
        return None
    layout = new_layout("training time, s", "loss")
    layout["yaxis"]["type"] = "log"
    caption = f"Of the {' and the '.join(sorted(sources))}. The vertical axis is logarithmic."
    return Figure("loss", "Loss over training time", caption, traces, layout)


def reached(outcome: Outcome) -> Figure | None:
    """Kaplan and Meier's curve of who had arrived by when."""
    if outcome.target is None or not outcome.standings:
        return None
    longest = max(t.seconds for s in outcome.standings for t in s.times.values())
    traces = []
    for standing in outcome.standings:
        curve = arrivals(list(standing.times.values()))
        end = max(time.seconds for time in standing.times.values())
        points = [*curve, (longest if curve[-1][1] >= 1 else end, curve[-1][1])]
        traces.append(
            _trace(outcome, standing, [x for x, _ in points], [y for _, y in points])
            | {"line": _stroke(outcome, standing, 2.5) | {"shape": "hv"}}
        )
    layout = new_layout("training time, s", "share of seeds")
    layout["yaxis"] |= {"range": [-0.03, 1.05], "tickformat": ".0%"}
    return Figure(
        "reached",
        "Share of seeds that had reached the target",
        "Kaplan-Meier: a run that was given up counts for as long as it ran. A line that ends "
        "below 100 % belongs to a strategy of which some runs missed the target.",
        traces,
        layout,
    )


def scaling(outcome: Outcome) -> Figure | None:
    """Speedup in samples a second against workers."""
    groups: dict[tuple[str, ...], list[Standing]] = {}
    for standing in outcome.standings:
        lane = standing.lane
        if lane.workers > 1 and outcome.scaling(standing) is not None:
            name = ", ".join([lane.spec, *(f"{n}={v}" for n, v in lane.values.items())])
            key = (name, lane.world, lane.cluster, outcome.kind_of_scaling(standing))
            groups.setdefault(key, []).append(standing)
    if not groups:
        return None
    traces = []
    for (name, world, cluster, kind), members in groups.items():
        members.sort(key=lambda s: (s.lane.workers, s.lane.minibatch))
        where = f", {cluster or 'simulated'}" if world == VIRTUAL and outcome.is_mixed else ""
        traces.append(
            {
                "type": "scatter",
                "mode": "lines+markers",
                "name": f"{name}{where} ({kind})",
                "x": [1, *(s.lane.workers for s in members)],
                "y": [1.0, *(outcome.scaling(s) for s in members)],
                "line": _stroke(outcome, members[0], 2),
                "marker": {"size": 8},
            }
        )
    most = max(s.lane.workers for members in groups.values() for s in members)
    ideal = {"type": "scatter", "mode": "lines", "name": "ideal", "x": [1, most], "y": [1, most],
             "line": {"color": "#bbbbbb", "dash": "dot"}}  # fmt: skip
    layout = new_layout("workers", "speedup in samples/s")
    layout["xaxis"] |= {"dtick": 1} if most <= 12 else {}
    return Figure(
        "scaling",
        "Speedup against workers",
        "Samples a second against the best run of one worker with the same settings. Weak: a "
        "worker's minibatch stays the same; strong: that of all workers together does.",
        [ideal, *traces],
        layout,
    )


def staleness(outcome: Outcome) -> Figure | None:
    traces = []
    for standing in outcome.standings:
        ages: dict[int, int] = {}
        for finish in standing.finishes:
            for age, count in finish.summary.staleness.items():
                ages[age] = ages.get(age, 0) + count
        total = sum(ages.values())
        if total:
            traces.append(
                {
                    "type": "bar",
                    "name": standing.label,
                    "x": sorted(ages),
                    "y": [ages[age] / total for age in sorted(ages)],
                    "marker": {"color": colours(outcome)[standing.label]},
                }
            )
    if not traces:
        return None
    layout = new_layout(
        "staleness: gradients merged since the weights were read", "share of gradients"
    )
    layout["yaxis"]["tickformat"] = ".0%"
    return Figure(
        "staleness",
        "How old gradients were when they were used",
        "Of strategies that record it; synchronous ones have none.",
        traces,
        layout,
    )


def costs(outcome: Outcome) -> Figure | None:
    known = [s for s in outcome.standings if s.cost is not None and math.isfinite(s.cost)]
    if not known:
        return None
    traces = [
        {
            "type": "scatter",
            "mode": "markers",
            "name": standing.label,
            "x": [standing.median],
            "y": [standing.cost],
            "marker": {"size": 12, "color": colours(outcome)[standing.label]},
        }
        for standing in known
    ]
    layout = new_layout("median time to target, s", "cost to target")
    layout["xaxis"]["rangemode"] = layout["yaxis"]["rangemode"] = "tozero"
    caption = (
        "Below and left is better; who lies above and right of another is worth nobody's money."
    )
    return Figure("costs", "Cost and time to the target", caption, traces, layout)


# -- pieces -----------------------------------------------------------------------------------


def _line(
    outcome: Outcome, standing: Standing, finish: Finish, x: Sequence[float], y: Sequence[float]
) -> dict[str, Any]:
    is_first = finish is standing.finishes[0]
    several = len(standing.finishes) > 1
    return _trace(outcome, standing, x, y) | {
        "legendgroup": standing.label,
        "showlegend": is_first,
        "opacity": 0.75 if several else 1.0,
        "hovertemplate": f"{escape(standing.label)}, seed {finish.seed}<br>"
        "%{x:.4g}: %{y:.4f}<extra></extra>",
    }


def _trace(
    outcome: Outcome, standing: Standing, x: Sequence[float], y: Sequence[float]
) -> dict[str, Any]:
    return {
        "type": "scatter",
        "mode": "lines",
        "name": standing.label,
        "x": list(x),
        "y": [value if math.isfinite(value) else None for value in y],
        "line": _stroke(outcome, standing, 1.8),
    }


def _stroke(outcome: Outcome, standing: Standing, width: float) -> dict[str, Any]:
    dash = "dash" if standing.lane.world == VIRTUAL and outcome.is_mixed else "solid"
    return {"color": colours(outcome)[standing.label], "width": width, "dash": dash}


def _target_line(target: float) -> dict[str, Any]:
    return {
        "type": "line", "xref": "paper", "x0": 0, "x1": 1, "y0": target, "y1": target,
        "line": {"color": "#555555", "width": 1, "dash": "dot"},
    }  # fmt: skip


def _target_note(target: float) -> dict[str, Any]:
    return {
        "xref": "paper", "x": 0, "xanchor": "left", "y": target, "yanchor": "bottom",
        "text": f"target {target:g}", "showarrow": False, "font": {"color": "#555555"},
    }  # fmt: skip
