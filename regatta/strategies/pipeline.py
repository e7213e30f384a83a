"""Model parallelism: the layers are split over the workers, and micro-batches flow through them."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import ClassVar, Final, Literal

from regatta.comm import EMPTY, GOODBYE, Comm
from regatta.learn.layout import Layout
from regatta.learn.replica import Replica
from regatta.learn.stage import Stage
from regatta.strategies.base import Exchange, Strategy
from regatta.strategies.fate import ALL_NEEDED

GO: Final = 3  # there is a further turn
SHAPE: Final = 4  # that activations have from now on
Pass = tuple[Literal["forward", "backward"], int]  # of a micro-batch


def passes(schedule: str, stage: int, stages: int, count: int) -> list[Pass]:
    """In which order a stage computes `count` micro-batches.

    gpipe: all forward, then all backward; every stage holds every micro-batch in between.
    1f1b: one goes back as soon as it can, so a stage holds `stages - stage` of them at most.
    """
    ahead = count if schedule == "gpipe" else min(stages - stage - 1, count)
    order: list[Pass] = [("forward", n) for n in range(ahead)]
    for n in range(count - ahead):
        order += [("forward", ahead + n), ("backward", n)]
    return order + [("backward", n) for n in range(count - ahead, count)]


@dataclass(frozen=True)
class Pipeline(Strategy):
    """Model parallel: each worker has some layers; micro-batches flow forward, gradients back."""

    name = "pipeline"
    fates = ALL_NEEDED
    answer = "meeting"  # before they meet, nobody has the whole model
    source = "GPipe (Huang et al. 2019), 1F1B (Narayanan et al. 2021); named in Hu et al."
    modes: ClassVar[Sequence[str]] = ("", "schedule=gpipe", "micro=2")
    needs_layers = True
    rests_every = 1

    schedule: str = "1f1b"  # one forward, one backward; or gpipe: all forwards first
    micro: int = 1  # pieces that every minibatch is cut into

    def __post_init__(self) -> None:
        if self.schedule not in ("gpipe", "1f1b"):
            raise ValueError(f"pipeline: schedule must be gpipe or 1f1b, not {self.schedule}")
        if self.micro < 1:
            raise ValueError(f"pipeline: micro must be 1 or more, not {self.micro}")

    def check_run(self, minibatch: int, bucket_bytes: int) -> None:
        if minibatch < self.micro:
            raise ValueError(
                f"pipeline: micro={self.micro} pieces cannot be cut from a minibatch of "
                f"{minibatch}: use micro={minibatch} or less, or a larger minibatch"
            )

    async def worker(self, comm: Comm, replica: Replica) -> None:
        stage = replica.stage(comm.rank, comm.size, self.micro)
        while await self._goes_on(comm, stage):
            # A turn: the minibatches of all workers, one after another through all stages.
            for way, number in passes(self.schedule, comm.rank, comm.size, stage.micro_batches):
                if way == "forward":
                    await self._forward(comm, stage, number)
                else:
                    await self._backward(comm, stage, number)
            stage.step()
        replica.load(await comm.all_reduce(stage.alone()))  # every stage's weights and zeros

    async def _goes_on(self, comm: Comm, stage: Stage) -> bool:
        """The first stage knows whether there is a turn; the others hear it from the one before."""
        is_first = comm.rank == 0
        heard = is_first or (await comm.recv(comm.rank - 1)).tag == GO
        goes_on = heard and stage.begin(asks=is_first)
        if comm.rank + 1 < comm.size:
            await comm.send(comm.rank + 1, EMPTY, tag=GO if goes_on else GOODBYE)
        return goes_on

    async def _forward(self, comm: Comm, stage: Stage, number: int) -> None:
        received = None
        if comm.rank > 0:
            message = await comm.recv(comm.rank - 1)
            if message.tag == SHAPE:
                stage.expect(message.data)
                message = await comm.recv(comm.rank - 1)
            received = message.data
        work = partial(stage.forward, number, received)
        activation = await comm.compute(work, stage.forward_load)
        if comm.rank + 1 < comm.size:
            shape = stage.news_of_shape(number)
            if shape is not None:
                await comm.send(comm.rank + 1, shape, tag=SHAPE)
            await comm.send(comm.rank + 1, activation)

    async def _backward(self, comm: Comm, stage: Stage, number: int) -> None:
        is_last = comm.rank + 1 == comm.size
        received = None if is_last else (await comm.recv(comm.rank + 1)).data
        work = partial(stage.backward, number, received)
        gradient = await comm.compute(work, stage.backward_load)
        if comm.rank > 0:
            await comm.send(comm.rank - 1, gradient)

    @property
    def unlike_plain(self) -> str:
        return "" if self.micro == 1 else "a minibatch's gradient is summed in pieces"

    def exchange(self, workers: int, turns: int, vector: Layout) -> Exchange:
        # Every turn is announced, and so is the end; shapes are told once if batches are alike.
        announced = turns + 1 + (turns > 0)
        there_and_back = 2 * turns * workers * self.micro
        messages = (workers - 1) * (announced + there_and_back) + workers
        # The bytes of activations and shapes depend on the layers.
        return Exchange(messages, workers * vector.nbytes, is_all=workers == 1 or turns == 0)
