"""The tables of a report."""

from __future__ import annotations

import math
from statistics import median

from regatta.arrival import Score, Target, arrival
from regatta.metrics import scores_of
from regatta.race.foretold import foretold, orders
from regatta.race.outcome import Finish, Outcome, Standing
from regatta.report.cells import (
    NEVER,
    Table,
    number,
    one_or_none,
    price,
    ratio,
    seconds,
    span,
    without_empty_columns,
)  # fmt: skip
from regatta.report.combinations import combinations, families
from regatta.report.deaths import deaths
from regatta.report.nodes import accuracies, throughputs
from regatta.report.tta import tta_beyond_target
from regatta.statistics import Comparison

_PARTS = (0.5, 0.8, 0.9, 1.0)  # of the way from the first evaluation to the target


def all_tables(outcome: Outcome) -> list[Table]:
    """Those that have something to say of this outcome."""
    made = [standings(outcome), combinations(outcome), families(outcome), levels(outcome)]
    made += [throughputs(outcome), accuracies(outcome)]
    made += [tta_beyond_target(outcome), speed(outcome), accuracy(outcome)]
    made += [
        deaths(outcome),
        resources(outcome),
        cost(outcome),
        predictions(outcome),
        tuning(outcome),
    ]
    return [table for table in made if table is not None and table.rows]


def standings(outcome: Outcome) -> Table | None:
    """Time to the target, over the seeds."""
    if outcome.target is None:
        return None
    goal = f"{outcome.metric} {outcome.target:g}"
    how = f" in the median of the last {outcome.last} evaluations" if outcome.last > 1 else ""
    rows = []
    for standing in outcome.standings:
        first = outcome.of_world(standing.lane.world)[0]
        comparison = None if standing is first else outcome.comparison(first, standing)
        rows.append(
            [
                standing.label,
                str(standing.lane.workers),
                f"{standing.reached} of {len(standing.times)}",
                seconds(standing.median),
                span(standing.interval) if len(standing.times) > 1 else "",
                seconds(standing.olympic),
                "" if comparison is None else ratio(comparison.ratio),
                "" if comparison is None else span(comparison.interval),
                "" if comparison is None else _result(standing, comparison),
            ]
        )
    headings = ["strategy", "workers", "reached", "median", "95 % interval", "olympic mean"]
    return Table(
        f"Time to {goal}",
        f"Seconds of training until {goal} is reached{how}; evaluation is off the clock. A run "
        "that missed it counts as endless. Olympic mean: without the fastest and the slowest. "
        "Times as long: against the first, seed by seed, with an interval that holds for all "
        "comparisons at once; a tie where it contains 1, and below 1 %.",
        [*headings, "times as long", "interval", ""],
        rows,
    )


def _result(standing: Standing, comparison: Comparison) -> str:
    if not standing.reached:
        return "missed"
    if comparison.pairs < 2:
        return ""
    return "tie" if comparison.is_tie else "faster" if comparison.is_slower else "slower"


def levels(outcome: Outcome) -> Table | None:
    """TTA for several targets on the way, in seconds and relative to one worker."""
    if outcome.target is None or not outcome.standings:
        return None
    goals = targets_on_the_way(outcome)
    rows = []
    for standing in outcome.standings:
        single = outcome.single(standing)
        cells = []
        for goal in goals:
            mine = time_to(standing, goal)
            alone = math.nan if single is None else time_to(single, goal)
            is_known = math.isfinite(mine) and 0 < alone < math.inf
            relative = f" ({mine / alone:.2f})" if is_known else ""
            cells.append(f"{seconds(mine)}{relative if single is not standing else ''}")
        rows.append([standing.label, *cells])
    return Table(
        f"Time to several levels of {outcome.metric}",
        "Medians over the seeds, and in brackets relative to one worker. The levels lie "
        f"half-way, at 80 % and at 90 % between the first evaluation and the target. {NEVER}: not "
        "reached in half of the runs.",
        ["strategy", *(f"{goal.value:.4g}" for goal in goals)],
        rows,
    )


def targets_on_the_way(outcome: Outcome) -> list[Target]:
    assert outcome.target is not None
    firsts = [
        curve[0].value
        for standing in outcome.standings
        for finish in standing.finishes
        if (curve := scores(finish)) and math.isfinite(curve[0].value)
    ]
    start = median(firsts) if firsts else outcome.target
    values = [start + part * (outcome.target - start) for part in _PARTS]
    return [
        Target(value, outcome.higher_is_better, outcome.last)
        for value in dict.fromkeys([*(float(f"{v:.3g}") for v in values[:-1]), outcome.target])
    ]


def scores(finish: Finish) -> list[Score]:
    return scores_of(finish.events, finish.summary.metric)


def time_to(standing: Standing, goal: Target) -> float:
    times = [arrival(scores(finish), goal).lasting for finish in standing.finishes]
    return median(math.inf if time is None else time for time in times)


