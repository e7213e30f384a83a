"""Plots of what ranks did when: how busy they were, and a timeline that can be zoomed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from regatta.events import Spans, Usage
from regatta.race.entries import VIRTUAL
from regatta.race.outcome import Finish, Outcome
from regatta.report.drawing import COLOURS, Figure, new_layout

_MOST_RANKS = 16
_MOST_SPANS = 1500  # a rank
_BINS = 60  # of a virtual rank's time
_KINDS = {
    "c": ("computing", "#0072B2"),
    "s": ("sending", "#E69F00"),
    "w": ("waiting", "#D55E00"),
    "e": ("evaluating", "#009E73"),
}
_FIRST_LOOK = 40  # spans of a rank that the timeline shows before anybody zooms


def utilisation(outcome: Outcome) -> Figure | None:
    """Cores that ranks kept busy; of virtual ones, the share of time that they computed."""
    choices = [
        (standing.label, traces)
        for standing in outcome.standings
        if (traces := _usage(standing.finishes[0]))
    ]
    if not choices:
        return None
    layout = new_layout("time, s", "cores busy, or share of the time")
    layout["yaxis"]["rangemode"] = "tozero"
    data = _chosen(choices, layout)
    return Figure(
        "utilisation",
        "Utilisation over time",
        "Of the first seed's run. Cores that a rank's process kept busy, sampled ten times a "
        "second while it ran, smoothed over half a second; broken lines are graphics devices. Of "
        "simulated ranks: the share of virtual time that they computed.",
        data,
        layout,
    )


def _usage(finish: Finish) -> list[dict[str, Any]]:
    usages = [e for e in finish.events if isinstance(e, Usage)]
    traces = []
    for rank in sorted({e.rank for e in usages})[:_MOST_RANKS]:
        own = [e for e in usages if e.rank == rank]
        x = [round(e.time + (n + 0.5) * e.interval, 3) for e in own for n in range(len(e.cpu))]
        traces.append(_busy(rank, x, [share for e in own for share in e.cpu], "solid"))
        gpu = [share for e in own for share in e.gpu or ()]
        if len(gpu) == len(x):
            traces.append(_busy(rank, x, gpu, "dash"))
    return traces or _computing(finish)


def _computing(finish: Finish) -> list[dict[str, Any]]:
    """Of virtual ranks, which use no processor of their own: by what they did when."""
    spans = [e for e in finish.events if isinstance(e, Spans) and e.rank < _MOST_RANKS]
    end = max((max(e.ends) for e in spans), default=0.0)
    if finish.summary.world != VIRTUAL or not end:
        return []
    width = end / _BINS
    middles = [round((n + 0.5) * width, 6) for n in range(_BINS)]
    traces = []
    for rank in sorted({e.rank for e in spans}):
        busy = [0.0] * _BINS
        for event in spans:
            for kind, start, stop in zip(event.kinds, event.starts, event.ends, strict=False):
                if event.rank == rank and kind == "c":
                    _spread(busy, start / width, stop / width)
        traces.append(_busy(rank, middles, busy, "solid"))
    return traces


def _spread(bins: list[float], start: float, stop: float) -> None:
    """Add to each bin how much of it lies between, in bins."""
    for number in range(max(0, int(start)), min(int(stop) + 1, len(bins))):
        bins[number] += max(0.0, min(stop, number + 1) - max(start, number))


def _busy(rank: int, x: Sequence[float], y: Sequence[float], dash: str) -> dict[str, Any]:
    return {
        "type": "scatter",
        "mode": "lines",
        "name": f"rank {rank}" + (", GPU" if dash == "dash" else ""),
        "x": list(x),
        "y": _smooth(y, 5),
        "line": {"width": 1.5, "dash": dash, "color": COLOURS[rank % len(COLOURS)]},
    }


def _smooth(values: Sequence[float], width: int) -> list[float]:
    half = width // 2
    return [
        round(sum(near) / len(near), 3)
        for n in range(len(values))
        if (near := values[max(0, n - half) : n + half + 1])
    ]


def timeline(outcome: Outcome) -> Figure | None:
    choices, looks = [], []
    for standing in outcome.standings:
        finish = standing.finishes[0]
        traces, first_look = _bars(finish)
        if traces:
            choices.append((standing.label, traces))
            looks.append(first_look)
    if not choices:
        return None
    layout = new_layout("time, s", "rank")
    data = _chosen(choices, layout, looks)
    most = max(
        int(max(trace["y"], key=lambda y: y or 0)) for _, traces in choices for trace in traces
    )
    layout["yaxis"] |= {
        "dtick": 1, "range": [most + 0.6, -0.6], "zeroline": False, "fixedrange": True,
        "showgrid": False,
    }  # fmt: skip
    layout["xaxis"]["range"] = looks[0]
    layout["height"] = 280 + 28 * (most + 1)
    return Figure(
        "timeline",
        "What ranks did when",
        f"The first stretches of the first seed's run, of up to {_MOST_RANKS} ranks; drag to "
        "zoom, double-click for all of them. White is what lies between: steps, data, the "
        "strategy itself.",
        data,
        layout,
    )


def _bars(finish: Finish) -> tuple[list[dict[str, Any]], list[float]]:
    """A broken line a kind; and where to look first."""
    points: dict[str, tuple[list[Any], list[Any]]] = {kind: ([], []) for kind in _KINDS}
    counts: dict[int, int] = {}
    begin, end = float("inf"), 0.0
    for spans in (e for e in finish.events if isinstance(e, Spans)):
        if spans.rank >= _MOST_RANKS:
            continue
        for kind, start, stop in zip(spans.kinds, spans.starts, spans.ends, strict=False):
            number = counts[spans.rank] = counts.get(spans.rank, 0) + 1
            if number > _MOST_SPANS or kind not in points:
                continue
            x, y = points[kind]
            x += [round(start, 5), round(stop, 5), None]
            y += [spans.rank, spans.rank, None]
            if number <= _FIRST_LOOK:
                begin, end = min(begin, start), max(end, stop)
    traces = [
        {
            "type": "scatter",
            "mode": "lines",
            "name": name,
            "x": points[kind][0],
            "y": points[kind][1],
            "line": {"color": colour, "width": 16},
            "hovertemplate": f"{name}, rank %{{y}}, %{{x:.4f}} s<extra></extra>",
        }
        for kind, (name, colour) in _KINDS.items()
        if points[kind][0]
    ]
    return traces, [begin, end]


def _chosen(
    choices: Sequence[tuple[str, list[dict[str, Any]]]],
    layout: dict[str, Any],
    ranges: Sequence[Sequence[float]] = (),
) -> list[dict[str, Any]]:
    """One choice at a time is shown; a menu changes it."""
    owners = [n for n, (_, traces) in enumerate(choices) for _ in traces]
    data = [trace | {"visible": owners[n] == 0} for n, trace in enumerate(
        trace for _, traces in choices for trace in traces)]  # fmt: skip
    if len(choices) > 1:
        buttons = []
        for number, (label, _) in enumerate(choices):
            change: dict[str, Any] = {"visible": [owner == number for owner in owners]}
            axes = {"xaxis.range": list(ranges[number])} if ranges else {"xaxis.autorange": True}
            buttons.append({"label": label, "method": "update", "args": [change, axes]})
        layout["updatemenus"] = [
            {"buttons": buttons, "x": 0, "xanchor": "left", "y": 1.02, "yanchor": "bottom",
             "direction": "down", "bgcolor": "white"}
        ]  # fmt: skip
        layout["margin"] = layout["margin"] | {"t": 60}
    return data
