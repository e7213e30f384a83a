"""RSPS: one model travels the ring of workers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from regatta.comm import DATA, LAST, Comm, Message, Vector
from regatta.compress import NONE, Channel, code_for_models
from regatta.compress.reduce import striped_bytes
from regatta.learn.layout import Layout
from regatta.learn.replica import Replica
from regatta.strategies.base import Exchange, Strategy
from regatta.strategies.fate import IN_STEP
from regatta.strategies.team import Team, check_group, leaders, team_exchange, teams


@dataclass(frozen=True)
class Ring(Strategy):
    """Asynchronous ring: ONE model travels; each worker merges its gradient and passes it on."""

    name = "ring"
    fates = IN_STEP
    source = "iFlytek's ring structure parallel strategy"
    modes = ("", "chunks=3", "compress=fp16", "compress=int8,chunks=2", "group=2", "group=host",
             "group=2,chunks=2,compress=int8")  # fmt: skip

    chunks: int = 1  # in which the model travels: one is merged while the next arrives
    compress: str = NONE  # of the model on its way: fp16, int8
    feedback: bool = True  # add what a code lost to what is sent next
    group: str = "1"  # so many workers (or host) are a team that sums, and its leader is the node

    @property
    def unlike_plain(self) -> str:
        return "" if self.compress == NONE else "the model loses digits on its way"

    def groups(self, workers: int, hosts: Sequence[int]) -> Mapping[str, Sequence[int]]:
        return {} if self.group == "1" else teams(self.group, workers, hosts)

    async def worker(self, comm: Comm, replica: Replica) -> None:
        team = Team(comm)
        node = _Node(self, comm, replica) if team.leads else None
        model_is_here = comm.rank == 0
        alone = replica.unwritten if self.chunks == 1 else aiter(replica)
        async for gradient in team.gradients(replica, alone):
            if node is not None:
                await node.merge(gradient, model_is_here)
                model_is_here = False
            del gradient  # the next may have its memory
            if team.followers:
                await team.follow_leader(replica)
        if node is not None:
            if model_is_here:
                await node.send_on()
            await node.close()
        if team.followers:
            await team.follow_leader(replica)

    def exchange(self, workers: int, turns: int, vector: Layout) -> Exchange:
        sizes = [1] * workers
        if self.group != "1":  # one worker a host, unless the cluster says otherwise
            sizes = [len(ranks) for ranks in teams(self.group, workers, range(workers)).values()]
        inside = team_exchange(sizes, turns, vector)
        # Every merge is one transmission; then a lap finds nothing new, and a lap says so.
        nodes = len(sizes)
        laps = max(1, nodes * turns) + nodes - 1
        code, chunks = code_for_models(self.compress), self.chunks
        whole = vector.nbytes + (chunks - 1) * vector.dtype.itemsize
        coded = whole if code is None else striped_bytes(code, vector, chunks)
        return Exchange(
            inside.messages + chunks * (laps + nodes), inside.nbytes + laps * coded + nodes * whole
        )

    def __post_init__(self) -> None:
        code_for_models(self.compress)
        check_group(self.name, self.group)
        if self.chunks < 1:
            raise ValueError(f"ring: chunks must be 1 or more, not {self.chunks}")


class _Node:
    """A place on the ring: the model comes from the previous node and goes to the following."""

    def __init__(self, ring: Ring, comm: Comm, replica: Replica) -> None:
        nodes = leaders(comm, comm.size)
        place = nodes.index(comm.rank)
        self._comm, self._replica = comm, replica
        self._previous, self._following = nodes[place - 1], nodes[(place + 1) % len(nodes)]
        self._parts = [replica.part(n, ring.chunks) for n in range(ring.chunks)]
        code = code_for_models(ring.compress)
        stripes = [replica.layout.stripe(n, ring.chunks) for n in range(ring.chunks)]
        self._channels = [
            None if code is None else Channel(code, replica, stripe, "residual", ring.feedback)
            for stripe in stripes
        ]
        self._sent: int | None = None  # the version that went on from here last

    async def merge(self, gradient: Vector, model_is_here: bool) -> None:
        """Chunk by chunk: take the model, add the gradient, send the model on."""
        born, count = self._replica.version, int(gradient[-1])
        pieces = self._replica.cut(gradient, len(self._parts))
        for number, part in enumerate(self._parts):
            if not model_is_here:
                model = await self._comm.recv(self._previous)
                part.load(self._decoded(number, model), model.version)
                del model  # the step lets go of it, and the node before has its memory again
            step = partial(part.step, pieces[number], born, count)
            await self._comm.compute(step, part.merging)
            # The send and the next minibatch, trained from the same new model, overlap.
            await self._send(number)
        self._join()
        self._sent = self._replica.version

    async def send_on(self) -> None:
        """Part with the model without having added anything."""
        for number in range(len(self._parts)):
            await self._send(number)
        self._sent = self._replica.version

    async def close(self) -> None:
        """Out of data: hand the model on until it comes round unchanged, then say so in a lap."""
        while True:
            model = [await self._comm.recv(self._previous) for _ in self._parts]
            if model[0].version == self._sent and model[0].tag == DATA:
                await self._say_it_is_final()
                return
            for number, chunk in enumerate(model):
                part = self._parts[number]
                part.load(self._decoded(number, chunk), chunk.version)
                await self._comm.send(self._following, chunk.data, chunk.tag, chunk.version)
            self._join()
            self._sent = self._replica.version
            if model[0].tag == LAST:
                return

    async def _say_it_is_final(self) -> None:
        """Who merged last has the model with all its digits."""
        for part in self._parts:
            await self._comm.send(self._following, part.weights, LAST, part.version)
        for _ in self._parts:
            await self._comm.recv(self._previous)

    async def _send(self, number: int) -> None:
        part, channel = self._parts[number], self._channels[number]
        data = part.weights
        if channel is not None:
            data = await self._comm.compute(partial(channel.encode, data), part.merging)
        await self._comm.send(self._following, data, DATA, part.version)

    def _decoded(self, number: int, chunk: Message) -> Vector:
        channel = self._channels[number]
        return chunk.data if channel is None or chunk.tag == LAST else channel.decode(chunk.data)

    def _join(self) -> None:
        if len(self._parts) > 1:
            whole = self._replica.joined([part.weights for part in self._parts])
            self._replica.load(whole, self._parts[0].version)
