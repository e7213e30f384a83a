"""The outcome of a race in a few sentences: who was first, how surely, and what it rests on."""

from __future__ import annotations

import math

from regatta.race.entries import PROCESSES, VIRTUAL
from regatta.race.outcome import Outcome, Standing
from regatta.statistics import Comparison, Interval


def verdict(outcome: Outcome) -> str:
    """The first sentence says who won, in each world that was raced in."""
    if not outcome.standings:
        return "Nothing has been run yet."
    sentences = [
        text
        for world in (PROCESSES, VIRTUAL)
        if outcome.of_world(world)
        for text in (_of_world(outcome, world), _cost(outcome, world))
    ]
    return " ".join([*filter(None, sentences), *caveats(outcome)])


def _cost(outcome: Outcome, world: str) -> str:
    """Who is cheapest, where prices were given and somebody arrived."""
    known = [(s.cost, s) for s in outcome.of_world(world) if s.cost is not None]
    cost, cheapest = min(known, key=lambda pair: pair[0], default=(math.inf, None))
    if cheapest is None or not math.isfinite(cost):
        return ""
    if len(known) == 1:
        return f"It costs {cost:.3g} to get there."
    return f"Cheapest is {cheapest.label}, which costs {cost:.3g} to get there."


def caveats(outcome: Outcome) -> list[str]:
    """What a reader must know before believing it."""
    notes = []
    if len(outcome.standings) > 1 and outcome.target is not None:
        if len(outcome.seeds) == 1:
            notes.append("One seed: a first impression, not a claim.")
        rates = f"tuned by {outcome.tune} trials each" if outcome.tune else "untuned"
        notes.append(f"Learning rates are {rates}.")
    return notes


def _of_world(outcome: Outcome, world: str) -> str:
    first, *others = outcome.of_world(world)
    where = "Simulated: " if world == VIRTUAL else ""
    if outcome.target is None:
        return (
            f"{where}{first.label} had the highest throughput, {first.throughput:,.0f} samples/s; "
            "no target was set."
        )
    goal = f"{outcome.metric} {outcome.target:g}"
    if not math.isfinite(first.median):
        return f"{where}{_nobody(first, goal)}"
    text = f"{first.label} reached {goal} in {_time(first, world)}"
    if not others:
        return f"{where}{text}."
    rivals = [(other, outcome.comparison(first, other)) for other in others]
    never = [other.label for other in others if not other.reached]
    came = [(other, comparison) for other, comparison in rivals if other.reached]
    if not came:
        return f"{where}{text}, and nobody else did."
    ending = f"; {_few(never)} missed it in every run." if never else "."
    level = [rival for rival in came if not rival[1].is_faster]
    if len(first.times) == 1:
        return f"{where}{text}, first; {_next(*came[0])}{ending}"
    if not level:
        return f"{where}{text}, first and {_ahead(*came[0])}{ending}"
    return f"{where}{text}, but that is a tie: {_level(level)}{ending}"


def _few(labels: list[str]) -> str:
    """Of a grid very many may have missed it; the table names them."""
    return " and ".join(labels) if len(labels) <= 3 else f"{len(labels)} others"


def _nobody(nearest: Standing, goal: str) -> str:
    came = (
        "" if nearest.best is None else f"; {nearest.label} came nearest, with {nearest.best:.4g}"
    )
    few = f" ({nearest.reached} of {len(nearest.times)} runs)" if nearest.reached else ""
    return f"Nobody reached {goal} in more than half of the runs{few}{came}."


def _time(standing: Standing, world: str) -> str:
    unit = "virtual s" if world == VIRTUAL else "s"
    text = f"{standing.median:.3g} {unit}"
    if len(standing.times) > 1:
        text += (
            f" (median of {len(standing.times)} seeds, 95 % interval {_range(standing.interval)})"
        )
    return text


def _ahead(other: Standing, comparison: Comparison) -> str:
    if math.isinf(comparison.ratio):
        return f"ahead of {other.label}, which missed it in half of its runs or more"
    return f"{comparison.ratio:.2f}x ({_range(comparison.interval)}) ahead of {other.label}"


def _next(other: Standing, comparison: Comparison) -> str:
    if math.isnan(comparison.ratio):
        return f"{other.label} has no seed in common with it"
    if math.isinf(comparison.ratio):
        return f"{other.label} missed it in half of its runs or more"
    return f"{other.label} took {comparison.ratio:.2f}x as long"


def _level(rivals: list[tuple[Standing, Comparison]]) -> str:
    """The nearest in full; the table has the others."""
    nearest, comparison = rivals[0]
    text = f"{_next(nearest, comparison)} ({_range(comparison.interval)})"
    others = len(rivals) - 1
    if not others:
        return text
    return f"{text}, and {others} more cannot be told apart from it"


def _range(interval: Interval) -> str:
    low, high = (_short(value) for value in (interval.low, interval.high))
    return f"{low} to {high}"


def _short(value: float) -> str:
    return f"{value:.3g}" if math.isfinite(value) else "no end"
