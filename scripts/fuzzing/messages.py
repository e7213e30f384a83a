"""Message headers, as a neighbour's pipe and a far rank's socket bring them."""

from __future__ import annotations

import os
import struct
from pathlib import Path
from typing import Any

import torch

from fuzzing import mutate
from fuzzing.target import Target
from regatta.comm import Message, WorldFailed
from regatta.worlds import ahead
from regatta.worlds import sockets as far
from regatta.worlds.arena import Arena, Outlook
from regatta.worlds.neighbours import Neighbours

_PIPE_HOLDS = 60_000  # bytes
_READ = 1 << 16  # at most, at a time
_CLOSED = "Connection closed by peer"


def pipes(_folder: Path) -> Target:
    """A rank with one neighbour, whose end of the pipe is ours."""
    arena = Arena(2)
    outlook = Outlook(f"/proc/{os.getpid()}/fd/{arena.file}", arena.capacity, 2, place=1)
    reader, writer = os.pipe()
    neighbours = Neighbours((0, 1), arena, {0: outlook}, {0: reader}, {})
    vector = arena.empty(5000, torch.float32).fill_(1.0)
    place = arena.send(vector, to=1)
    seeds = [
        struct.pack("<6q", 0, 7, 0, *place),
        struct.pack("<6q", 1, 7, 5, *place),
        struct.pack("<6q", 0, 7, 0, -1, 0, 40) + bytes(40),
        struct.pack("<6q", -2, 0, 0, -1, 0, 0) * 3,
        struct.pack("<6q", -9, 0, 8, -1, 0, 16) + bytes(16) + struct.pack("<6q", 0, 1, 2, *place),
    ]

    def feed(data: bytes) -> None:
        neighbours._rest[0] = b""  # each input is a world of its own
        data = data[:_PIPE_HOLDS] or b"\0"
        os.write(writer, data)
        for _ in range(0, len(data), _READ):
            for message in neighbours.come(reader)[1] or ():
                _touch(message.data)
        assert vector[0] == 1.0  # its place stays taken

    return Target("headers in pipes between neighbours", seeds, mutate.bits, feed)


def _touch(data: torch.Tensor) -> None:
    """Its first and its last byte lie where they may be read."""
    if data.numel():
        ends = data.reshape(-1).view(torch.uint8)
        int(ends[0]) + int(ends[-1])


class _Wire:
    """Stands where gloo's receives are: brings the bytes that there are, then ends as gloo does."""

    def __init__(self) -> None:
        self.data = b""

    def irecv(self, tensor: torch.Tensor, peer: int, group: Any = None, tag: int = 0) -> _Coming:
        return _Coming(self, tensor)


class _Coming:
    """A receive that was begun ahead; messages are waited for in the order in which they come."""

    def __init__(self, wire: _Wire, tensor: torch.Tensor) -> None:
        self._wire, self._tensor = wire, tensor

    def wait(self) -> None:
        wire, tensor = self._wire, self._tensor
        some = bytearray(wire.data[: tensor.nbytes])
        wire.data = wire.data[tensor.nbytes :]
        if len(some) < tensor.nbytes:
            raise RuntimeError(_CLOSED)
        tensor.view(torch.uint8).copy_(torch.frombuffer(some, dtype=torch.uint8))


def sockets(_folder: Path) -> Target:
    """The loop of a receiving thread, run here; what it says of its peer is raised."""
    wire = _Wire()
    lost: list[str] = []
    rank = far.Sockets([], None, _take, lambda peer, why: lost.append(why))
    seeds = [
        struct.pack("<4q", 0, 7, 0, 10) + bytes(40),
        struct.pack("<4q", 0, 7, 8, 3) + bytes(24) + struct.pack("<4q", 1, 8, 5, 2) + bytes(2),
        struct.pack("<4q", -3, 0, 0, 0),
        struct.pack("<4q", -2, 0, 9, 0) * 4,
    ]

    def feed(data: bytes) -> None:
        lost.clear()
        wire.data = data
        before, ahead.dist = ahead.dist, wire
        try:
            rank._receive_from(1)
        finally:
            ahead.dist = before
        if lost and lost != [_CLOSED]:
            raise WorldFailed(f"rank 1 is gone: {lost[0]}")

    return Target("headers in sockets between hosts", seeds, mutate.bits, feed)


def _take(message: Message) -> bool:
    _touch(message.data)
    return message.tag != -3
