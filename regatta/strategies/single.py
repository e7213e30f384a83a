"""One worker, plain: the yardstick of all others."""

from dataclasses import dataclass

from regatta.comm import Comm
from regatta.learn.layout import Layout
from regatta.learn.replica import Replica
from regatta.strategies.base import Exchange, Strategy
from regatta.strategies.fate import ALL_NEEDED


@dataclass(frozen=True)
class Single(Strategy):
    """One worker, plain stochastic gradient descent."""

    name = "single"
    rests_every = 1
    fates = ALL_NEEDED

    async def worker(self, comm: Comm, replica: Replica) -> None:
        async for gradient in replica.unwritten:
            replica.step(gradient)
            del gradient  # the next may have its memory

    def check(self, workers: int) -> None:
        if workers != 1:
            raise ValueError(f"strategy single has one worker, not {workers}: use --workers 1")

    def exchange(self, workers: int, turns: int, vector: Layout) -> Exchange:
        return Exchange(0, 0)