def speed(outcome: Outcome) -> Table:
    """Throughput, speedup and efficiency."""
    rows = []
    for standing in outcome.standings:
        scaling, sooner = outcome.scaling(standing), outcome.speedup(standing)
        workers = standing.lane.workers
        rows.append(
            [
                standing.label,
                str(workers),
                str(standing.lane.minibatch),
                f"{standing.throughput:,.0f}",
                one_or_none([f.summary.audio_throughput for f in standing.finishes], "{:,.1f}"),
                ratio(scaling),
                "" if scaling is None else f"{scaling / workers:.0%}",
                ratio(sooner),
                outcome.kind_of_scaling(standing),
            ]
        )
    table = Table(
        "Throughput, speedup and efficiency",
        "Against the best run of one worker with the same settings. Speedup compares samples a "
        "second, efficiency is speedup over workers, to target compares times to the target. Weak "
        "scaling: every worker has the minibatch that one worker has; strong: all of them together "
        "have.",
        ["strategy", "workers", "minibatch", "samples/s", "speech s/s", "speedup", "efficiency",
         "to target", "scaling"],
        rows,
    )  # fmt: skip
    return without_empty_columns(table)


def accuracy(outcome: Outcome) -> Table:
    rows = [
        [
            standing.label,
            number(standing.final),
            number(standing.best),
            f"{median(f.summary.seconds for f in standing.finishes):.2f} s",
            ", ".join(sorted({f.summary.reason for f in standing.finishes})),
        ]
        for standing in outcome.standings
    ]
    return Table(
        f"Final {outcome.metric or 'results'}",
        "Medians over the seeds; best is the best of all evaluations. A run that reached the "
        "target was ended by it.",
        ["strategy", "final", "best", "training time", "ended by"],
        rows,
    )


def resources(outcome: Outcome) -> Table:
    """What the time went to, and what was moved."""
    rows = []
    for standing in outcome.standings:
        all_of_it = [finish.summary for finish in standing.finishes]
        rows.append(
            [
                standing.label,
                f"{median(s.waiting_share for s in all_of_it):.1%}",
                one_or_none([s.cpu_cores for s in all_of_it], "{:.2f}"),
                one_or_none([s.gpu_share for s in all_of_it], "{:.0%}"),
                one_or_none([s.memory and s.memory / 1e6 for s in all_of_it], "{:,.0f} MB"),
                f"{median(s.bytes for s in all_of_it) / 1e6:,.1f} MB",
                f"{median(s.messages for s in all_of_it):,.0f}",
                one_or_none([s.mean_staleness for s in all_of_it], "{:.2f}"),
                one_or_none([s.dropped_share for s in all_of_it], "{:.1%}")
                if any(s.dropped_share for s in all_of_it) else "",
                next((f"rank {s.slowest.rank}, {s.slowest.times:.2f}x" for s in all_of_it
                      if s.slowest is not None), ""),
                one_or_none([s.joules for s in all_of_it], "{:,.0f} J") or "not measured",
            ]
        )  # fmt: skip
    table = Table(
        "Where the time went, and what was moved",
        "Medians over the seeds. Waiting is the share of the workers' time; cores are those that "
        "a rank kept busy in the mean, sampled while it ran. Slowest: the worker that computed "
        "much longer a turn than the others, and how many times as long.",
        ["strategy", "waiting", "cores busy", "GPU busy", "memory a rank", "moved", "messages",
         "staleness", "dropped", "slowest", "energy"],
        rows,
    )  # fmt: skip
    return without_empty_columns(table)


def cost(outcome: Outcome) -> Table | None:
    if all(standing.cost is None for standing in outcome.standings):
        return None
    rows = [
        [
            standing.label,
            price(standing.finishes[0].summary.price_per_hour),
            price(standing.cost),
            price(median(f.summary.cost or 0.0 for f in standing.finishes)),
        ]
        for standing in sorted(
            outcome.standings, key=lambda s: math.inf if s.cost is None else s.cost
        )
    ]
    return Table(
        "Cost",
        "In the currency of the prices that were given. To the target: the price of the hosts "
        "for the time until it was reached, evaluation included; whole run: until the run ended.",
        ["strategy", "price an hour", "to target", "whole run"],
        rows,
    )


def predictions(outcome: Outcome) -> Table | None:
    """Simulated against real, where a lane ran in both worlds."""
    if not outcome.is_mixed or outcome.target is None:
        return None
    lanes = foretold(outcome)
    told_apart = orders(lanes)
    right = sum(order.is_foretold for order in told_apart)
    rows = [
        [
            lane.simulated.label,
            _surely(lane.real),
            _surely(lane.simulated),
            f"{lane.error:+.1%}" if math.isfinite(lane.error) else NEVER,
        ]
        for lane in lanes
    ]
    return Table(
        "Simulated and real",
        "Medians of the time to the target, with their 95 % intervals. Simulated seconds are "
        "charged by the description of a cluster, which need not be this machine. Of "
        f"{math.comb(len(lanes), 2)} pairs the processes tell {len(told_apart)} apart; the "
        f"simulation has {right} of them in the same order.",
        ["strategy", "real", "simulated", "error"],
        rows,
    )


def _surely(standing: Standing) -> str:
    text = seconds(standing.median)
    return f"{text} ({span(standing.interval)})" if len(standing.times) > 1 else text


def tuning(outcome: Outcome) -> Table | None:
    if not outcome.tune:
        return None
    rows = [
        [standing.label, f"{trial.lr:g}", seconds(trial.summary.lasting_time),
         number(trial.summary.best), "chosen" if trial.lr == standing.lr else ""]
        for standing in outcome.standings
        for trial in standing.trials
    ]  # fmt: skip
    return Table(
        "Learning rates that were tried",
        f"{outcome.tune} for every lane, on a seed that is not raced; the first at the target was "
        "chosen, or the one that came nearest.",
        ["strategy", "learning rate", "to target", "best", ""],
        rows,
    )
