"""RSPS: one model travels the ring of workers."""

from dataclasses import dataclass
from functools import partial

from regatta.comm import LAST, Comm
from regatta.learn.layout import Layout
from regatta.learn.replica import Replica
from regatta.strategies.base import Exchange, Strategy


@dataclass(frozen=True)
class Ring(Strategy):
    """Asynchronous ring: ONE model travels; each worker merges its gradient and passes it on."""

    name = "ring"
    source = "iFlytek's ring structure parallel strategy"

    async def worker(self, comm: Comm, replica: Replica) -> None:
        previous, following = (comm.rank - 1) % comm.size, (comm.rank + 1) % comm.size
        model_is_here = comm.rank == 0
        sent = None  # the version that went on from here last
        async for gradient in replica:
            born = replica.version
            if not model_is_here:
                model = await comm.recv(previous)
                replica.load(model.data, model.version)
            await comm.compute(partial(replica.step, gradient, born=born), replica.merging)
            # The send and the next minibatch, trained from the same new model, overlap.
            await comm.send(following, replica.weights, version=replica.version)
            sent, model_is_here = replica.version, False
        if model_is_here:
            await comm.send(following, replica.weights, version=replica.version)
            sent = replica.version
        await self.close(comm, replica, sent)

    async def close(self, comm: Comm, replica: Replica, sent: int | None) -> None:
        """Out of data: hand the model on until it comes round unchanged, then say so in a lap."""
        previous, following = (comm.rank - 1) % comm.size, (comm.rank + 1) % comm.size
        while True:
            model = await comm.recv(previous)
            replica.load(model.data, model.version)
            came_round = model.version == sent
            tag = LAST if came_round else model.tag
            await comm.send(following, replica.weights, tag=tag, version=model.version)
            sent = model.version
            if model.tag == LAST:
                return
            if came_round:
                await comm.recv(previous, tag=LAST)
                return

    def exchange(self, workers: int, turns: int, vector: Layout) -> Exchange:
        # Every merge is one transmission; then a lap finds nothing new, and a lap says so.
        messages = max(1, workers * turns) + (workers - 1) + workers
        return Exchange(messages, messages * vector.nbytes)
