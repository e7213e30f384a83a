"""Time and cost to several levels of any result: Tables 4 and 6 of Baunsgaard et al."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from regatta.arrival import Level, Target, lasting
from regatta.config import nearest
from regatta.events import Evaluated
from regatta.metrics import cost_of, scores_of, wall_time
from regatta.race.outcome import Finish, Outcome, Standing
from regatta.report.cells import NEVER, Table, price

_METRICS, _LEVELS = 2, 4  # that a page has room for; more are for who asks for them
_LESS = ("loss", "error rate", "cer", "cer_longer", "per", "ter", "wer")  # is better
_MINUTES = 600.0  # seconds from which on times are told in minutes


@dataclass(frozen=True)
class Reached:
    """A lane at a level: medians over the seeds, endless where half of the runs or more missed."""

    lane: str
    metric: str
    level: float
    seconds: float
    relative: float | None  # to the first lane of its world; None: either never was there
    cost: float | None  # None: no price is known


# -- which levels -----------------------------------------------------------------------------


def levels_of(outcome: Outcome) -> list[Level]:
    """Those that were asked for; or round numbers on the way of the metric and of one more."""
    if outcome.levels:
        return list(outcome.levels)
    names = [name for name in _results(outcome) if name not in (outcome.metric, "loss")]
    known = [
        name for name in (outcome.metric, *names) if is_higher_better(outcome, name) is not None
    ]
    found = ((name, _round_levels(outcome, name)) for name in known)
    told = [levels for _, levels in found if levels][:_METRICS]
    return [level for levels in told for level in levels]


def asked_levels(outcome: Outcome, texts: Sequence[str]) -> tuple[Level, ...]:
    """As a person writes them: `wer=0.5,0.4`; `<=` or `>=` where a name tells no direction."""
    levels = []
    for text in texts:
        parts = re.fullmatch(r"([^<>=]+)(<=|>=|=)(.+)", text.strip())
        if parts is None:
            raise ValueError(f"--level {text!r} is not of the form wer=0.5,0.4")
        name, sign = parts[1].strip(), parts[2]
        if name not in _results(outcome):
            raise ValueError(nearest(name, _results(outcome), "result of the evaluations"))
        higher = is_higher_better(outcome, name) if sign == "=" else sign == ">="
        if higher is None:
            raise ValueError(
                f"--level {text}: is more of it better, or less? Write {name}>=... or {name}<=..."
            )
        for value in _numbers(parts[3], text):
            levels.append(Level(name, Target(value, higher, outcome.last)))
    return tuple(levels)


def _numbers(text: str, whole: str) -> list[float]:
    try:
        values = [float(part) for part in text.split(",")]
    except ValueError:
        values = [math.nan]
    if not all(map(math.isfinite, values)):
        raise ValueError(f"--level {whole!r}: numbers with commas between them")
    return values


def is_higher_better(outcome: Outcome, name: str) -> bool | None:
    """None: nobody knows."""
    if name == outcome.metric:
        return outcome.higher_is_better
    if name.startswith("accuracy"):
        return True
    return False if any(f" {name}".endswith(f" {less}") for less in _LESS) else None


def _results(outcome: Outcome) -> list[str]:
    """All that evaluations found, in their order."""
    events = (e for s in outcome.standings for finish in s.finishes for e in finish.events)
    return list(dict.fromkeys(n for e in events if isinstance(e, Evaluated) for n in e.results))


def _round_levels(outcome: Outcome, name: str) -> list[Level]:
    """As many as there is room for, between the first evaluations and the best, that half of a
    lane's runs reached."""
    finishes = [finish for standing in outcome.standings for finish in standing.finishes]
    curves = [[score.value for score in scores_of(finish.events, name)] for finish in finishes]
    firsts = [curve[0] for curve in curves if curve and math.isfinite(curve[0])]
    values = [value for curve in curves for value in curve if math.isfinite(value)]
    higher = bool(is_higher_better(outcome, name))
    if not firsts or not (way := abs((best := (max if higher else min)(values)) - median(firsts))):
        return []
    power = math.floor(math.log10(way)) - 1
    for factor in (1, 2, 5, 10, 20, 50):
        rounded = _multiples(factor, power, median(firsts), best)
        levels = [Level(name, Target(value, higher, outcome.last)) for value in rounded]
        reached = [level for level in levels if _is_reached(outcome, level)]
        if len(reached) <= _LEVELS:
            return reached
    return []


