"""Measures of a run, from its events alone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import fmean, median

from regatta.arrival import NEVER, Arrival, Score, Target, arrival
from regatta.events import (
    Died,
    Ended,
    Evaluated,
    Event,
    Progress,
    RankEnded,
    Resumed,
    Started,
    Usage,
)  # fmt: skip

BROKEN_OFF = "broken off"  # the reason of a run that was killed and not resumed


_SLOW = 1.2  # times what the others take


@dataclass(frozen=True)
class Slowest:
    """A worker that held up the others: by what it computed, not by how long anybody waited."""

    rank: int
    times: float  # as long a turn as the others, in the median


@dataclass(frozen=True)
class Summary:
    """What one run amounted to. Times are training seconds: the clock stands during evaluation."""

    strategy: str
    spec: str  # the strategy with its options
    workers: int
    minibatch: int  # a worker
    seed: int
    lr: float | None
    world: str
    metric: str
    higher_is_better: bool
    target: float | None
    last: int  # evaluations whose median must reach it
    time_to_target: float | None  # first evaluation at or beyond the target
    interpolated_time: float | None  # where a straight line from the evaluation before meets it
    lasting_time: float | None  # until the median of the last evaluations is there: TTA(a, e)
    seconds: float
    samples: int
    throughput: float  # samples a second
    epoch_seconds: float | None  # of training, for as many samples as the data have
    audio_throughput: float | None  # seconds of speech a second
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
    cpu_cores: float | None  # that a rank kept busy, in the mean; None: not measured
    gpu_share: float | None
    memory: int | None  # bytes of the largest rank
    price_per_hour: float | None
    cost: float | None  # of the whole run, evaluation included
    cost_to_target: float | None
    joules: float | None  # None: not measured
    start: str = ""  # where the weights came from; empty: they were drawn
    deaths: int = 0  # of ranks
    lost_seconds: float = 0.0  # of work that was done again after them
    slowest: Slowest | None = None  # if one was


def summarise(events: Sequence[Event]) -> Summary:
    started = _started(events)
    ended = next((e for e in reversed(events) if isinstance(e, Ended)), None)
    scores = [e for e in events if isinstance(e, Evaluated)]
    values = [score.value for score in scores_of(scores, started.metric)]
    ranks = _ranks(events)
    workers = [r for r in ranks if r.role == "worker"]
    seconds = _last_training(events) if ended is None else ended.training
    samples = sum(r.samples for r in workers)
    epochs = samples / started.train_samples if started.train_samples else 0.0
    audio = [r.audio for r in workers if r.audio is not None]
    busy = sum(r.computing + r.waiting for r in workers)
    ages = staleness(ranks)
    arrived = _arrival(scores, started)
    usages = [e for e in events if isinstance(e, Usage)]
    price = started.price_per_hour
    return Summary(
        strategy=started.strategy,
        spec=started.spec or started.strategy,
        workers=started.workers,
        minibatch=started.minibatch,
        seed=started.seed,
        lr=started.lr,
        world=started.world,
        metric=started.metric,
        higher_is_better=started.higher_is_better,
        target=started.target,
        last=started.last,
        time_to_target=arrived.first,
        interpolated_time=arrived.interpolated,
        lasting_time=arrived.lasting,
        seconds=seconds,
        samples=samples,
        throughput=samples / seconds if seconds else 0.0,
        epoch_seconds=seconds / epochs if epochs else None,
        audio_throughput=sum(audio) / seconds if audio and seconds else None,
        final=_final(ended, values, started.metric),
        best=(max if started.higher_is_better else min)(values) if values else None,
        reason=BROKEN_OFF if ended is None else ended.reason,
        evaluation_seconds=sum(e.seconds for e in scores),
        waiting_share=sum(r.waiting for r in workers) / busy if busy else 0.0,
        messages=sum(r.messages for r in ranks),
        bytes=sum(r.bytes for r in ranks),
        dropped_share=_dropped_share(ranks),
        mean_staleness=_mean(ages),
        p95_staleness=_quantile(ages, 0.95),
        max_staleness=max(ages) if ages else None,
        staleness=dict(sorted(ages.items())),
        cpu_cores=_mean_of([share for usage in usages for share in usage.cpu]),
        gpu_share=_mean_of([share for usage in usages for share in usage.gpu or ()]),
        memory=max((usage.memory for usage in usages), default=None),
        price_per_hour=price,
        cost=cost_of(_last_time(events), price),
        cost_to_target=cost_of(wall_time(arrived.lasting, scores), price),
        joules=_joules(ranks, started.hosts, events),
        start=started.start,
        deaths=sum(isinstance(e, Died) for e in events),
        slowest=_slowest(workers),
        lost_seconds=sum(e.lost for e in events if isinstance(e, Died)),
    )


def _final(ended: Ended | None, values: Sequence[float], metric: str) -> float | None:
    """Of the answer, which with patience is not the model that was scored last."""
    last = values[-1] if values else None
    return last if ended is None else ended.results.get(metric, last)


def _started(events: Sequence[Event]) -> Started:
    """How a run began; if it was resumed to another target, that one counts."""
    started = next((e for e in events if isinstance(e, Started)), None)
    if started is None:
        raise ValueError("there is no event that says how the run started")
    for event in events:
        if isinstance(event, Resumed):
            started = replace(started, target=event.target, last=event.last)
    return started


def _ranks(events: Sequence[Event]) -> list[RankEnded]:
    """Where every rank ended; or, if it did not tell, where it was last seen."""
    known = {e.rank: _last_seen(e) for e in events if isinstance(e, Progress)}
    known |= {e.rank: e for e in events if isinstance(e, RankEnded)}
    return [known[rank] for rank in sorted(known)]


def _last_seen(e: Progress) -> RankEnded:
    return RankEnded(
        rank=e.rank, time=e.time, role="worker", turns=e.turns, steps=0, samples=e.samples,
        computing=e.computing, waiting=e.waiting, messages=e.messages, bytes=e.bytes,
    )  # fmt: skip


def _last_time(events: Sequence[Event]) -> float:
    return max((e.time for e in events), default=0.0)


def _last_training(events: Sequence[Event]) -> float:
    """How far the training clock had come when a run was broken off."""
    paused = sum(e.seconds for e in events if isinstance(e, Evaluated))
    return max(0.0, _last_time(events) - paused)


def _arrival(evaluations: Sequence[Evaluated], started: Started) -> Arrival:
    if started.target is None:
        return NEVER
    target = Target(started.target, started.higher_is_better, started.last)
    return arrival(scores_of(evaluations, started.metric), target)


def scores_of(events: Sequence[Event], metric: str) -> list[Score]:
    """The metric over training time."""
    return [
        Score(e.training, e.results[metric])
        for e in events
        if isinstance(e, Evaluated) and metric in e.results
    ]


def wall_time(training: float | None, events: Sequence[Event]) -> float | None:
    """A machine is paid for while it evaluates, too."""
    scores = (e for e in events if isinstance(e, Evaluated))
    return next((e.time + e.seconds for e in scores if e.training == training), None)


def cost_of(seconds: float | None, price_per_hour: float | None) -> float | None:
    return None if seconds is None or price_per_hour is None else seconds / 3600 * price_per_hour


def _slowest(workers: Sequence[RankEnded]) -> Slowest | None:
    """Who takes much longer than the others, if one does."""
    turns = {worker.rank: worker.computing / worker.turns for worker in workers if worker.turns}
    if len(turns) < 2:
        return None
    rank = max(turns, key=lambda rank: turns[rank])
    others = median(seconds for other, seconds in turns.items() if other != rank)
    times = turns[rank] / others if others else 1.0
    return Slowest(rank, times) if times >= _SLOW else None


def _joules(ranks: Sequence[RankEnded], hosts: int, events: Sequence[Event]) -> float | None:
    if any(isinstance(e, Resumed) for e in events):  # counters began anew
        return None
    told = [rank.joules for rank in ranks if rank.joules is not None]
    return sum(told) if told and len(told) == hosts else None


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


def _mean_of(values: Sequence[float]) -> float | None:
    return fmean(values) if values else None
