"""Build one rank, play its role, evaluate, checkpoint, stop: the same in both worlds.

A run is a sequence of segments. A segment ends where all ranks meet: at a checkpoint, at the
evaluation of a strategy whose answer is a mean, and at the end. Streams run dry, roles drain, no
message is in flight; then the roles start again.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import torch

from regatta import checkpoint
from regatta.calendar import Calendar
from regatta.choices import NOTHING, Chance
from regatta.comm import Comm
from regatta.config import Run, Stop
from regatta.data.order import Order
from regatta.data.seeds import mixed_seed
from regatta.diary import Diary
from regatta.events import Checkpointed, Event, RankEnded
from regatta.fingerprint import run_digest
from regatta.learn.body import Body
from regatta.learn.replica import Replica
from regatta.learn.stage import Rehearsal
from regatta.learn.timing import TimingReplica
from regatta.pace import Pace
from regatta.scores import Scores
from regatta.start import begin_with, identity
from regatta.stream import Stream
from regatta.tasks import Data

_TURNS_TO_HEAR = 2  # of a halt: what is said before a turn has come before the next but one


@dataclass(frozen=True)
class Surroundings:
    """Where a rank plays: what it shares with the world, not with the configuration."""

    world: str
    data: Data
    log: Callable[[Event], None]
    folder: Path | None = None  # nothing is saved without one
    resume_from: Path | None = None
    start: Path | None = None  # the weights to begin with; None: they are drawn
    timing_only: bool = False
    interrupted: Callable[[], bool] | None = None  # nobody can interrupt
    leaving: Callable[[], bool] | None = None  # whether this rank has to; None: it never has
    bodies: dict[int, Body] = field(default_factory=dict)  # that ranks of one process share
    stops: tuple[tuple[int, Stop], ...] = ()  # that were in force, by first segment; see `runs`
    hosts: Sequence[int] = ()  # of all ranks
    joules: Callable[[], float | None] = lambda: None  # that this rank's host has taken so far
    pulse: Callable[[Rank], None] = lambda rank: None  # felt before every turn that is reported


class Rank:
    def __init__(self, run: Run, comm: Comm, chance: Chance, around: Surroundings) -> None:
        self.run = run
        self.comm = comm
        self.chance = chance
        self._replays = chance.replaying
        self.around = around
        self.reports = comm.rank == 0 or not around.timing_only  # one phantom speaks for thousands
        self.order = order_of(run, around.data)
        self._stops = dict(around.stops) | ({} if around.stops else {0: run.stop})
        self._take_up_stop(min(self._stops))
        self.stream = Stream(self, comm.rank)
        self.is_holder = comm.rank == run.strategy.holder(run.workers)
        self.segment = 0
        self.epochs = 0.0  # at the last meeting
        self.reason = "budget"
        self._time_before = 0.0  # of the run, before this process took it up
        self._paused = 0.0
        self.scores = Scores(run.task.metric)
        self._scored_version = -1
        self._scored_statistics: torch.Tensor | None = None
        self._evaluations = 0
        self._stop_noted = False
        self._gradients_at_meeting = 0
        self._turns_before = self._turns_at_meeting = 0  # of the process, of the segment
        self.preempted = False
        alone = run.strategy.steps_alone and comm.rank < run.workers
        self.pace = Pace(run, self.order, alone, self.calendar.end)
        self.replica = self._build_replica()
        if not self.pace.is_constant:
            self.replica.pace = self.pace
        self._diary = Diary(self)

    def _build_replica(self) -> Any:
        run = self.run
        serves = self.comm.rank >= run.workers
        changed = self.heed if serves else _nothing_more
        if self.is_holder:
            changed = self._after_change
        body = self.around.bodies.get(run.seed) or self._build_body()
        self.vector_bytes = body.layout.nbytes
        self.origin = body.origin
        if self.around.timing_only:
            indices = partial(self.order.indices, 0)
            rehearsal = Rehearsal(body.model, self.around.data, indices)
            return TimingReplica(
                self.comm, body.layout, self.stream, run.optimiser, run.seed, changed, rehearsal
            )
        return Replica(
            body,
            self.around.data.loss,
            self.stream,
            self.comm,
            run.optimiser,
            seed=run.seed,
            changed=changed,
            bucket_bytes=run.bucket_bytes,
            gradient=run.gradient,
        )

    def _build_body(self) -> Body:
        torch.manual_seed(mixed_seed(self.run.seed))  # equal initial weights on every rank
        shared, start = self.around.world == "virtual", self.around.start
        model = self.run.task.model()
        origin = begin_with(start, model, self.run, self.around.data) if start else ""
        body = Body(model.to(self.run.device), shared, origin)
        if shared:
            self.around.bodies[self.run.seed] = body
        return body

    # -- the course of a run ----------------------------------------------------------------

    async def play(self) -> RankEnded:
        role = self.run.strategy.role(self.comm.rank, self.run.workers)
        self._turns_before = self.replica.turns
        over = False
        while not over:
            self._take_up_stop(self.segment)
            self.chance.begin(self.segment)
            self._stop_noted = self.stream.stopped = False
            self.epochs = self.calendar.next_meeting(self.epochs)
            self.stream.limit = self.calendar.turns(self.epochs)
            self._turns_at_meeting = self.replica.turns
            await role(self.comm, self.replica)
            over = await self._meet()
            self.segment += 1
            if over or self.calendar.saves_at(self.epochs):
                await self._save(over and not self.preempted)
            over = over and self.segment not in self._stops
        self.chance.flush()
        return self._diary.ended()

    def begin(self) -> None:
        """Before the clock starts: take up a checkpoint, and let rank 0 write the first event."""
        if self.around.resume_from is not None:
            self._restore(self.around.resume_from)
            self._take_up_stop(self.segment)
            if self.comm.rank == 0:
                self._diary.resumed(self._time_before)
        elif self.comm.rank == 0:
            self._diary.started()

    def _take_up_stop(self, segment: int) -> None:
        """From some segments on a resumed run has another end than before."""
        if segment in self._stops:
            self.stop = self._stops[segment]
            self.calendar = Calendar(self.run, self.order, self.stop)
            self.reason = "budget"

    async def _meet(self) -> bool:
        """Evaluate a mean that is due, then agree whether the run is over."""
        at_end = self.epochs >= self.calendar.end
        turns = await self.comm.all_reduce(torch.tensor([self.replica.turns], dtype=torch.int64))
        as_planned = int(turns) == self.stream.limit * self.run.workers  # nobody stopped before
        is_due = self.calendar.evaluates_at(self.epochs)
        if self.calendar.evaluates:
            self._gradients_at_meeting = int(turns)
            if self.is_holder and is_due and as_planned and not at_end:
                self.evaluate()
        votes = [float(self._wants_to_stop()), float(self.reason != "budget")]
        stops, for_good = (await self.comm.all_reduce(torch.tensor(votes))).tolist()
        if stops > 0 and not as_planned:  # how far did we really come?
            self.epochs = self.calendar.epochs(int(turns) / self.run.workers)
        over, done = at_end or stops > 0, at_end and as_planned
        if for_good and self.is_holder and self.reason == "budget" and not done:
            self.reason = "interrupt"  # another rank has heard it; all else the holder says itself
        if stops > 0 and not (done or for_good or self._replays):
            self.preempted, self.reason = True, "preempted"
        elif over and self.is_holder and not self._is_scored():
            self.evaluate()
        if is_due and as_planned and self.run.schedule.follows_scores:
            await self._agree_on_pace()
        return over

    async def _agree_on_pace(self) -> None:
        """By evaluations that were due alone: a stop adds one that an undisturbed run has not."""
        if self.is_holder and self.scores.results:
            self.pace.hear(self.scores.results[self.run.task.metric.name])
        found = torch.tensor([self.pace.found * self.is_holder], dtype=torch.float64)
        self.pace.found = float(await self.comm.all_reduce(found))

    def _is_scored(self) -> bool:
        """Whether the last score is that of the present answer: its weights and its statistics."""
        if self._scored_version != self.version():
            return False
        scored = self._scored_statistics
        return scored is None or torch.equal(scored, self.replica.statistics())

    def _wants_to_stop(self) -> bool:
        if self._replays:
            return self.chance.take("stop") is not None
        if (self.comm.halted() or self._has_to_leave()) and not self._stop_noted:
            self._note_stop(NOTHING)
        return self._stop_noted

    def stops_at(self, turn: int) -> bool:
        """Whether chance (seconds, target, a signal) ends this rank's stream before this turn."""
        if self._replays:
            return self.chance.take("stop") == turn
        interrupted = self.around.interrupted
        if interrupted is not None and interrupted():
            self.reason = "interrupt"
            self.comm.halt()
        if self._has_to_leave():
            self._leave(turn)
        if not self.comm.halted(turn):
            return False
        self._note_stop(turn)
        return True

    def _has_to_leave(self) -> bool:
        leaving = self.around.leaving
        return leaving is not None and (self.comm.asked_to_leave or leaving())

    def _leave(self, turn: int) -> None:
        """Let all ranks stop, together and where that changes nothing, if there is time for it."""
        every = self.run.strategy.rests_every
        if not every:
            self.comm.halt()
        elif self.comm.rank:
            self.comm.ask_to_leave()
        elif not self.comm.halted():
            self.comm.halt(self._next_rest(turn, every))

    def _next_rest(self, turn: int, every: int) -> int:
        """A turn that no rank can have begun, for all rest with this one; 0 if it is too far."""
        apart = turn + _TURNS_TO_HEAR - self._turns_at_meeting
        rest = self._turns_at_meeting + -(-apart // every) * every
        seconds = self.comm.now() / max(1, turn - self._turns_before)  # a turn
        return rest if (rest - turn) * seconds <= self.stop.grace else 0

    def _note_stop(self, turn: int) -> None:
        self.chance.note("stop", turn)
        self._stop_noted = True

    def heed(self) -> None:
        """For ranks that have no turns at which they are asked to stop."""
        if self._has_to_leave():
            self._leave(0)

    def _after_change(self) -> None:
        """The holder of the answer looks up whenever it has changed."""
        if self.comm.rank >= self.run.workers:
            self.heed()
        if not self.calendar.evaluates:
            epochs = self.order.epochs((self.replica.version + 0.5) / self.run.workers)
            due = int(epochs / self.run.evaluation.every + 1e-9)
            if due > self._evaluations:
                self._evaluations = due
                self.evaluate()
        if 0 < self.stop.seconds <= self.training_time() and self.reason == "budget":
            self.reason = "seconds"
            self.comm.halt()

    # -- looking at it ----------------------------------------------------------------------

    def evaluate(self) -> None:
        """Score the answer, off the training clock; halt where the target is reached."""
        self._scored_version = self.version()
        if self.around.timing_only:
            return
        self._scored_statistics = self.replica.statistics()
        began, training, wall = time.perf_counter(), self.training_time(), self.time()
        results = self.replica.look(self.around.data.evaluate)
        if self.scores.take(results):
            self._save_best()
        # A virtual clock stood still anyway.
        seconds = time.perf_counter() - began if self.around.world == "processes" else 0.0
        self._paused += seconds
        self._diary.evaluated(wall, training, seconds)
        if self.scores.are_enough(self.stop):
            self.reason = "target"
            self.comm.halt()
        elif self.scores.have_stalled(self.stop) and self.reason == "budget":
            self.reason = "patience"
            self.comm.halt()

    def report_progress(self) -> None:
        self.around.pulse(self)
        self._diary.progress()

    def write_a_sentence(self, turn: int) -> None:
        """What the model of the first worker makes of a sample that it is about to learn from."""
        if self.comm.rank or self.around.timing_only:
            return
        period, sentence = self.run.recording.sentences, getattr(self.around.data, "sentence", None)
        if sentence is None or not period or not turn or turn % period:
            return
        began = time.perf_counter()
        sample = self.order.indices(0, turn)[:1]
        reference, hypothesis = self.replica.look(lambda model: sentence(model, sample))
        self._diary.sampled(turn, time.perf_counter() - began, reference, hypothesis)

    def time(self) -> float:
        return self._time_before + self.comm.now()

    def training_time(self) -> float:
        return self.time() - self._paused

    def version(self) -> int:
        """How many gradients the answer contains."""
        if self.run.strategy.answer == "meeting":
            return self._gradients_at_meeting
        return int(self.replica.version)

    def samples(self) -> int:
        """Of all workers, in the answer."""
        return self.order.samples_in(self.version())

    # -- what outlives the process ----------------------------------------------------------

    def _save_best(self) -> None:
        if self.around.folder is not None:
            path = self.around.folder / "checkpoints" / checkpoint.BEST
            self._save_answer(path, {"samples": self.samples()})

    def _save_answer(self, path: Path, more: dict[str, Any]) -> None:
        about = identity(self.run, self.around.data) | {"results": self.scores.results} | more
        checkpoint.save_answer(path, self.replica.named_answer(), about)

    async def _save(self, over: bool) -> None:
        """All ranks write aside; when all have, one makes it count."""
        self.chance.flush()
        if self.around.folder is None or self.around.timing_only:
            return
        checkpoints = self.around.folder / "checkpoints"
        tensors, numbers = self.replica.state()
        numbers |= {
            "segment": self.segment,
            "epochs": self.epochs,
            "time": self.time(),
            "paused": self._paused,
            "scores": self.scores.state(),
            "pace": self.pace.state(),
            "samples": self.stream.seen,
            "audio": self.stream.audio,
            "scored_version": self._scored_version,
            "evaluations": self._evaluations,
            "traffic": self.comm.traffic.state(),
        }
        checkpoint.save_rank(checkpoints, self.segment, self.comm.rank, tensors, numbers)
        if self.is_holder:
            part = checkpoints / f"{self.segment:06d}.part" / checkpoint.ANSWER
            if over and self.stop.patience:
                checkpoint.copy_answer(checkpoints / checkpoint.BEST, part)
            else:
                self._save_answer(part, {})
        await self.comm.all_reduce(torch.zeros(1))  # everybody has written
        if self.comm.rank == 0:
            keep = self.run.checkpointing.keep
            digest = run_digest(self.run)
            path = checkpoint.publish(checkpoints, self.segment, self.comm.size, digest, keep)
            self.around.log(
                Checkpointed(rank=0, time=self.time(), segment=self.segment, path=path.name)
            )

    def _restore(self, path: Path) -> None:
        tensors, numbers = checkpoint.load_rank(path, self.comm.rank)
        self.replica.restore(tensors, numbers)
        self.segment = numbers["segment"]
        self.epochs = numbers["epochs"]
        self._time_before = numbers["time"]
        self._paused = numbers["paused"]
        self.scores.restore(numbers["scores"])
        self.pace.restore(numbers["pace"])
        self.stream.seen, self.stream.audio = numbers["samples"], numbers["audio"]
        self._scored_version = numbers["scored_version"]
        self._evaluations = numbers["evaluations"]
        self.comm.traffic.restore(numbers["traffic"])


def order_of(run: Run, data: Data) -> Order:
    """Refuses workers and minibatches that there are not enough samples for."""
    early, deal = run.early_minibatches, getattr(data, "deal", None)
    return Order(data.train_samples, run.minibatch, run.workers, run.seed, early, deal)


def _nothing_more() -> None: ...
