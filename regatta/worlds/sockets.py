"""Messages to and from the ranks of other hosts: one thread a peer makes named receives.

Measured on gloo (torch 2.13): an any-source receive does not notice a dead peer, a named one fails
within 0.02 s of a death; a send waits for its receive. So every peer has a thread here that always
receives by name, header first, then payload. A send therefore always finds its receive, and nobody
waits for the receiver's attention. Receives are begun ahead of what they are for: see `ahead`.
"""

from __future__ import annotations

import re
import threading
from collections import deque
from collections.abc import Callable, Iterable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from regatta.comm import Message, WorldFailed
from regatta.worlds.ahead import Ahead, Tags
from regatta.worlds.headers import DTYPES, Nonsense, dtype_to_receive

_UNDER_WAY = 4  # sends a peer that may be unfinished before the oldest is waited for
_HEADERS, _PAYLOADS = 0, 2  # from which on they have tags
_HEADER = 4  # numbers
_PLACE = re.compile(r"^\[\S+\.(cc|cpp|h):\d+\] ")


class Sockets:
    def __init__(
        self,
        peers: Iterable[int],
        group: Any,
        put: Callable[[Message], bool],
        lose: Callable[[int, str], None],
    ) -> None:
        """`put` takes what comes and tells whether the peer may send more; `lose` takes a loss."""
        self._group = group
        self._put = put
        self._lose = lose
        self._sends: dict[int, deque[tuple[Any, Tensor]]] = {p: deque() for p in peers}
        self._tags = {peer: (Tags(_HEADERS), Tags(_PAYLOADS)) for peer in self._sends}
        self._threads = [
            threading.Thread(target=self._receive_from, args=(peer,), daemon=True)
            for peer in self._sends
        ]
        for thread in self._threads:
            thread.start()

    def send(self, dst: int, tag: int, version: int, data: Tensor) -> None:
        """Start a send; the payload is a value, so it needs no copy."""
        header = torch.tensor([tag, version, DTYPES.index(data.dtype), data.numel()])
        headers, payloads = self._tags[dst]
        try:
            self._start(dst, header, headers)
            if data.numel():
                self._start(dst, data, payloads)
        except RuntimeError as error:
            raise WorldFailed(f"rank {dst} is gone: {complaint(error)}") from None

    def _start(self, dst: int, tensor: Tensor, tags: Tags) -> None:
        sends, tag = self._sends[dst], tags.of(tensor.dtype, tensor.numel())
        sends.append((dist.isend(tensor, dst, group=self._group, tag=tag), tensor))
        while len(sends) > _UNDER_WAY:
            work, _ = sends.popleft()
            work.wait()

    def close(self) -> None:
        """Every send is through, and every peer has said its last."""
        for sends in self._sends.values():
            for work, _ in sends:
                work.wait()
        for thread in self._threads:
            thread.join()

    def _receive_from(self, peer: int) -> None:
        headers, payloads = (Ahead(self._group, peer, first) for first in (_HEADERS, _PAYLOADS))
        goes_on = True
        try:
            while goes_on:
                header = headers.take_next(torch.int64, _HEADER)
                tag, version, code, numel = header.tolist()
                dtype = dtype_to_receive(code, numel)
                data = torch.empty(0, dtype=dtype)
                if numel:
                    data = payloads.take_next(dtype, numel)
                goes_on = self._put(Message(peer, tag, version, data))
        except (RuntimeError, MemoryError, Nonsense) as error:
            self._lose(peer, complaint(error))


def complaint(error: BaseException) -> str:
    """What gloo says, without where in its text it does and whom to ask."""
    first = (str(error).strip().splitlines() or [type(error).__name__])[0]
    return _PLACE.sub("", first).partition(" This is typically caused")[0]
