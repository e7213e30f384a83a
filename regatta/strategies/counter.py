"""The two sides of the counter between workers and servers: stripes pushed, stripes pulled."""

from __future__ import annotations

from functools import partial

from regatta.comm import EMPTY, GOODBYE, Comm, Load, Vector
from regatta.compress import Channel, Code
from regatta.learn.layout import Stretch
from regatta.learn.replica import Replica


def one_way(code: Code | None, replica: Replica, stripe: Stretch) -> Channel | None:
    """A channel without feedback: what is sent stays exact where it comes from."""
    return None if code is None else Channel(code, replica, stripe, "", feedback=False)


class Servers:
    """A worker's way to `count` servers, which hold a stripe of the model each.

    Every stripe has a version of its own. Workers begin with different servers, so that not all of
    them queue at the same one.
    """

    def __init__(
        self,
        comm: Comm,
        replica: Replica,
        count: int,
        code: Code | None,
        code_for_weights: Code | None,
        feedback: bool,
    ) -> None:
        self._comm, self._replica = comm, replica
        first = comm.size - count
        order = [(comm.rank + n) % count for n in range(count)]
        self._order = [(number, first + number) for number in order]  # stripe and its server
        self._names = [f"version of stripe {number}" for number in range(count)]
        stripes = [replica.layout.stripe(number, count) for number in range(count)]
        self._out = [
            None if code is None else Channel(code, replica, stripe, "residual", feedback)
            for stripe in stripes
        ]
        self._back = [one_way(code_for_weights, replica, stripe) for stripe in stripes]

    async def push(self, gradient: Vector) -> None:
        pieces = self._replica.cut(gradient, len(self._order))
        for number, server in self._order:
            channel, piece = self._out[number], pieces[number]
            if channel is not None:
                load = Load(nbytes=piece.nbytes)
                piece = await self._comm.compute(partial(channel.encode, piece), load)
            version = self._replica.counters.get(self._names[number], 0)
            await self._comm.send(server, piece, version=version)

    async def pull(self, final: bool = False) -> None:
        """What is final comes uncoded: all ranks must end alike."""
        pieces: dict[int, Vector] = {}
        versions = 0
        for number, server in self._order:
            reply = await self._comm.recv(server)
            channel = None if final else self._back[number]
            pieces[number] = reply.data if channel is None else channel.decode(reply.data)
            self._replica.counters[self._names[number]] = reply.version
            versions += reply.version
        whole = self._replica.joined([pieces[number] for number in sorted(pieces)])
        self._replica.load(whole, versions // len(pieces))

    async def leave(self) -> None:
        for _, server in self._order:
            await self._comm.send(server, EMPTY, tag=GOODBYE)
        await self.pull(final=True)
