"""The two sides of the counter between workers and servers: stripes pushed, stripes pulled."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

from regatta.comm import DATA, EMPTY, GOODBYE, Comm, Load, Vector
from regatta.compress import Channel, Code
from regatta.learn.layout import Stretch
from regatta.learn.replica import Replica


def one_way(code: Code | None, replica: Replica, stripe: Stretch) -> Channel | None:
    """A channel without feedback: what is sent stays exact where it comes from."""
    return None if code is None else Channel(code, replica, stripe, "", feedback=False)


@dataclass(slots=True)
class _Stripe:
    """What a worker knows of the stripe that one server holds."""

    number: int
    server: int
    version: int
    out: Channel | None
    back: Channel | None


class Servers:
    """A worker's way to `count` servers, which hold a stripe of the model each.

    Every stripe has a version of its own. Workers begin with different servers, so that not all of
    them queue at the same one.
    """

    __slots__ = ("_comm", "_replica", "_stripes")

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
        self._stripes: list[_Stripe] = []
        for number in ((comm.rank + n) % count for n in range(count)):
            stripe = replica.layout.stripe(number, count)
            out = None if code is None else Channel(code, replica, stripe, "residual", feedback)
            back = one_way(code_for_weights, replica, stripe)
            version = replica.counters.get(_version_of(number), 0)
            server = comm.size - count + number
            self._stripes.append(_Stripe(number, server, version, out, back))

    @property
    def need_vectors(self) -> bool:
        """To cut, to encode or to carry to another process."""
        return (
            not self._comm.sends_unwritten
            or len(self._stripes) > 1
            or self._stripes[0].out is not None
        )

    async def push(self, gradient: Vector) -> None:
        pieces = self._replica.cut(gradient, len(self._stripes))
        self._replica.let_go()  # the next weights will be the servers'
        for stripe in self._stripes:
            piece = pieces[stripe.number]
            if stripe.out is not None:
                load = Load(nbytes=piece.nbytes)
                piece = await self._comm.compute(partial(stripe.out.encode, piece), load)
            await self._comm.send(stripe.server, piece, DATA, stripe.version)

    async def pull(self, final: bool = False) -> None:
        """What is final comes uncoded: all ranks must end alike."""
        pieces: list[Vector] = [None] * len(self._stripes)
        versions = 0
        for stripe in self._stripes:
            reply = await self._comm.recv(stripe.server)
            code = None if final else stripe.back
            pieces[stripe.number] = reply.data if code is None else code.decode(reply.data)
            stripe.version = reply.version
            versions += reply.version
        self._replica.load(self._replica.joined(pieces), versions // len(pieces))

    async def leave(self) -> None:
        for stripe in self._stripes:
            await self._comm.send(stripe.server, EMPTY, GOODBYE)
        await self.pull(final=True)
        for stripe in self._stripes:  # they outlive this turn of the role
            self._replica.counters[_version_of(stripe.number)] = stripe.version


def _version_of(stripe: int) -> str:
    return f"version of stripe {stripe}"
