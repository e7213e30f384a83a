"""Memory that the ranks of one host can see, so that a vector is handed over by naming its place.

Every rank owns an arena: one anonymous file (memfd), sparse and far larger than what is ever used,
cut into blocks as they are wanted. Neighbours map it once. Whoever is sent a block holds it until
its tensor is forgotten, and then counts up its number in the owner's ledger; each number has one
writer, so no lock is needed. A block is free again when its owner's tensor is gone and everybody
has counted up to what was sent. Nothing is in the file system, and nothing stays behind after a
kill.
"""

from __future__ import annotations

import mmap
import os
import weakref
from collections import defaultdict
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from regatta.worlds.headers import Nonsense

_MOST_BLOCKS = 8192
_SMALLEST_BLOCK = mmap.PAGESIZE
_NUMBER = 8  # bytes
_LEDGER = _MOST_BLOCKS * _NUMBER  # bytes a neighbour
_NAME = "regatta-arena"


class Place(NamedTuple):
    """Where a value lies in its owner's arena."""

    block: int
    offset: int  # bytes from the start of the arena
    nbytes: int


class _Block:
    __slots__ = ("holder", "number", "offset", "sent")

    def __init__(self, number: int, offset: int, neighbours: int) -> None:
        self.number = number
        self.offset = offset
        self.holder: weakref.ref[Any] | None = None  # the owner's own view of it
        self.sent = [0] * neighbours  # how often, to whom


class Arena:
    """This rank's own memory; `neighbours` counts the ranks of this host, itself among them."""

    def __init__(self, neighbours: int) -> None:
        self.capacity = _capacity()
        self.file = os.memfd_create(_NAME)
        os.ftruncate(self.file, self.capacity)
        self._memory = _map(self.file, self.capacity)
        self._address = self._memory.ctypes.data
        self._ledger = _ledger(self._memory, neighbours)
        self._neighbours = neighbours
        self._end = -(-self._ledger.nbytes // mmap.PAGESIZE) * mmap.PAGESIZE
        self._by_size: defaultdict[int, list[_Block]] = defaultdict(list)
        self._by_offset: dict[int, _Block] = {}

    def empty(self, numel: int, dtype: torch.dtype) -> Tensor:
        """A vector in a block of its own."""
        nbytes = numel * dtype.itemsize
        block = self._free_block(nbytes)
        view = self._memory[block.offset : block.offset + nbytes]
        block.holder = weakref.ref(view)
        return torch.from_numpy(view).view(dtype)

    def send(self, data: Tensor, to: int) -> Place:
        """Let neighbour `to` hold this value; it is copied if it does not lie here yet."""
        data = self.placed(data)
        block = self._by_offset[self._start_of(data)]
        block.sent[to] += 1
        return Place(block.number, data.data_ptr() - self._address, data.nbytes)

    def placed(self, data: Tensor) -> Tensor:
        """The value itself if it lies here, else a copy that does."""
        if self._start_of(data) in self._by_offset:
            return data
        copy = self.empty(data.numel(), data.dtype)
        copy.copy_(data)
        return copy

    def forget(self, neighbour: int) -> None:
        """It is dead: what it was sent and has not given back is free all the same."""
        for block in self._by_offset.values():
            block.sent[neighbour] = int(self._ledger[neighbour, block.number])

    def blocks_in_use(self) -> int:
        return sum(not self._is_free(block) for block in self._by_offset.values())

    def _start_of(self, data: Tensor) -> int:
        """Where its block would begin; of memory from elsewhere, no block does."""
        return data.untyped_storage().data_ptr() - self._address

    def _free_block(self, nbytes: int) -> _Block:
        # Pages that are never touched take no memory, so sizes may be rounded up generously.
        size = max(_SMALLEST_BLOCK, 1 << (nbytes - 1).bit_length())
        blocks = self._by_size[size]
        for block in blocks:
            if self._is_free(block):
                return block
        if self._end + size > self.capacity or len(self._by_offset) == _MOST_BLOCKS:
            raise MemoryError(
                f"{len(self._by_offset)} vectors of this rank are held by others, none is free: "
                "a strategy sends faster than its peers receive"
            )
        block = _Block(len(self._by_offset), self._end, self._neighbours)
        self._end += size
        self._by_offset[block.offset] = block
        blocks.append(block)
        return block

    def _is_free(self, block: _Block) -> bool:
        if block.holder is not None and block.holder() is not None:
            return False
        returned = self._ledger[:, block.number]
        return all(int(n) == sent for n, sent in zip(returned, block.sent, strict=True))


class Outlook:
    """A neighbour's arena as seen from here; `place` is ours among the ranks of this host."""

    def __init__(self, path: str, capacity: int, neighbours: int, place: int) -> None:
        file = os.open(path, os.O_RDWR)
        try:
            is_arena = _NAME in os.readlink(f"/proc/self/fd/{file}")
            if not is_arena or not neighbours * _LEDGER < capacity <= os.fstat(file).st_size:
                raise OSError(f"{path} is no arena of {capacity} bytes")
            self._memory = _map(file, capacity)
        finally:
            os.close(file)
        self._returned = _ledger(self._memory, neighbours)[place]
        self._first = neighbours * _LEDGER
        self._capacity = capacity

    def value(self, place: Place, dtype: torch.dtype) -> Tensor:
        """What lies there; it is given back when the tensor and all its views are gone."""
        block, offset, nbytes = place
        if (
            not 0 <= block < _MOST_BLOCKS
            or not self._first <= offset <= self._capacity - nbytes
            or nbytes <= 0
            or offset % dtype.itemsize
        ):
            raise Nonsense(f"no vector lies at {tuple(place)}")
        view = self._memory[place.offset : place.offset + place.nbytes]
        weakref.finalize(view, self._give_back, place.block).atexit = False
        return torch.from_numpy(view).view(dtype)

    def _give_back(self, block: int) -> None:
        self._returned[block] += 1


def _capacity() -> int:
    """More than can ever be filled: addresses cost nothing."""
    return 4 * os.sysconf("SC_PHYS_PAGES") * mmap.PAGESIZE


def _map(file: int, capacity: int) -> np.ndarray[Any, np.dtype[np.uint8]]:
    memory = mmap.mmap(file, capacity)
    if hasattr(mmap, "MADV_DONTDUMP"):
        memory.madvise(mmap.MADV_DONTDUMP)
    return np.frombuffer(memory, dtype=np.uint8)


def _ledger(memory: Any, neighbours: int) -> Any:
    """By neighbour and block, how often a value was given back."""
    nbytes = neighbours * _LEDGER
    return memory[:nbytes].view(np.int64).reshape(neighbours, _MOST_BLOCKS)
