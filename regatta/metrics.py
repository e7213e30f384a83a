"""Measures of a run, from its events alone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from regatta.arrival import NEVER, Arrival, Score, Target, arrival
from regatta.events import Ended, Evaluated, Event, RankEnded, Resumed, Started


@dataclass(frozen=True)
class Summary:
    """What one run amounted to. Times are training seconds: the clock stands during evaluation."""

    strategy: str
    workers: int
    world: str
    metric: str
    target: float | None
    time_to_target: float | None  # first evaluation at or beyond the target
    interpolated_time: float | None  # where a straight line from the evaluation before meets it
    seconds: float
    samples: int
    throughput: float  # samples a second
    final: float | None
    best: float | None
    reason: str
    evaluation_seconds: float
    waiting_share: float  # of the workers' time
    messages: int
    bytes: int
    dropped_share: float  # of the gradients computed: they came too late to be used
    mean_staleness: float | None
    p95_staleness: int | None
    max_staleness: int | None
    staleness: dict[int, int]  # updates by age


def summarise(events: Sequence[Event]) -> Summary:
    started = next(e for e in events if isinstance(e, Started))
    for event in events:
        if isinstance(event, Resumed):
            started = replace(started, target=event.target)
    ended = next((e for e in reversed(events) if isinstance(e, Ended)), None)
    if ended is None:
        raise ValueError("the run has not ended")
    scores = [e for e in events if isinstance(e, Evaluated)]
    values = [e.results[started.metric] for e in scores]
    ranks = [e for e in events if isinstance(e, RankEnded)]
    ages = staleness(ranks)
    arrived = _arrival(scores, started)
    workers = [r for r in ranks if r.role == "worker"]
    busy = sum(r.computing + r.waiting for r in workers)
    return Summary(
        strategy=started.strategy,
        workers=started.workers,
        world=started.world,
        metric=started.metric,
        target=started.target,
        time_to_target=arrived.first,
        interpolated_time=arrived.interpolated,
        seconds=ended.training,
        samples=sum(r.samples for r in workers),
        throughput=sum(r.samples for r in workers) / ended.training if ended.training else 0.0,
        final=values[-1] if values else None,
        best=(max if started.higher_is_better else min)(values) if values else None,
        reason=ended.reason,
        evaluation_seconds=sum(e.seconds for e in scores),
        waiting_share=sum(r.waiting for r in workers) / busy if busy else 0.0,
        messages=sum(r.messages for r in ranks),
        bytes=sum(r.bytes for r in ranks),
        dropped_share=_dropped_share(ranks),
        mean_staleness=_mean(ages),
        p95_staleness=_quantile(ages, 0.95),
        max_staleness=max(ages) if ages else None,
        staleness=dict(sorted(ages.items())),
    )


def _arrival(evaluations: Sequence[Evaluated], started: Started) -> Arrival:
    if started.target is None:
        return NEVER
    scores = [Score(e.training, e.results[started.metric]) for e in evaluations]
    return arrival(scores, Target(started.target, started.higher_is_better))


def staleness(ranks: Sequence[RankEnded]) -> dict[int, int]:
    """Gradients by age, over all ranks."""
    ages: dict[int, int] = {}
    for rank in ranks:
        for age, count in rank.staleness.items():
            ages[age] = ages.get(age, 0) + count
    return ages


def _dropped_share(ranks: Sequence[RankEnded]) -> float:
    """Every server sees a stripe of every gradient, and may drop it or not."""
    servers = sum(r.role == "server" for r in ranks)
    computed = max(1, servers) * sum(r.turns for r in ranks)
    return sum(r.dropped for r in ranks) / computed if computed else 0.0


def _quantile(counts: dict[int, int], share: float) -> int | None:
    """The least age that so large a share does not exceed."""
    below, total = 0, sum(counts.values())
    for age, count in sorted(counts.items()):
        below += count
        if below >= share * total:
            return age
    return None


def _mean(counts: dict[int, int]) -> float | None:
    total = sum(counts.values())
    return sum(age * count for age, count in counts.items()) / total if total else None
