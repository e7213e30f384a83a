"""Whole models between two ranks, coded or as they are."""

from __future__ import annotations

from functools import partial

from regatta.comm import Comm, Message, Vector
from regatta.compress.channel import Channel, Code
from regatta.compress.reduce import striped_bytes
from regatta.learn.layout import Layout
from regatta.learn.replica import Replica


class Line:
    """How one rank sends models to others and reads theirs."""

    def __init__(self, code: Code | None, comm: Comm, replica: Replica, feedback: bool) -> None:
        self._comm, self._replica = comm, replica
        self._channel: Channel | None = None
        if code is not None:
            self._channel = Channel(code, replica, replica.layout, "residual", feedback)

    async def send(self, dst: int, vector: Vector, version: int) -> None:
        if self._channel is not None:
            encode = partial(self._channel.encode, vector)
            vector = await self._comm.compute(encode, self._replica.merging)
        await self._comm.send(dst, vector, version=version)

    def decoded(self, message: Message) -> Vector:
        return message.data if self._channel is None else self._channel.decode(message.data)


def line_bytes(code: Code | None, layout: Layout) -> int:
    return layout.nbytes if code is None else striped_bytes(code, layout, 1)
