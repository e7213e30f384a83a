"""What a rank writes down of itself: the events of a run, one method each."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING

from regatta.comm import Seconds, Timeline
from regatta.config import spec_of
from regatta.events import (
    Ended,
    Evaluated,
    Progress,
    RankEnded,
    Resumed,
    Sampled,
    Spans,
    Started,
    Warned,
)
from regatta.fingerprint import weights_digest

if TYPE_CHECKING:
    from regatta.engine import Rank

_PROGRESS_SECONDS = 1.0
_ALL_SPANS = 60_000  # of all ranks together: a thousand ranks get few each


class Diary:
    def __init__(self, rank: Rank) -> None:
        self._rank = rank
        self._log = rank.around.log
        self._last_progress = -math.inf
        self._warned: set[str] = set()
        room = min(rank.run.recording.spans, _ALL_SPANS // rank.comm.size)
        if room and not rank.around.timing_only:
            rank.comm.traffic.timeline = Timeline(room)

    def started(self) -> None:
        rank, run = self._rank, self._rank.run
        metric, hosts = run.task.metric, set(rank.around.hosts) or {0}
        self._log(
            Started(
                rank=rank.comm.rank,
                time=0.0,
                world=rank.around.world,
                strategy=run.strategy.name,
                workers=run.workers,
                ranks=rank.comm.size,
                minibatch=run.minibatch,
                seed=run.seed,
                metric=metric.name,
                higher_is_better=metric.higher_is_better,
                target=run.stop.target,
                vector_bytes=rank.vector_bytes,
                last=run.stop.last,
                spec=spec_of(run.strategy),
                lr=run.optimiser.lr,
                hosts=len(hosts),
                worker_hosts=len(set(rank.around.hosts[: run.workers])) or 1,
                price_per_hour=run.cluster.price_of(hosts),
                train_samples=rank.around.data.train_samples,
                eval_samples=getattr(rank.around.data, "eval_samples", None),
                start=rank.origin,
            )
        )

    def resumed(self, time: Seconds, since: Seconds) -> None:
        """Now, from a checkpoint that was saved at `since`."""
        rank = self._rank
        self._log(
            Resumed(
                rank=rank.comm.rank,
                time=time,
                segment=rank.segment,
                target=rank.stop.target,
                last=rank.stop.last,
                since=None if since == time else since,
                workers=rank.run.workers,
            )
        )

    def evaluated(self, began: Seconds, training: Seconds, seconds: Seconds) -> None:
        """An evaluation that began at these times and took so long, off the training clock."""
        rank = self._rank
        samples = rank.samples()
        self._log(
            Evaluated(
                rank=rank.comm.rank,
                time=began,
                training=training,
                samples=samples,
                epoch=samples / (rank.order.samples or 1),
                seconds=seconds,
                results=rank.scores.results,
            )
        )
        self._warn_of(rank.scores.results, began)
        timeline = rank.comm.traffic.timeline
        if timeline is not None and seconds:
            shift = self._clock_shift()
            timeline.note("e", began - shift, began + seconds - shift)

    def _warn_of(self, results: Mapping[str, float], began: Seconds) -> None:
        """Once of every kind."""
        complaints = getattr(self._rank.around.data, "complaints", None)
        for kind, text in (complaints(results) if complaints else {}).items():
            if kind not in self._warned:
                self._warned.add(kind)
                self._log(Warned(rank=self._rank.comm.rank, time=began, text=text))

    def sampled(self, turn: int, seconds: Seconds, reference: str, hypothesis: str) -> None:
        rank = self._rank
        self._log(
            Sampled(
                rank=rank.comm.rank,
                time=rank.time(),
                turns=turn,
                seconds=seconds,
                reference=reference,
                hypothesis=hypothesis,
            )
        )

    def progress(self) -> None:
        """Where this rank stands, if it has not just told."""
        rank, now = self._rank, self._rank.comm.now()
        if now - self._last_progress < _PROGRESS_SECONDS:
            return
        self._last_progress = now
        traffic, loss = rank.comm.traffic, rank.replica.last_loss
        self._log(
            Progress(
                rank=rank.comm.rank,
                time=rank.time(),
                turns=rank.replica.turns,
                samples=rank.stream.seen,
                loss=None if loss is None else loss.item(),
                computing=traffic.computing,
                waiting=traffic.waiting,
                messages=traffic.messages,
                bytes=traffic.nbytes,
                place=rank.stream.place if rank.stream.extra else None,
            )
        )
        self._spans()

    def ended(self) -> RankEnded:
        rank, traffic, replica = self._rank, self._rank.comm.traffic, self._rank.replica
        self._spans()
        ended = RankEnded(
            rank=rank.comm.rank,
            time=rank.time(),
            role="worker" if rank.comm.rank < rank.run.workers else "server",
            turns=replica.turns,
            steps=replica.steps,
            samples=rank.stream.seen,
            computing=traffic.computing,
            waiting=traffic.waiting,
            messages=traffic.messages,
            bytes=traffic.nbytes,
            dropped=traffic.dropped,
            staleness=dict(sorted(traffic.staleness.items())),
            digest=None if rank.around.timing_only else weights_digest(replica.weights),
            audio=rank.stream.audio,
            joules=rank.around.joules(),
            preempted=rank.preempted,
        )
        self._log(ended)
        if rank.is_holder:
            self._log(
                Ended(
                    rank=rank.comm.rank,
                    time=rank.time(),
                    training=rank.training_time(),
                    reason=rank.reason,
                    samples=rank.samples(),
                    results=rank.scores.handed_over(rank.stop),
                )
            )
        return ended

    def _spans(self) -> None:
        timeline = self._rank.comm.traffic.timeline
        if timeline is None or not timeline.kinds:
            return
        shift = self._clock_shift()
        kinds, starts, ends = timeline.take()
        self._log(
            Spans(
                rank=self._rank.comm.rank,
                time=self._rank.time(),
                kinds=kinds,
                starts=[round(start + shift, 6) for start in starts],
                ends=[round(end + shift, 6) for end in ends],
            )
        )

    def _clock_shift(self) -> Seconds:
        """From the clock by which a rank measures to the run's."""
        rank = self._rank
        is_real = rank.around.world == "processes"
        return rank.time() - (time.perf_counter() if is_real else rank.comm.now())
