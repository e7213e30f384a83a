"""A server holds the model; workers push gradients and pull weights, each at its own pace."""

from dataclasses import dataclass
from functools import partial

from regatta.comm import EMPTY, GOODBYE, Comm
from regatta.learn.layout import Layout
from regatta.learn.replica import Replica
from regatta.strategies.base import Exchange, Strategy


@dataclass(frozen=True)
class ParameterServer(Strategy):
    """Asynchronous: a server steps with each gradient as it comes and sends the weights back."""

    name = "parameter-server"
    answer = "server"
    deterministic = False
    num_servers = 1
    source = "Campos et al., section 5; iFlytek's central node"

    async def worker(self, comm: Comm, replica: Replica) -> None:
        server = comm.size - 1
        async for gradient in replica:
            await comm.send(server, gradient, version=replica.version)
            reply = await comm.recv(server)
            replica.load(reply.data, reply.version)
        await comm.send(server, EMPTY, tag=GOODBYE)
        final = await comm.recv(server)
        replica.load(final.data, final.version)

    async def server(self, comm: Comm, replica: Replica) -> None:
        workers = range(comm.size - 1)
        left = 0
        while left < len(workers):
            message = await comm.recv()
            if message.tag == GOODBYE:
                left += 1
                continue
            update = partial(replica.step, message.data, born=message.version)
            await comm.compute(update, replica.merging)
            await comm.send(message.src, replica.weights, version=replica.version)
        for worker in workers:
            await comm.send(worker, replica.weights, version=replica.version)

    def exchange(self, workers: int, turns: int, vector: Layout) -> Exchange:
        return Exchange(workers * (2 * turns + 2), workers * (2 * turns + 1) * vector.nbytes)
