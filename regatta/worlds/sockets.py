"""Messages to and from the ranks of other hosts: one thread a peer makes named receives.

Measured on gloo (torch 2.13): an any-source receive does not notice a dead peer, a named one fails
within 0.02 s of a death; a send waits for its receive. So every peer has a thread here that always
receives by name, header first, then payload. A send therefore always finds its receive, and nobody
waits for the receiver's attention.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from regatta.comm import Message, WorldFailed
from regatta.worlds.headers import DTYPES, Nonsense, dtype_to_receive

_UNDER_WAY = 4  # sends a peer that may be unfinished before the oldest is waited for


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
        self._threads = [
            threading.Thread(target=self._receive_from, args=(peer,), daemon=True)
            for peer in self._sends
        ]
        for thread in self._threads:
            thread.start()

    def send(self, dst: int, tag: int, version: int, data: Tensor) -> None:
        """Start a send; the payload is a value, so it needs no copy."""
        header = torch.tensor([tag, version, DTYPES.index(data.dtype), data.numel()])
        try:
            self._start(dst, header)
            if data.numel():
                self._start(dst, data)
        except RuntimeError as error:
            raise WorldFailed(f"rank {dst} is gone: {_first_line(error)}") from None

    def _start(self, dst: int, tensor: Tensor) -> None:
        sends = self._sends[dst]
        sends.append((dist.isend(tensor, dst, group=self._group), tensor))
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
        header = torch.empty(4, dtype=torch.int64)
        goes_on = True
        try:
            while goes_on:
                dist.recv(header, peer, group=self._group)
                tag, version, code, numel = header.tolist()
                data = torch.empty(numel, dtype=dtype_to_receive(code, numel))
                if numel:
                    dist.recv(data, peer, group=self._group)
                goes_on = self._put(Message(peer, tag, version, data))
        except (RuntimeError, MemoryError, Nonsense) as error:
            self._lose(peer, _first_line(error))


def _first_line(error: BaseException) -> str:
    return str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
