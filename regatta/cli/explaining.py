"""`--explain`: what the virtual clock charges, in formulas."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Annotated

import typer

from regatta.cli.common import out

if TYPE_CHECKING:
    from regatta.config import Run
    from regatta.race.entries import Race

Explain = Annotated[
    bool, typer.Option("--explain", help="what the clock charges: formulas, inputs, sources")
]


def explain_run(run: Run, sources: Mapping[str, str]) -> None:
    _say("", _lines(run, sources))


def explain_race(race: Race) -> None:
    """Lanes that are charged alike, together."""
    from regatta.race.entries import VIRTUAL, label_lanes

    alike: dict[tuple[str, ...], list[str]] = {}
    for lane, label in zip(race.lanes, label_lanes(race.lanes), strict=True):
        if lane.world == VIRTUAL:
            figures = _lines(race.run(lane, race.seeds[0]), sources_of(lane.cluster))
            alike.setdefault(tuple(figures), []).append(label)
    for lines, labels in alike.items():
        _say("; ".join(labels), lines)


def sources_of(cluster: str | None) -> dict[str, str]:
    """What stands beside the values of a cluster's file."""
    from regatta.cluster.explain import sources_in
    from regatta.cluster.files import cluster_text

    return sources_in(cluster_text(cluster)) if cluster else {}


def _say(whom: str, lines: Iterable[str]) -> None:
    heading = f"What the clock charges{whom and f' {whom}'}; who waits for whom is simulated:"
    for line in (heading, *lines):
        out.print(line, markup=False, soft_wrap=True)


def _lines(run: Run, sources: Mapping[str, str]) -> Iterator[str]:
    from regatta.cluster.explain import Job, explained
    from regatta.learn.layout import num_vector_bytes

    hosts = len(set(run.cluster.hosts(run.workers)))
    job = Job(run.workers, hosts, run.minibatch, num_vector_bytes(run.task.model()))
    return explained(run.cluster, job, sources)
