"""What all plots share: their form, their colours, their frame."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

# Okabe and Ito's colours, which most people can tell apart; then darker ones of the same.
COLOURS = (
    "#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#7F7F7F", "#000000",
    "#004A73", "#8A3D00", "#00664B", "#87506D", "#946700", "#376F8F",
)  # fmt: skip


@dataclass(frozen=True)
class Figure:
    name: str
    title: str
    caption: str
    data: list[dict[str, Any]]
    layout: dict[str, Any]


def new_layout(x: str, y: str) -> dict[str, Any]:
    axis = {"gridcolor": "#e6e6e6", "zerolinecolor": "#cccccc", "automargin": True}
    return {
        "xaxis": axis | {"title": {"text": x}},
        "yaxis": axis | {"title": {"text": y}},
        "margin": {"l": 60, "r": 20, "t": 20, "b": 110},
        # At the foot of the page's space, wherever the plot itself ends.
        "legend": {"orientation": "h", "yref": "container", "y": 0, "yanchor": "bottom"},
        "hovermode": "closest",
        "paper_bgcolor": "white",
        "plot_bgcolor": "white",
        "font": {"family": "system-ui, sans-serif", "size": 13, "color": "#222222"},
    }
