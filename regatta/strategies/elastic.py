"""EASGD: every worker has a model of its own, tied to a common centre by an elastic force."""

from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

from regatta.comm import EMPTY, GONE, GOODBYE, Comm, Vector
from regatta.compress import NONE, code_for_models
from regatta.compress.line import Line, line_bytes
from regatta.compress.reduce import reduced_exchange, reducer
from regatta.learn.layout import Layout
from regatta.learn.replica import Replica
from regatta.strategies.base import Answer, Exchange, Strategy, hand_over, take_back
from regatta.strategies.fate import FREE_BY_A_SERVER, IN_STEP, Fates


@dataclass(frozen=True)
class Elastic(Strategy):
    """Elastic averaging: models of their own and a common centre pull at each other."""

    name = "elastic"
    steps_alone = True
    source = "Zhang, Choromanska & LeCun (2015); torch-distlearn's AllReduceEA"
    modes: ClassVar[Sequence[str]] = (
        "", "period=1", "compress=int8,period=2",
        "mode=async", "mode=async,period=2", "mode=async,compress=fp16",
    )  # fmt: skip
    unlike_plain = "one worker too is pulled towards the centre, and the centre is the answer"

    mode: str = "sync"  # or async
    period: int = 10  # steps of a worker from one contact to the next
    beta: float = 0.9  # the pull of all workers together
    alpha: float | None = None  # the pull of one; none: beta / workers
    compress: str = NONE  # of what models and centre send each other: fp16, int8
    feedback: bool = True  # add what a code lost to what is sent next

    def __post_init__(self) -> None:
        code_for_models(self.compress)
        if self.mode not in ("sync", "async"):
            raise ValueError(f"elastic: mode must be sync or async, not {self.mode}")
        if self.period < 1:
            raise ValueError(f"elastic: period must be 1 or more, not {self.period}")

    @property
    def answer(self) -> Answer:
        return "meeting" if self.mode == "sync" else "server"

    @property
    def rests_every(self) -> int:
        return self.period if self.mode == "sync" else 0

    @property
    def deterministic(self) -> bool:
        return self.mode == "sync"

    @property
    def num_servers(self) -> int:
        return 0 if self.mode == "sync" else 1

    @property
    def fates(self) -> Fates:
        return IN_STEP if self.mode == "sync" else FREE_BY_A_SERVER

    def role(self, rank: int, workers: int) -> Callable[[Comm, Replica], Coroutine[Any, Any, None]]:
        return self.peer if self.mode == "sync" else super().role(rank, workers)

    def pull(self, workers: int) -> float:
        return self.beta / workers if self.alpha is None else self.alpha

    def check(self, workers: int) -> None:
        """Refuse a pull under which models and centre swing ever wider.

        When all pull at once, the distance of their mean from the centre is multiplied by
        1 - alpha (workers + 1); when one meets the centre alone, by 1 - 2 alpha.
        """
        alpha, bound, formula = self.pull(workers), 1.0, ""
        if self.mode == "sync":
            bound, formula = 2 / (workers + 1), "2 / (workers + 1) = "
        if not 0 < alpha < bound:
            given = "alpha" if self.alpha is not None else f"alpha from beta={self.beta:g}"
            raise ValueError(
                f"elastic: {given} must be more than 0 and less than {formula}{bound:.6g} for "
                f"{workers} workers in mode {self.mode}, not {alpha:.6g}, or models and centre "
                f"never settle; leave both out for 0.9 / workers = {0.9 / workers:.6g}"
            )

    # -- sync: everybody keeps the same centre ----------------------------------------------

    async def peer(self, comm: Comm, replica: Replica) -> None:
        centre = replica.weights  # that is what ranks hold when they meet, and at first
        take_back(replica)
        met = replica.steps
        async for gradient in replica.unwritten:
            replica.step(gradient)
            del gradient  # the next, or a meeting, may have its memory
            if replica.steps - met == self.period:
                centre, met = await self.meet(comm, replica, centre), replica.steps
        if replica.steps > met:
            centre = await self.meet(comm, replica, centre)
        # Out of data: stay where we are, and follow the centre until nobody moves it.
        while (total := await self.summed(comm, replica, replica.nothing))[-1]:
            centre = replica.spliced(centre + total, centre)
        hand_over(replica, await self.with_statistics(comm, replica, centre))

    async def meet(self, comm: Comm, replica: Replica, centre: Vector) -> Vector:
        """Let model and centre pull at each other; the centre after all have pulled at it."""
        own = replica.weights
        delta = self.pull(comm.size) * (own - centre)
        # The sum counts who pulls.
        total = await self.summed(comm, replica, replica.spliced(delta, own))
        replica.load(replica.spliced(own - delta, own))
        return replica.spliced(centre + total, centre)

    async def summed(self, comm: Comm, replica: Replica, news: Vector) -> Vector:
        all_reduce = reducer(code_for_models(self.compress), comm, replica, self.feedback)
        total: Vector = await all_reduce(news)
        return total

    # -- async: a server keeps the centre ---------------------------------------------------

    async def worker(self, comm: Comm, replica: Replica) -> None:
        take_back(replica)
        met = replica.steps
        async for gradient in replica.unwritten:
            replica.step(gradient)
            del gradient  # the next, or a meeting, may have its memory
            if replica.steps - met == self.period:
                met = await self.visit(comm, replica, met)
        if replica.steps > met:
            await self.visit(comm, replica, met)
        await comm.send(comm.size - 1, EMPTY, tag=GOODBYE)
        hand_over(replica, await self.with_statistics(comm, replica, replica.nothing))

    async def visit(self, comm: Comm, replica: Replica, met: int) -> int:
        """Meet the centre with all steps since `met`."""
        server, own = comm.size - 1, replica.weights
        line = Line(code_for_models(self.compress), comm, replica, self.feedback)
        await line.send(server, own, replica.steps - met)
        delta = line.decoded(await comm.recv(server))
        replica.load(replica.spliced(own - delta, own))
        return replica.steps

    async def server(self, comm: Comm, replica: Replica) -> None:
        line = Line(code_for_models(self.compress), comm, replica, feedback=False)
        visitors = set(range(comm.size - 1))
        while visitors:
            message = await comm.recv()
            if message.tag in (GOODBYE, GONE):
                visitors.discard(message.src)
                continue
            alpha = self.pull(comm.size - 1)
            visitor, count = line.decoded(message), message.version
            move = partial(_moved, replica, visitor, count, alpha)
            delta = await comm.compute(move, replica.merging)
            await line.send(message.src, delta, replica.version)
        replica.load(await self.with_statistics(comm, replica, replica.weights))

    # -- the end ----------------------------------------------------------------------------

    async def with_statistics(self, comm: Comm, replica: Replica, centre: Vector) -> Vector:
        """The holder's centre, with the workers' statistics by their numbers of steps.

        A worker's statistics belong to its own model, so they were never pulled at; and who was
        out of data early has as much to say as it had data.
        """
        holds = comm.rank == self.holder(comm.size - self.num_servers)
        news = replica.spliced(
            centre if holds else replica.nothing, replica.weights * replica.steps
        )
        total = await comm.all_reduce(news)
        # Where nobody has ever made a step, all are what they were at first.
        return replica.spliced(total, replica.mean(total)) if total[-1] else replica.weights

    def exchange(self, workers: int, turns: int, vector: Layout) -> Exchange:
        contacts, code = -(-turns // self.period), code_for_models(self.compress)
        last = workers + self.num_servers  # a sum for the statistics
        if self.mode == "sync":
            messages, nbytes = reduced_exchange(code, vector, workers)
            rounds = contacts + 1  # one that finds nothing new
            return Exchange(rounds * messages + last, rounds * nbytes + last * vector.nbytes)
        there_and_back, goodbyes = 2 * workers * contacts, workers
        return Exchange(
            there_and_back + goodbyes + last,
            there_and_back * line_bytes(code, vector) + last * vector.nbytes,
        )


def _moved(replica: Replica, visitor: Vector, steps: int, alpha: float) -> Vector:
    """Let a visitor pull at the centre; how far it did.

    While training, the centre's statistics follow the visitors' as fast as the centre does; the
    first visitor's replace the initial ones.
    """
    centre, version = replica.weights, replica.version + steps
    away = visitor - centre
    share = max(alpha, steps / version)
    replica.load(replica.spliced(centre + alpha * away, centre + share * away), version)
    return alpha * away
