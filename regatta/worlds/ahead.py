"""Receives that are ready before anything has been sent.

Gloo lets a payload go when it has heard that the receiver is ready for it. A receive that begins
only when its message is known to come therefore costs a journey there and back before the message's
own. So whatever has a length that has come before finds a receive of this length waiting: both ends
number lengths in the order in which they first came, and the number tells the tag.
"""

from __future__ import annotations

from collections import defaultdict, deque
from typing import Any, Final, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor

_MOST_LENGTHS: Final = 64  # that have a tag of their own; all others share one
_AHEAD: Final = 4  # messages of a length that a peer may send before the first is taken
_BYTES_AHEAD: Final = 1 << 21  # from a peer: what is longer does not mind a journey


class Tags:
    """By length, from one rank to another: the same at both ends."""

    def __init__(self, first: int) -> None:
        self._shared = first
        self._own: dict[tuple[torch.dtype, int], int] = {}

    def of(self, dtype: torch.dtype, numel: int) -> int:
        if len(self._own) == _MOST_LENGTHS:
            return self._own.get((dtype, numel), self._shared)
        return self._own.setdefault((dtype, numel), self._shared + 1 + len(self._own))

    def is_shared(self, tag: int) -> bool:
        return tag == self._shared


class Receive(NamedTuple):
    """One that is under way, and where to."""

    work: Any
    data: Tensor


class Ahead:
    """What is received from one peer, by length."""

    def __init__(self, group: Any, peer: int, first_tag: int) -> None:
        self._group, self._peer = group, peer
        self._tags = Tags(first_tag)
        self._ready: defaultdict[int, deque[Receive]] = defaultdict(deque)
        self._bytes_ready = 0

    def take(self, dtype: torch.dtype, numel: int) -> Receive:
        """The next of this length."""
        tag = self._tags.of(dtype, numel)
        if not self._ready[tag]:
            return self._begin(torch.empty(numel, dtype=dtype), tag)
        receive = self._ready[tag].popleft()
        self._bytes_ready -= receive.data.nbytes
        return receive

    def be_ready(self, data: Tensor) -> None:
        """Receive the next of its length into this memory."""
        tag = self._tags.of(data.dtype, data.numel())
        if not self._tags.is_shared(tag):
            self._ready[tag].append(self._begin(data, tag))
            self._bytes_ready += data.nbytes

    def take_next(self, dtype: torch.dtype, numel: int) -> Tensor:
        """Wait for it, while some more after it may come."""
        work, data = self.take(dtype, numel)
        for _ in range(len(self._ready[self._tags.of(dtype, numel)]), _AHEAD):
            if self._bytes_ready + data.nbytes <= _BYTES_AHEAD:
                self.be_ready(torch.empty_like(data))
        work.wait()
        return data

    def _begin(self, data: Tensor, tag: int) -> Receive:
        return Receive(dist.irecv(data, self._peer, group=self._group, tag=tag), data)
