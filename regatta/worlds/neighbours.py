"""Messages between the ranks of one host: a header through a pipe, the payload in shared memory.

Every pair of ranks has a pipe in each direction. Waiting is a `poll` in the kernel, so it takes no
core from who computes; a dead rank closes its pipes, which its neighbours see at once. Memory and
pipes have no names: neighbours open them through the owner's descriptors in /proc, which the system
allows to processes of the same user only.
"""

from __future__ import annotations

import os
import platform
import select
import stat
import struct
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import torch
import torch.distributed as dist
from torch import Tensor

from regatta.comm import EMPTY, Message, WorldFailed
from regatta.worlds.arena import Arena, Outlook, Place
from regatta.worlds.headers import DTYPES, Nonsense, dtype_of

_HEADER: Final = struct.Struct("<6q")  # tag, version, dtype, block, offset, bytes
_INLINE: Final = -1  # the block of a payload that follows its header
SMALL_BYTES: Final = 4000  # payloads up to here follow their header: a pipe takes 4096 at once
_READ_BYTES: Final = 1 << 16


class Neighbours:
    """The other ranks of this host."""

    def __init__(
        self,
        ranks: Sequence[int],
        arena: Arena,
        outlooks: dict[int, Outlook],
        readers: dict[int, int],
        writers: dict[int, int],
    ) -> None:
        self.arena = arena
        self._places = {rank: place for place, rank in enumerate(ranks)}
        self._outlooks = outlooks
        self._writers = writers
        self._rank_of = {file: rank for rank, file in readers.items()}
        self._rest = dict.fromkeys(readers, b"")  # the beginning of a header, by rank
        self.poll = select.poll()
        for file in readers.values():
            self.poll.register(file, select.POLLIN)

    def __contains__(self, rank: int) -> bool:
        return rank in self._writers

    def forget(self, rank: int) -> None:
        self.arena.forget(self._places[rank])

    def send(
        self, dst: int, tag: int, version: int, data: Tensor, take_in: Callable[[], None]
    ) -> None:
        """While the pipe is full, what has come is taken in: so nobody waits for ever."""
        dtype = DTYPES.index(data.dtype)
        if data.nbytes <= SMALL_BYTES:
            payload = data.view(torch.uint8).numpy().tobytes() if data.nbytes else b""
            header = _HEADER.pack(tag, version, dtype, _INLINE, 0, len(payload))
        else:
            payload = b""
            place = self.arena.send(data.contiguous(), self._places[dst])
            header = _HEADER.pack(tag, version, dtype, *place)
        self._write(dst, header + payload, take_in)

    def _write(self, dst: int, text: bytes, take_in: Callable[[], None]) -> None:
        while True:
            try:
                os.write(self._writers[dst], text)  # all of it or nothing, so short a text
                return
            except BlockingIOError:
                take_in()
                select.select([], [self._writers[dst]], [], 0.01)
            except BrokenPipeError:
                raise WorldFailed(f"rank {dst} is gone: it has closed its pipe") from None

    def come(self, file: int) -> tuple[int, list[Message] | None]:
        """Who has written, and what; None from a rank that is gone."""
        rank = self._rank_of[file]
        text = os.read(file, _READ_BYTES)
        if not text:
            self.poll.unregister(file)
            return rank, None
        text = self._rest[rank] + text
        messages: list[Message] = []
        start = 0
        while len(text) - start >= _HEADER.size:
            tag, version, code, *place = _HEADER.unpack_from(text, start)
            there = Place(*place)
            end = start + _HEADER.size
            try:
                dtype = dtype_of(code, there.nbytes)
                if there.block == _INLINE:
                    if there.nbytes > SMALL_BYTES:
                        raise Nonsense(f"{there.nbytes} bytes are to follow")
                    if end + there.nbytes > len(text):
                        break
                    data = _unpacked(text[end : end + there.nbytes], dtype)
                    end += there.nbytes
                else:
                    data = self._outlooks[rank].value(there, dtype)
            except Nonsense as nonsense:
                raise WorldFailed(f"rank {rank}: {nonsense}") from None
            messages.append(Message(rank, tag, version, data))
            start = end
        self._rest[rank] = text[start:]
        return rank, messages


