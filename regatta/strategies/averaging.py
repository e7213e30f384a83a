"""Train apart, meet now and then."""

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from regatta.comm import Comm
from regatta.compress import NONE, code_for_models
from regatta.compress.reduce import reduced_exchange, reducer
from regatta.learn.layout import Layout
from regatta.learn.replica import Replica
from regatta.strategies.base import Exchange, Strategy
from regatta.strategies.fate import IN_STEP
from regatta.strategies.kaldi import NUMBER_BYTES, Schedule, everybodys, is_kept
from regatta.strategies.outer import BlockMomentum, CntkBlockMomentum, DiLoCo, Outer, WithMomentum

OUTERS = ("none", "bmuf", "diloco")
STATES = ("local", "averaged", "reset")
FINAL_LR = 0.1


@dataclass
class Block:
    """What a worker has done since the last meeting."""

    steps: int = 0
    losses: list[Any] = field(default_factory=list)


@dataclass(frozen=True)
class Averaging(Strategy):
    """Model averaging: train apart, replace all models by their mean every `period` minibatches."""

    name = "averaging"
    fates = IN_STEP
    steps_alone = True
    answer = "meeting"
    source = "Su & Chen; Chen & Huo (BMUF); Douillard et al. (DiLoCo); Kaldi's schedule"
    modes = (
        "",
        "period=4,outer=bmuf",
        "period=4,outer=bmuf,nesterov=true,momentum=0.5",
        "period=4,outer=bmuf,cntk_compat=true,nesterov=true,momentum=0.5",
        "period=4,outer=diloco",
        "period=4,state=averaged",
        "state=reset",
        "drop=1",
        "period=4,outer=diloco,state=reset,drop=10",
        "jobs=1",
        "jobs=2,period=4,drop=1",
        "jobs=1,period=6,final_lr=1,state=averaged",
        "period=4,compress=fp16",
        "period=4,compress=int8,outer=diloco",
    )

    period: int = 10  # minibatches of a worker
    outer: str = "none"  # none, bmuf or diloco: how the mean moves the model
    momentum: float | None = None  # of the outer optimiser
    outer_lr: float | None = None  # of the outer optimiser
    nesterov: bool = False  # bmuf: train from where the momentum leads to
    cntk_compat: bool = False  # bmuf: as CNTK has it
    state: str = "local"  # averaged or reset: what the optimiser remembers after a meeting
    drop: float | None = None  # leave out models whose loss is so much above the best
    jobs: int | None = None  # workers that train in Kaldi's first iteration; all do in the end
    final_lr: float = FINAL_LR  # with jobs: the last learning rate over the first
    compress: str = NONE  # of the models: fp16, int8
    feedback: bool = True  # add what a code lost to what is sent next

    def __post_init__(self) -> None:
        code_for_models(self.compress)
        for complaint in self._complaints():
            raise ValueError(f"averaging: {complaint}")

    @property
    def rests_every(self) -> int:
        return 0 if self.jobs is not None else self.period

    @property
    def own_rates(self) -> bool:
        return self.jobs is not None

    @property
    def unlike_plain(self) -> str:
        if isinstance(self.outer_optimiser(1), WithMomentum):
            return "the model also makes steps of an outer optimiser"
        if self.state == "reset":
            return "the optimiser forgets at every meeting"
        if self.jobs is not None and self.final_lr != 1:
            return "the learning rate falls"
        return ""

    async def worker(self, comm: Comm, replica: Replica) -> None:
        outer = self.outer_optimiser(comm.size)
        outer.begin(replica)
        train = self.train_apart if self.jobs is None else self.train_in_jobs
        await train(comm, replica, outer)
        outer.end(replica)

    async def train_apart(self, comm: Comm, replica: Replica, outer: Outer) -> None:
        block = Block()
        async for gradient in replica.unwritten:
            replica.step(gradient)
            del gradient  # the next, or a meeting, may have its memory
            self.note(block, replica)
            if block.steps == self.period:
                await self.meet(comm, replica, outer, block)
                block = Block()
        # Bring the rest, then stand by with nothing until nobody brings anything.
        while await self.meet(comm, replica, outer, block):
            block = Block()

    async def meet(
        self, comm: Comm, replica: Replica, outer: Outer, block: Block, choose: bool = False
    ) -> bool:
        """Average the models that have learnt since the last meeting; whether any has."""
        brings = has_news = block.steps > 0
        if choose or self.drop is not None:
            score = replica.score(block.losses) if has_news else math.inf
            scores = await everybodys(comm, score)
            brings = has_news and is_kept(comm.rank, scores, None if choose else self.drop)
        code = code_for_models(self.compress)
        all_reduce = reducer(code, comm, replica, self.feedback, written=False)
        total = await all_reduce(replica.weights if brings else replica.nothing)
        if not total[-1]:
            return False
        outer.move(replica, replica.mean(total), int(total[-1]))
        if has_news and not brings:
            comm.traffic.dropped += block.steps
            replica.reset_optimiser()  # it remembers the way to a model that is no more
        await self.share_memory(comm, replica, brings)
        return True

    async def share_memory(self, comm: Comm, replica: Replica, brings: bool) -> None:
        """What becomes of the momentum of the workers' own optimisers."""
        memory = replica.optimiser_state if self.state == "averaged" else None
        if memory is not None:
            total = await comm.all_reduce(memory if brings else replica.no_optimiser_state)
            replica.load_optimiser_state(total / total[-1])
        elif self.state == "reset":
            replica.reset_optimiser()

    async def train_in_jobs(self, comm: Comm, replica: Replica, outer: Outer) -> None:
        """Kaldi's schedule: the jobs of an iteration share its minibatches, others look on."""
        assert self.jobs is not None
        schedule = Schedule(self.jobs, comm.size, self.period, replica.stream.planned)
        position = reached = replica.counters.get("position", 0)
        not_found = 0
        for iteration in schedule.since(position):
            jobs, rate = iteration.jobs, schedule.rate(iteration, self.final_lr)
            block = Block()
            replica.load(replica.weights, version=position)
            for number in iteration.dealt_to(comm.rank, position):
                gradient = await replica.gradient(number)
                if gradient is not None:
                    # A job stands for all of them: in the mean each weighs so much less.
                    replica.step(jobs * gradient, of=jobs, rate=rate)
                    self.note(block, replica)
                    reached = number + 1
            found = await self.meet(
                comm, replica, outer, block, choose=iteration.number == 0 and jobs > 1
            )
            not_found = 0 if found else not_found + iteration.stop - position
            position = iteration.stop
            if not_found >= comm.size:  # not one minibatch of any worker
                break
        # Chance may have stopped some ranks earlier than others: go on where nobody has been.
        replica.counters["position"] = int(max(await everybodys(comm, reached)))

    def note(self, block: Block, replica: Replica) -> None:
        block.steps += 1
        if self.drop is not None or self.jobs is not None:
            block.losses.append(replica.last_loss)

    def outer_optimiser(self, workers: int) -> Outer:
        if self.outer == "none":
            return Outer()
        if self.outer == "diloco":
            return DiLoCo(_or(self.momentum, 0.9), _or(self.outer_lr, 0.7))
        # Block updates of N workers are N times too small for what they have seen.
        momentum, lr = _or(self.momentum, 1 - 1 / workers), _or(self.outer_lr, 1.0)
        if (momentum, lr) == (0, 1) and (workers == 1 or not self.cntk_compat):
            return Outer()  # the same without rounding
        kind = CntkBlockMomentum if self.cntk_compat else BlockMomentum
        return kind(momentum, lr, self.nesterov)

    def exchange(self, workers: int, turns: int, vector: Layout) -> Exchange:
        """For an optimiser without memory: `state=averaged` sums that once more a meeting."""
        meetings, rows = math.ceil(turns / self.period) + 1, 0
        if self.jobs is not None:
            schedule = Schedule(self.jobs, workers, self.period, workers * turns)
            meetings, rows = schedule.meetings(), 1 + (self.jobs > 1 and self.drop is None)
        if self.drop is not None:
            rows += meetings
        messages, nbytes = reduced_exchange(code_for_models(self.compress), vector, workers)
        return Exchange(
            meetings * messages + rows * workers,
            meetings * nbytes + rows * workers * workers * NUMBER_BYTES,
        )

    def check(self, workers: int) -> None:
        if self.jobs is not None and self.jobs > workers:
            raise ValueError(
                f"averaging: jobs={self.jobs} need as many workers, not {workers}: "
                f"use jobs={workers} or --workers {self.jobs}"
            )

    def _complaints(self) -> Iterator[str]:
        if self.period < 1:
            yield f"period must be 1 or more, not {self.period}"
        if self.outer not in OUTERS:
            yield f"outer must be one of {', '.join(OUTERS)}, not {self.outer}"
        if self.state not in STATES:
            yield f"state must be one of {', '.join(STATES)}, not {self.state}"
        if self.momentum is not None and not 0 <= self.momentum < 1:
            yield f"momentum must be from 0 to less than 1, not {self.momentum}"
        if self.outer_lr is not None and not 0 < self.outer_lr < math.inf:
            yield f"outer_lr must be more than 0, not {self.outer_lr}"
        if self.drop is not None and not 0 < self.drop < math.inf:
            yield f"drop must be more than 0, not {self.drop}"
        if self.jobs is not None and self.jobs < 1:
            yield f"jobs must be 1 or more, not {self.jobs}"
        if not 0 < self.final_lr < math.inf:
            yield f"final_lr must be more than 0, not {self.final_lr}"
        yield from self._mismatches()

    def _mismatches(self) -> Iterator[str]:
        if self.outer == "none" and (self.momentum, self.outer_lr) != (None, None):
            yield "momentum and outer_lr are the outer optimiser's: use outer=bmuf or outer=diloco"
        if self.outer != "bmuf" and self.nesterov:
            yield "nesterov is for outer=bmuf (outer=diloco is Nesterov's in any case)"
        if self.outer != "bmuf" and self.cntk_compat:
            yield "cntk_compat is for outer=bmuf"
        if self.outer != "none" and self.jobs is not None:
            yield f"jobs makes up for averaging by its learning rate: leave out outer={self.outer}"
        if self.jobs is None and self.final_lr != FINAL_LR:
            yield "final_lr is the end of the schedule that jobs=N starts: add jobs"


def _or(given: float | None, usual: float) -> float:
    return usual if given is None else given
