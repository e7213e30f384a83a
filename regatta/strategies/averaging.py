"""Train apart, meet now and then."""

from dataclasses import dataclass

from regatta.comm import Comm
from regatta.learn.layout import Layout
from regatta.learn.replica import Replica
from regatta.strategies.base import Exchange, Strategy, mean


@dataclass(frozen=True)
class Averaging(Strategy):
    """Model averaging: train apart, replace all models by their mean every `period` minibatches."""

    name = "averaging"
    answer = "meeting"
    source = "Su & Chen"

    period: int = 10

    def __post_init__(self) -> None:
        if self.period < 1:
            raise ValueError(f"averaging: period must be 1 or more, not {self.period}")

    async def worker(self, comm: Comm, replica: Replica) -> None:
        async for gradient in replica:
            replica.step(gradient)
            if replica.steps % self.period == 0:
                replica.load(mean(await comm.all_reduce(replica.weights)))
        # Bring the rest, then stand by with nothing until nobody brings anything.
        news = replica.weights
        while (total := await comm.all_reduce(news))[-1]:
            replica.load(mean(total))
            news = replica.nothing

    def exchange(self, workers: int, turns: int, vector: Layout) -> Exchange:
        rounds = turns // self.period + 2
        return Exchange(workers * rounds, workers * rounds * vector.nbytes)
