"""Synchronous data parallelism: every worker steps with the mean of all gradients."""

from dataclasses import dataclass

from regatta.comm import Comm
from regatta.learn.layout import Layout
from regatta.learn.replica import Replica
from regatta.strategies.base import Exchange, Strategy


@dataclass(frozen=True)
class AllReduce(Strategy):
    """Synchronous: all workers step together with the mean of their gradients."""

    name = "all-reduce"
    source = "Hu et al., section 2.1"

    async def worker(self, comm: Comm, replica: Replica) -> None:
        async for total in replica.reduced_by(comm.all_reduce):
            replica.step(total, of=int(total[-1]))  # divided by who contributed

    def exchange(self, workers: int, turns: int, vector: Layout) -> Exchange:
        rounds = turns + 1  # in the last one nobody has anything to add
        return Exchange(workers * rounds, workers * rounds * vector.nbytes)
