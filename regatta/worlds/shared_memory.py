"""The sum through memory that the ranks of one host share.

Every rank copies its vector into a slot that all can see, adds up its own stripe over all slots in
rank order, and copies the others' stripes out; gloo only carries the two signals "copied in" and
"added up", so a dead rank is noticed as anywhere else. Slots are anonymous files (memfd) that peers
open through the owner's descriptors: nothing is in the file system, and nothing stays behind after
a kill. There are two sets of slots, used in turn, so that a fast rank never writes over what a slow
one still reads.
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from regatta.worlds.collectives import add_up, finished, stripes_of

SMALLEST_BYTES = 2**15  # below, messages are as fast
_COPIED_IN, _ADDED_UP = 3, 4  # tags


class SharedSum:
    """Sums of one group whose ranks are all on this host."""

    def __init__(self, group: Any) -> None:
        self._group = group
        self._ranks: list[int] = dist.get_process_group_ranks(group)
        self._me = self._ranks.index(dist.get_rank())
        self._others = [n for n in range(len(self._ranks)) if n != self._me]
        self._slots: list[list[Tensor]] = []  # two sets of one slot a rank
        self._turn = 0
        self._is_open = False
        self._usable = _all_agree(_on_one_host(group), group)

    def takes(self, data: Tensor) -> bool:
        """Whether this sum can go this way; every rank comes to the same answer."""
        if not self._usable or data.nbytes < SMALLEST_BYTES or self._is_open:
            return False
        if not self._slots or self._slots[0][0].numel() < data.nbytes:
            self._usable = self._make_slots(data.nbytes)
        return self._usable

    def start(self, data: Tensor, into: Tensor | None) -> Callable[[], Tensor]:
        self._is_open = True
        slots = [slot[: data.nbytes].view(data.dtype) for slot in self._slots[self._turn]]
        self._turn = 1 - self._turn
        slots[self._me].copy_(data)
        copied_in = self._signal(_COPIED_IN)

        def finish() -> Tensor:
            finished(*copied_in)
            stripes = stripes_of(data.numel(), len(slots))
            mine = stripes[self._me]
            add_up([slot[mine] for slot in slots], self._me, slots[self._me][mine])
            added_up = self._signal(_ADDED_UP)
            result = torch.empty_like(data) if into is None else into
            result[mine] = slots[self._me][mine]
            finished(*added_up)
            for n in self._others:
                result[stripes[n]] = slots[n][stripes[n]]
            self._is_open = False
            return result

        return finish

    def _signal(self, tag: int) -> list[Any]:
        """Tell every other rank, and hear it from every other rank."""
        token = torch.zeros(1, dtype=torch.uint8)
        sends = [dist.isend(token, self._ranks[n], self._group, tag) for n in self._others]
        receives = [
            dist.irecv(torch.empty_like(token), self._ranks[n], self._group, tag)
            for n in self._others
        ]
        return receives + sends

    def _make_slots(self, nbytes: int) -> bool:
        """All ranks together: two files each, and everybody's mapped by everybody."""
        size = -(-nbytes // mmap.PAGESIZE) * mmap.PAGESIZE
        own = [os.memfd_create(f"regatta-slot-{n}") for n in range(2)]
        for file in own:
            os.ftruncate(file, size)
        places = torch.tensor([os.getpid(), *own])
        everybody = [torch.empty_like(places) for _ in self._ranks]
        dist.all_gather(everybody, places, group=self._group)
        try:
            self._slots = [
                [_map(int(place[0]), int(place[1 + n]), size) for place in everybody]
                for n in range(2)
            ]
            mapped = True
        except OSError:  # other users' processes, or another view of /proc
            mapped = False
        agreed = _all_agree(mapped, self._group)  # also: everybody has opened ours
        for file in own:
            os.close(file)
        return agreed


def _map(pid: int, descriptor: int, size: int) -> Tensor:
    file = os.open(f"/proc/{pid}/fd/{descriptor}", os.O_RDWR)
    try:
        return torch.frombuffer(mmap.mmap(file, size), dtype=torch.uint8)
    finally:
        os.close(file)


def _on_one_host(group: Any) -> bool:
    """Whether all ranks run under one kernel and see the same processes."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip().replace("-", "")
        here = torch.tensor([int(boot[:15], 16), os.stat("/proc/self/ns/pid").st_ino])
    except OSError:
        here = torch.tensor([os.getpid(), -1 - dist.get_rank()])  # like nobody else
    everybody = [torch.empty_like(here) for _ in range(group.size())]
    dist.all_gather(everybody, here, group=group)
    return hasattr(os, "memfd_create") and all(torch.equal(here, other) for other in everybody)


def _all_agree(yes: bool, group: Any) -> bool:
    votes = torch.tensor([int(yes)])
    dist.all_reduce(votes, op=dist.ReduceOp.MIN, group=group)
    return bool(votes)
