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

from regatta.calendar import Calendar
from regatta.choices import NOTHING, Chance
from regatta.comm import Comm
from regatta.config import Run, Stop
from regatta.data.order import Order
from regatta.data.seeds import mixed_seed
from regatta.diary import Diary
from regatta.estate import Estate
from regatta.events import Evaluated, Event, RankEnded
from regatta.kept import Kept
from regatta.learn.body import Body
from regatta.learn.replica import Replica
from regatta.learn.stage import Rehearsal
from regatta.learn.timing import TimingReplica
from regatta.pace import Pace
from regatta.scores import Scores
from regatta.start import begin_with
from regatta.stream import Stream
from regatta.tasks import Data
from regatta.vault import Vault

_EXTRA = 1 << 40  # more turns than anybody takes

_TURNS_TO_HEAR = 2  # of a halt: what is said before a turn has come before the next but one


@dataclass(frozen=True)
class Surroundings:
    """Where a rank plays: what it shares with the world, not with the configuration."""

    world: str
    data: Data
    log: Callable[[Event], None]
    told: Callable[[], Sequence[Event]] = tuple  # what has been logged so far, by all ranks
    folder: Path | None = None  # nothing is saved without one
    resume_from: Path | Kept | None = None
    ranks: Sequence[int] = ()  # of that checkpoint, in the place of this world's; none: the same
    returned: Sequence[int] = ()  # ranks that were dead then, and begin with another's state
    members: Sequence[int] = ()  # the names that ranks had at first, if they have others now
    until: int | None = None  # only up to the beginning of this segment
    rejoining: bool = False  # who has died is to be back after the next checkpoint
    kept: Kept | None = None  # takes checkpoints too
    began: float | None = None  # on the clock of a run that began before; None: as the checkpoint
    start: Path | None = None  # the weights to begin with; None: they are drawn
    timing_only: bool = False
    interrupted: Callable[[], bool] | None = None  # nobody can interrupt
    leaving: Callable[[], bool] | None = None  # whether this rank has to; None: it never has
    bodies: dict[int, Body] = field(default_factory=dict)  # that ranks of one process share
    stops: tuple[tuple[int, Stop], ...] = ()  # that were in force, by first segment; see `folders`
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
        self.estate = Estate(self)
        self.is_holder = comm.rank == run.strategy.holder(run.workers)
        self.segment = 0
        self.epochs = 0.0  # at the last meeting
        self.reason = "budget"
        self.time_before = around.began or 0.0  # of the run, before this process took it up
        self.paused = 0.0
        self.scores = Scores(run.task.metric)
        self.scored_version = -1
        self._scored_statistics: torch.Tensor | None = None
        self.evaluations = 0
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
        self._vault = Vault(self)

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

    async def play(self) -> RankEnded | None:
        """To the end; None, if all are to begin again so that the dead may rejoin them."""
        role = self.run.strategy.role(self.comm.rank, self.run.workers)
        self._turns_before = self.replica.turns
        over = False
        while not over:
            self._take_up_stop(self.segment)
            self.comm.begin_segment(self.segment)
            self._stop_noted = self.stream.stopped = False
            first, self.epochs = self.epochs, self.calendar.next_meeting(self.epochs)
            self.stream.limit = self.calendar.turns(self.epochs)
            self._turns_at_meeting = self.replica.turns
            self.estate.begin(self.calendar.turns(first), self.stream.limit)
            await role(self.comm, self.replica)
            over = await self._meet()
            self.segment += 1
            is_saved = False
            if over or self.calendar.saves_at(self.epochs):
                is_saved = await self._vault.save(over and not self.preempted)
            over = over and self.segment not in self._stops
            if self.segment == self.around.until:
                break
            if is_saved and not over and self._is_waited_for_by_the_dead():
                return None
        self.chance.flush()
        return self._diary.ended()

    def _is_waited_for_by_the_dead(self) -> bool:
        return self.around.rejoining and len(self.comm.present) < self.comm.size

    def begin(self) -> None:
        """Before the clock starts: take up a checkpoint, and let rank 0 write the first event."""
        if self.around.resume_from is not None:
            saved = self._vault.restore(self.around.resume_from)
            self._take_up_stop(self.segment)
            if self.comm.rank == 0:
                self._diary.resumed(self.time_before, saved)
        elif self.comm.rank == 0:
            self._diary.started()

    def begin_among_others(self) -> None:
        """As many turns lie behind as they would have needed for what all have done."""
        if self.comm.rank < self.run.workers:
            self.replica.turns = self.calendar.turns(self.epochs)
            self.pace.be_among_others(self.replica.turns - self.replica.steps)

    def _take_up_stop(self, segment: int) -> None:
        """From some segments on a resumed run has another end than before."""
        if segment in self._stops:
            self.stop = self._stops[segment]
            self.calendar = Calendar(self.run, self.order, self.stop)
            self.reason = "budget"

    async def _meet(self) -> bool:
        """Evaluate a mean that is due, then agree whether the run is over."""
        at_end = self.epochs >= self.calendar.end
        turns, own, workers = await self._count_turns()
        as_planned = own == self.stream.limit * workers  # nobody stopped before
        is_due = self.calendar.evaluates_at(self.epochs)
        if self.calendar.evaluates:
            self._gradients_at_meeting = turns
            if self.is_holder and is_due and as_planned and not at_end:
                self.evaluate()
        votes = [float(self._wants_to_stop()), float(self.reason != "budget")]
        stops, for_good = (await self.comm.all_reduce(torch.tensor(votes))).tolist()
        if stops > 0 and not as_planned:  # how far did we really come?
            self.epochs = self.calendar.epochs(own / workers)
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

    async def _count_turns(self) -> tuple[int, int, int]:
        """Of all workers: turns, those with data of their own, and how many workers there are."""
        mine = self.replica.turns + _EXTRA * self.stream.extra  # two sums for the price of one
        total = await self.comm.all_reduce(torch.tensor([mine], dtype=torch.int64))
        extra, turns = divmod(int(total), _EXTRA)
        present, workers = self.comm.present, self.run.workers
        if len(present) == self.comm.size:
            return turns, turns - extra, workers
        left = sum(rank < workers for rank in present)
        if self.run.strategy.answer == "meeting":
            self._follow_holder(min(present))
        return turns + self.estate.turns_of_the_dead(), turns - extra, left

    def _follow_holder(self, holder: int) -> None:
        """The first of those who are left evaluates, and knows what was found before."""
        if self.is_holder or self.comm.rank != holder:
            return
        self.is_holder = True
        self.replica.tell(self._after_change)
        for event in self.around.told():
            if isinstance(event, Evaluated):
                self.scores.take(event.results)
                self.paused += event.seconds
        score = self.scores.results.get(self.run.task.metric.name)
        self.pace.restore({"found": self.pace.found, "score": score})

    async def _agree_on_pace(self) -> None:
        """By evaluations that were due alone: a stop adds one that an undisturbed run has not."""
        if self.is_holder and self.scores.results:
            self.pace.hear(self.scores.results[self.run.task.metric.name])
        found = torch.tensor([self.pace.found * self.is_holder], dtype=torch.float64)
        self.pace.found = float(await self.comm.all_reduce(found))

    def _is_scored(self) -> bool:
        """Whether the last score is that of the present answer: its weights and its statistics."""
        if self.scored_version != self.version():
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
            if due > self.evaluations:
                self.evaluations = due
                self.evaluate()
        if 0 < self.stop.seconds <= self.training_time() and self.reason == "budget":
            self.reason = "seconds"
            self.comm.halt()

    # -- looking at it ----------------------------------------------------------------------

    def evaluate(self) -> None:
        """Score the answer, off the training clock; halt where the target is reached."""
        self.scored_version = self.version()
        if self.around.timing_only:
            return
        self._scored_statistics = self.replica.statistics()
        began, training, wall = time.perf_counter(), self.training_time(), self.time()
        results = self.replica.look(self.around.data.evaluate)
        if self.scores.take(results):
            self._vault.save_best()
        # A virtual clock stood still anyway.
        seconds = time.perf_counter() - began if self.around.world == "processes" else 0.0
        self.paused += seconds
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
        return self.time_before + self.comm.now()

    def training_time(self) -> float:
        return self.time() - self.paused

    def version(self) -> int:
        """How many gradients the answer contains."""
        if self.run.strategy.answer == "meeting":
            return self._gradients_at_meeting
        return int(self.replica.version)

    def samples(self) -> int:
        """Of all workers, in the answer."""
        return self.order.samples_in(self.version())


def order_of(run: Run, data: Data) -> Order:
    """Refuses workers and minibatches that there are not enough samples for."""
    early, deal = run.early_minibatches, getattr(data, "deal", None)
    return Order(data.train_samples, run.minibatch, run.workers, run.seed, early, deal)


def _nothing_more() -> None: ...