def _multiples(factor: int, power: int, first: float, best: float) -> list[float]:
    """Of factor * 10^power, from beyond the first to the best."""
    step = factor * 10.0**power
    if best < first:
        numbers = range(math.ceil(first / step) - 1, math.ceil(best / step - 1e-9) - 1, -1)
    else:
        numbers = range(math.floor(first / step) + 1, math.floor(best / step + 1e-9) + 1)
    return [float(f"{number * factor}e{power}") for number in numbers]


def _is_reached(outcome: Outcome, level: Level) -> bool:
    return any(math.isfinite(_time(standing, level)) for standing in outcome.standings)


# -- who was there when -----------------------------------------------------------------------


def reached_levels(outcome: Outcome) -> list[Reached]:
    """Lane by lane as they were declared, level by level."""
    levels, came = levels_of(outcome), _as_declared(outcome)
    first = {standing.lane.world: standing for standing in reversed(came)}
    found = []
    for standing in came:
        for level in levels:
            time, by = _time(standing, level), _time(first[standing.lane.world], level)
            is_known = math.isfinite(time) and 0 < by < math.inf
            relative = time / by if is_known else None
            cost = _cost(standing, level)
            value = level.target.value
            found.append(Reached(standing.label, level.metric, value, time, relative, cost))
    return found


def _as_declared(outcome: Outcome) -> list[Standing]:
    by_lane = {standing.lane: standing for standing in outcome.standings}
    return [by_lane[lane] for lane in outcome.lanes or by_lane if lane in by_lane]


def _time(standing: Standing, level: Level) -> float:
    times = (_arrival(finish, level) for finish in standing.finishes)
    return median(math.inf if time is None else time for time in times)


def _cost(standing: Standing, level: Level) -> float | None:
    """By the clock on the wall: a machine is paid for while it evaluates."""
    if any(finish.summary.price_per_hour is None for finish in standing.finishes):
        return None
    costs = (
        cost_of(wall_time(_arrival(f, level), f.events), f.summary.price_per_hour)
        for f in standing.finishes
    )
    return median(math.inf if cost is None else cost for cost in costs)


def _arrival(finish: Finish, level: Level) -> float | None:
    return lasting(scores_of(finish.events, level.metric), level.target)


# -- the table --------------------------------------------------------------------------------


def tta_beyond_target(outcome: Outcome) -> Table | None:
    """Where it says more than the times to the target, and on the way there, do."""
    metrics = {level.metric for level in levels_of(outcome)}
    says_more = outcome.levels or outcome.target is None or len(metrics) > 1
    return tta(outcome) if says_more else None


def tta(outcome: Outcome) -> Table | None:
    """Of every lane a row of times, one relative to the first lane, and one of costs."""
    levels, found = levels_of(outcome), reached_levels(outcome)
    if not found:
        return None
    is_long = max((r.seconds for r in found if math.isfinite(r.seconds)), default=0.0) >= _MINUTES
    rows: list[list[str]] = []
    for start in range(0, len(found), len(levels)):
        lane = found[start : start + len(levels)]
        rows.append([lane[0].lane, "min" if is_long else "s", *(_told(r, is_long) for r in lane)])
        rows.append(["", "relative", *(_percent(r.relative) for r in lane)])
        if any(r.cost is not None for r in lane):
            rows.append(["", "cost", *(price(r.cost) for r in lane)])
    metrics = " and ".join(dict.fromkeys(level.metric for level in levels))
    return Table(
        f"Time to levels of {metrics}",
        "Medians over the seeds of the training time until a level is reached, and relative to "
        "the first lane (simulated lanes to the first simulated one). Costs are by the clock on "
        f"the wall, evaluation included. {NEVER}: not reached in half of the runs.",
        ["strategy", "", *(f"{level.metric} {level.target.value:g}" for level in levels)],
        rows,
        words=2,
        is_ranked=False,
        is_grouped=True,
    )  # fmt: skip


def _told(reached: Reached, in_minutes: bool) -> str:
    if not math.isfinite(reached.seconds):
        return NEVER
    return f"{reached.seconds / 60:.1f}" if in_minutes else f"{reached.seconds:.2f}"


def _percent(value: float | None) -> str:
    return "" if value is None else f"{value:.0%}"
