"""Throughput, efficiency and accuracy by nodes: Tables 1, 2 and 3 of Campos et al."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from statistics import fmean, median

from regatta.events import Evaluated, Started
from regatta.race.outcome import Finish, Outcome, Standing
from regatta.report.cells import Table, number, one_or_none, ratio, seconds, without_empty_columns

_LOSS = "loss"
_TOLD = ("servers", "placement")  # by the numbers of nodes


@dataclass(frozen=True)
class Configuration:
    """A lane by the nodes that it takes."""

    standing: Standing

    @cached_property
    def _started(self) -> Started:
        return next(e for e in self.standing.finishes[0].events if isinstance(e, Started))

    @property
    def nodes(self) -> int:
        return self._started.hosts

    @property
    def has_full_nodes(self) -> bool:
        return 1 < self._started.worker_hosts < self._started.workers

    @property
    def name(self) -> str:
        """As the paper says it; where there are no servers, there is nothing to tell apart."""
        started, nodes = self._started, _count(self.nodes, "node")
        servers = started.ranks - started.workers
        if not servers:
            return nodes
        return f"{nodes} ({started.worker_hosts} with workers + {_count(servers, 'server')})"

    @property
    def strategy(self) -> str:
        """Without what the configuration tells already."""
        name, _, options = self.standing.lane.spec.partition(":")
        kept = [o for o in options.split(",") if o and o.partition("=")[0] not in _TOLD]
        return f"{name}:{','.join(kept)}" if kept else name

    @property
    def workers(self) -> str:
        return f"{_count(self._started.worker_hosts, 'node')} ({self._started.workers})"

    @property
    def time(self) -> float:
        return median(finish.summary.seconds for finish in self.standing.finishes)

    @property
    def best_loss(self) -> float | None:
        """That half of the runs reached."""
        curves = [[loss for _, loss in _losses(finish)] for finish in self.standing.finishes]
        found = [min(curve) for curve in curves if curve]
        return median(found) if found else None

    def reached(self, loss: float) -> tuple[float | None, float | None]:
        """Epochs and seconds of training until then, in the mean of the runs that got there."""
        came = [
            next((event for event, value in _losses(finish) if value <= loss), None)
            for finish in self.standing.finishes
        ]
        there = [event for event in came if event is not None]
        if not there:
            return None, None
        return fmean(e.epoch for e in there), fmean(e.training for e in there)


def _losses(finish: Finish) -> list[tuple[Evaluated, float]]:
    scored = (e for e in finish.events if isinstance(e, Evaluated))
    return [(event, event.results[_LOSS]) for event in scored if _LOSS in event.results]


def _count(number: int, what: str) -> str:
    return f"{number} {what}" + ("" if number == 1 else "s")


def configurations(outcome: Outcome) -> tuple[list[Configuration], Configuration | None]:
    """Lanes by nodes, and the fastest of one node.

    None where every worker has a node of its own: the tables by workers say the same.
    """
    by_lane = {standing.lane: Configuration(standing) for standing in outcome.standings}
    found = [by_lane[lane] for lane in outcome.lanes if lane in by_lane]
    alone = [each for each in found if each.nodes == 1]
    if not alone or not any(each.has_full_nodes for each in found):
        return [], None
    return found, max(alone, key=lambda each: each.standing.throughput)


def throughputs(outcome: Outcome) -> Table | None:
    """In the form of Tables 1 and 2."""
    found, base = configurations(outcome)
    if base is None:
        return None
    rows = []
    for each in found:
        faster = each.standing.throughput / base.standing.throughput
        rows.append(
            [
                each.name,
                each.strategy,
                f"{each.standing.throughput:,.1f}",
                "" if each is base else f"{faster:.2f}",
                "" if each is base else f"{faster / each.nodes:.2f}",
            ]
        )
    return Table(
        "Throughput by nodes",
        "Samples a second of all workers; speedup over the fastest lane of one node; efficiency is "
        "the speedup over the nodes in use, servers' own among them.",
        ["configuration", "strategy", "samples/s", "speedup", "efficiency"],
        rows,
        words=2,
        is_ranked=False,
    )


def accuracies(outcome: Outcome) -> Table | None:
    """In the form of Table 3, with what it takes to come to a loss that all lanes come to."""
    found, base = configurations(outcome)
    if base is None:
        return None
    losses = [each.best_loss for each in found]
    common = max((loss for loss in losses if loss is not None), default=None)
    rows = [_accuracy(each, base, common) for each in found]
    to_loss = "" if common is None else f"{_LOSS} {common:.3g}"
    table = Table(
        f"{outcome.metric.capitalize()} by nodes",
        "Medians over the seeds: the final answer's result, and the time of the whole run."
        + (f" {to_loss.capitalize()} is the least that half of the runs of every lane came to; "
           "epochs and time until then are means of the runs that did." if to_loss else "")
        + " Staleness: how many gradients had gone into the weights since one was begun.",
        ["nodes (workers)", "strategy", outcome.metric, "time", "speedup", f"epochs to {to_loss}",
         "time to it", "sooner", "staleness"],
        rows,
        words=2,
        is_ranked=False,
    )  # fmt: skip
    return without_empty_columns(table)


def _accuracy(each: Configuration, base: Configuration, loss: float | None) -> Sequence[str]:
    epochs, time = (None, None) if loss is None else each.reached(loss)
    _, of_base = (None, None) if loss is None else base.reached(loss)
    sooner = of_base / time if of_base and time else None
    ages = [finish.summary.mean_staleness for finish in each.standing.finishes]
    return [
        each.workers,
        each.strategy,
        number(each.standing.final),
        seconds(each.time),
        ratio(base.time / each.time if each.time else None),
        "" if epochs is None else f"{epochs:.2f}",
        seconds(time),
        ratio(sooner),
        one_or_none(ages, "{:.1f}"),
    ]
