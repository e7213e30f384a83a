"""Time of an epoch and what was reached, a row a combination: the two tables of Hu et al."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import fmean

from regatta.race.entries import Lane, place_of, varies_in
from regatta.race.outcome import Outcome, Standing
from regatta.report.cells import Table, ratio
from regatta.statistics import Interval, mean_interval

_CONFIDENCE = 0.9
_SHARES = ("accuracy", "error rate", "cer", "per", "ter", "wer")  # how their names end
_HOUR = 3600.0


@dataclass(frozen=True)
class Mean:
    """Over the seeds."""

    value: float
    interval: Interval | None  # None: one run alone does not tell


@dataclass(frozen=True)
class Row:
    lane: Lane
    family: str  # the lanes that differ from it by no more than minibatch and settings
    epoch_seconds: float | None  # of training, in the mean over the seeds
    relative_time: float | None  # to the first row's
    final: Mean | None
    best: Mean | None


def rows_of(outcome: Outcome) -> list[Row]:
    """As they were declared; none where lanes differ in nothing but their strategies."""
    if not any(varies_in(outcome.lanes, name) for name in ("settings", "minibatch", "workers")):
        return []
    by_lane = {standing.lane: standing for standing in outcome.standings}
    came = [by_lane[lane] for lane in outcome.lanes if lane in by_lane]
    first = {s.lane.world: _epoch_seconds(s) for s in reversed(came)}
    rows = []
    for standing in came:
        lane, time, by = standing.lane, _epoch_seconds(standing), first[standing.lane.world]
        summaries = [finish.summary for finish in standing.finishes]
        rows.append(
            Row(
                lane,
                _family(lane, outcome.lanes),
                time,
                time / by if time is not None and by else None,
                _mean([summary.final for summary in summaries]),
                _mean([summary.best for summary in summaries]),
            )
        )
    return rows


def _epoch_seconds(standing: Standing) -> float | None:
    mean = _mean([finish.summary.epoch_seconds for finish in standing.finishes])
    return None if mean is None else mean.value


def _mean(values: Sequence[float | None]) -> Mean | None:
    known = [value for value in values if value is not None]
    return Mean(fmean(known), mean_interval(known, _CONFIDENCE)) if known else None


def _family(lane: Lane, lanes: Sequence[Lane]) -> str:
    """The baseline is `single`; where it is not raced, the first lane that has one worker."""
    alone = sorted((other for other in lanes if other.workers == 1), key=_is_not_single)
    is_baseline = lane.workers == 1 and lane.spec == alone[0].spec
    workers = f"{lane.workers} worker" + ("" if lane.workers == 1 else "s")
    name = f"{'baseline' if is_baseline else lane.spec} with {workers}"
    return f"{name}, {place_of(lane)}" if _places(lanes) > 1 else name


def _is_not_single(lane: Lane) -> bool:
    return not lane.is_single


def _places(lanes: Sequence[Lane]) -> int:
    return len({(lane.world, lane.cluster) for lane in lanes})


# -- as tables --------------------------------------------------------------------------------


def combinations(outcome: Outcome) -> Table | None:
    """In the form of Table 1: what varies, then time and result."""
    rows = rows_of(outcome)
    if not rows:
        return None
    names = _names(rows)
    columns: dict[str, list[str]] = {}
    if len({row.lane.spec for row in rows}) > 1:
        columns["strategy"] = [row.lane.spec for row in rows]
    if _places(outcome.lanes) > 1:
        columns["place"] = [place_of(row.lane) for row in rows]
    columns |= {name: [row.lane.values.get(name, "") for row in rows] for name in names}
    words = len(columns)
    result, is_share = _heading(outcome, rows), _is_share(outcome, rows)
    columns |= {
        "workers": [str(row.lane.workers) for row in rows],
        "minibatch": [str(row.lane.minibatch) for row in rows],
        "s/epoch": _times([row.epoch_seconds for row in rows]),
        "relative": [ratio(row.relative_time) for row in rows],
        result: [_with_error(row.final, is_share) for row in rows],
        "best": [_value(row.best, is_share) for row in rows],
    }
    return Table(
        f"Time of an epoch and {outcome.metric}, by combination",
        "Means over the seeds; ±: the 90 % interval of the mean (Student's). Seconds of training "
        "for as many samples as the data have, evaluation excluded, and relative to the first "
        f"row. {outcome.metric.capitalize()} is that of the final answer, best that of the best "
        "evaluation." + _ended_early(outcome),
        list(columns),
        list(zip(*columns.values(), strict=True)),
        words=max(1, words),
        is_ranked=False,
    )


def families(outcome: Outcome) -> Table | None:
    """In the form of Table 2: minibatch, result and time, grouped by how it was trained."""
    rows = rows_of(outcome)
    if not rows:
        return None
    names, is_share = _names(rows), _is_share(outcome, rows)
    in_hours = max(row.epoch_seconds or 0.0 for row in rows) >= _HOUR
    unit, length = ("h/epoch", _HOUR) if in_hours else ("s/epoch", 1.0)
    rows.sort(key=_by_family(rows))
    times = _times([None if r.epoch_seconds is None else r.epoch_seconds / length for r in rows])
    cells, last = [], ""
    for row, time in zip(rows, times, strict=True):
        cells.append(
            [
                row.family if row.family != last else "",
                *(row.lane.values.get(name, "") for name in names),
                str(row.lane.minibatch),
                _with_error(row.final, is_share),
                time,
            ]
        )
        last = row.family
    return Table(
        f"{outcome.metric.capitalize()} and time of an epoch, by minibatch",
        "The same, grouped by strategy and workers. The minibatch is that of one worker.",
        ["", *names, "minibatch", _heading(outcome, rows), unit],
        cells,
        words=1 + len(names),
        is_ranked=False,
        is_grouped=True,
    )


def _by_family(rows: Sequence[Row]) -> Callable[[Row], int]:
    order = list(dict.fromkeys(row.family for row in rows))
    return lambda row: order.index(row.family)


def _names(rows: Sequence[Row]) -> list[str]:
    """Of the settings that vary."""
    return list(dict.fromkeys(name for row in rows for name in row.lane.values))


def _is_share(outcome: Outcome, rows: Sequence[Row]) -> bool:
    """Whether it is told in %: by its name, unless its values say otherwise."""
    found = [mean.value for row in rows for mean in (row.final, row.best) if mean is not None]
    return outcome.metric.lower().endswith(_SHARES) and not any(
        value < 0 or value > 1 for value in found
    )


def _heading(outcome: Outcome, rows: Sequence[Row]) -> str:
    return f"{outcome.metric} (%)" if _is_share(outcome, rows) else outcome.metric


def _ended_early(outcome: Outcome) -> str:
    if outcome.target is None:
        return ""
    return (
        " A run that reached the target was ended by it: to compare what is reached in equal "
        "epochs, race without one (--set stop.target=none)."
    )


def _value(mean: Mean | None, is_share: bool) -> str:
    if mean is None:
        return ""
    return f"{100 * mean.value:.2f}" if is_share else f"{mean.value:.4f}"


def _with_error(mean: Mean | None, is_share: bool) -> str:
    if mean is None or mean.interval is None:
        return _value(mean, is_share)
    width = Mean((mean.interval.high - mean.interval.low) / 2, None)
    return f"{_value(mean, is_share)} ± {_value(width, is_share)}"


def _times(values: Sequence[float | None]) -> list[str]:
    """With as many decimals as the shortest needs for three digits."""
    known = [value for value in values if value]
    digits = max(0, 2 - math.floor(math.log10(min(known)))) if known else 0
    return ["" if value is None else f"{value:,.{min(digits, 9)}f}" for value in values]
