"""AD-PSGD: no centre at all; a worker averages its model with that of one neighbour at a time."""

from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

from regatta.comm import EMPTY, GONE, GOODBYE, Comm, Message, Vector
from regatta.compress import NONE, code_for_models
from regatta.compress.line import Line, line_bytes
from regatta.learn.layout import Layout
from regatta.learn.replica import Replica
from regatta.strategies.base import Exchange, Strategy, hand_over, take_back
from regatta.strategies.fate import FREE


@dataclass(frozen=True)
class Gossip(Strategy):
    """Decentralised, asynchronous: each worker averages with one random neighbour at a time."""

    name = "gossip"
    fates = FREE
    steps_alone = True
    answer = "meeting"
    deterministic = False
    source = "Lian et al. (2018)"
    modes: ClassVar[Sequence[str]] = ("", "period=3", "compress=int8")

    period: int = 1  # steps of an active worker from one exchange to the next
    compress: str = NONE  # of the models: fp16, int8
    feedback: bool = True  # add what a code lost to what is sent next

    def __post_init__(self) -> None:
        code_for_models(self.compress)
        if self.period < 1:
            raise ValueError(f"gossip: period must be 1 or more, not {self.period}")

    # Even ranks ask, odd ranks answer. Who answers never waits for who asks while it has data of
    # its own, so that no circle of waiting can close.

    def role(self, rank: int, workers: int) -> Callable[[Comm, Replica], Coroutine[Any, Any, None]]:
        return self.passive if rank % 2 else self.active

    async def active(self, comm: Comm, replica: Replica) -> None:
        take_back(replica)
        line = Line(code_for_models(self.compress), comm, replica, self.feedback)
        neighbours = list(range(1, comm.size, 2))
        asked = None
        async for gradient in replica.unwritten:  # computed while the two models travel
            if asked is not None:
                if not await self.answers(comm, replica, line, asked):
                    neighbours.remove(asked)
                asked = None
            replica.step(gradient)
            del gradient  # the next may have its memory
            if neighbours and replica.steps % self.period == 0:
                asked = neighbours[replica.pick(len(neighbours))]
                await line.send(asked, replica.weights, replica.version)
        if asked is not None:
            await self.answers(comm, replica, line, asked)
        for neighbour in neighbours:
            await comm.send(neighbour, EMPTY, tag=GOODBYE)
        await self.close(comm, replica)

    async def answers(self, comm: Comm, replica: Replica, line: Line, asked: int) -> bool:
        """Whether the neighbour lives; then the own model meets the one that it has sent."""
        answer = await comm.recv(asked)
        if answer.tag == GONE:
            return False
        await comm.compute(partial(_average, replica, line.decoded(answer)), replica.merging)
        return True

    async def passive(self, comm: Comm, replica: Replica) -> None:
        take_back(replica)
        line = Line(code_for_models(self.compress), comm, replica, self.feedback)
        asking = set(range(0, comm.size, 2))
        async for gradient in replica.unwritten:
            while asking and (request := await comm.poll()) is not None:
                await self.respond(comm, replica, line, request, asking)
            replica.step(gradient)
            del gradient  # the next may have its memory
        while asking:
            await self.respond(comm, replica, line, await comm.recv(), asking)
        await self.close(comm, replica)

    async def respond(
        self, comm: Comm, replica: Replica, line: Line, request: Message, asking: set[int]
    ) -> None:
        """Meet the sender's model, unless it will ask no more."""
        if request.tag in (GOODBYE, GONE):
            asking.discard(request.src)
            return
        await line.send(request.src, replica.weights, replica.version)
        await comm.compute(partial(_average, replica, line.decoded(request)), replica.merging)

    async def close(self, comm: Comm, replica: Replica) -> None:
        """The answer: the mean of all models, with the statistics by the steps behind them."""
        own = replica.weights
        total = await comm.all_reduce(replica.spliced(own, own * replica.steps))
        # Where nobody has ever made a step, all are what they were at first.
        mean = total / len(comm.present)
        hand_over(replica, replica.spliced(mean, replica.mean(total)) if total[-1] else own)

    def exchange(self, workers: int, turns: int, vector: Layout) -> Exchange:
        active, passive = (workers + 1) // 2, workers // 2
        models = 2 * active * (turns // self.period) if passive else 0
        coded = line_bytes(code_for_models(self.compress), vector)
        return Exchange(
            models + active * passive + workers, models * coded + workers * vector.nbytes
        )


def _average(replica: Replica, other: Vector) -> None:
    """Meet half-way; the statistics stay those of the own data until the end."""
    own = replica.weights
    replica.load(replica.spliced((own + other) / 2, own))