def _unpacked(payload: bytes, dtype: torch.dtype) -> Tensor:
    return torch.frombuffer(bytearray(payload), dtype=dtype) if payload else EMPTY.to(dtype)


# -- how neighbours find each other ----------------------------------------------------------


def host_numbers() -> list[int]:
    """The host of every rank: 0 for that of rank 0 and those beside it, and so on."""
    here = torch.tensor([zlib.crc32(_host().encode())])
    everybody = [torch.empty_like(here) for _ in range(dist.get_world_size())]
    dist.all_gather(everybody, here)
    numbers: dict[int, int] = {}
    return [numbers.setdefault(int(name), len(numbers)) for name in everybody]


def _host() -> str:
    """A host is one running kernel with one view of its processes, unless REGATTA_HOST says so."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        where = f"{boot} {os.stat('/proc/self/ns/pid').st_ino}"
    except OSError:
        where = platform.node()
    return f"{where} {os.environ.get('REGATTA_HOST', '')}"


def meet_neighbours(ranks: Sequence[int]) -> Neighbours | None:
    """All ranks of all hosts together: share memory and pipes with the `ranks` of this host.

    None where a system does not allow it; then all hosts do without.
    """
    offer = _Offer.make(ranks)
    size = dist.get_world_size()
    row = torch.tensor([-1] * (3 + size) if offer is None else offer.row(size))
    rows = [torch.empty_like(row) for _ in range(size)]
    dist.all_gather(rows, row)
    try:
        neighbours = None if offer is None else offer.meet([row.tolist() for row in rows])
    except (OSError, ValueError, OverflowError):  # another user's processes, or another /proc
        neighbours = None
    agreed = _all_agree(neighbours is not None)  # also: everybody has opened ours
    if offer is not None:
        offer.close()
    return neighbours if agreed else None


@dataclass(frozen=True)
class _Offer:
    """What a rank lets its neighbours open."""

    ranks: Sequence[int]
    arena: Arena
    pipes: dict[int, tuple[int, int]]

    @classmethod
    def make(cls, ranks: Sequence[int]) -> _Offer | None:
        try:
            arena = Arena(len(ranks))
            pipes = {rank: os.pipe() for rank in ranks if rank != dist.get_rank()}
        except (OSError, AttributeError, ValueError):  # no memfd, or no room for addresses
            return None
        return cls(ranks, arena, pipes)

    def row(self, size: int) -> list[int]:
        writers = [self.pipes[rank][1] if rank in self.pipes else -1 for rank in range(size)]
        return [os.getpid(), self.arena.file, self.arena.capacity, *writers]

    def meet(self, rows: Sequence[Sequence[int]]) -> Neighbours:
        """Open what the others offer."""
        me = dist.get_rank()
        outlooks: dict[int, Outlook] = {}
        writers: dict[int, int] = {}
        for rank in self.pipes:
            pid, file, capacity, *pipes = rows[rank]
            place = self.ranks.index(me)
            outlooks[rank] = Outlook(f"/proc/{pid}/fd/{file}", capacity, len(self.ranks), place)
            writers[rank] = _open_pipe(f"/proc/{pid}/fd/{pipes[me]}")
        readers = {rank: reader for rank, (reader, _) in self.pipes.items()}
        return Neighbours(self.ranks, self.arena, outlooks, readers, writers)

    def close(self) -> None:
        """A reader must see the end when its only writer is gone."""
        os.close(self.arena.file)
        for _, writer in self.pipes.values():
            os.close(writer)


def _open_pipe(path: str) -> int:
    """Only if it is one: a rank names descriptors, and no other file must be written to."""
    if not stat.S_ISFIFO(os.stat(path).st_mode):
        raise OSError(f"{path} is no pipe")
    return os.open(path, os.O_WRONLY | os.O_NONBLOCK)


def _all_agree(yes: bool) -> bool:
    votes = torch.tensor([int(yes)])
    dist.all_reduce(votes, op=dist.ReduceOp.MIN)
    return bool(votes)
