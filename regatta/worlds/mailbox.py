"""Point-to-point messages between processes: one thread a peer makes named receives.

Measured on gloo (torch 2.13): an any-source receive does not notice a dead peer, a named one fails
within 0.02 s of a death; a send waits for its receive. So every peer has a thread here that always
receives by name, header first, then payload, and `take` picks from what has come. A send therefore
always finds its receive, and nobody waits for the receiver's attention.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from regatta.comm import ANY, EMPTY, Message, WorldFailed

_HALT = -2  # every rank is asked to end its stream
_CLOSE = -3  # the sender leaves in good order
_DTYPES = (
    torch.float32, torch.float64, torch.float16, torch.bfloat16,
    torch.int8, torch.uint8, torch.int16, torch.int32, torch.int64, torch.bool,
)  # fmt: skip
_UNDER_WAY = 4  # sends a peer that may be unfinished before the oldest is waited for


class Mailbox:
    def __init__(self, rank: int, size: int, group: Any, on_halt: Callable[[], None]) -> None:
        self._rank = rank
        self._peers = [peer for peer in range(size) if peer != rank]
        self._group = group
        self._on_halt = on_halt
        self._come: deque[Message] = deque()
        self._lost: dict[int, str] = {}
        self._news = threading.Condition()
        self._sends: dict[int, deque[tuple[Any, Tensor]]] = {p: deque() for p in self._peers}
        self._threads = [
            threading.Thread(target=self._receive_from, args=(peer,), daemon=True)
            for peer in self._peers
        ]
        for thread in self._threads:
            thread.start()

    def send(self, dst: int, tag: int, version: int, data: Tensor) -> None:
        """Start a send; the payload is a value, so it needs no copy."""
        if dst == self._rank:
            self._put(Message(dst, tag, version, data))
            return
        data = data.detach().cpu()
        header = torch.tensor([tag, version, _DTYPES.index(data.dtype), data.numel()])
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

    def take(self, src: int, tag: int, wait: bool = True) -> Message | None:
        """The first message that has come and fits."""
        with self._news:
            while True:
                for number, message in enumerate(self._come):
                    if src in (ANY, message.src) and tag in (ANY, message.tag):
                        del self._come[number]
                        return message
                for peer, why in self._lost.items():
                    if src in (ANY, peer):
                        raise WorldFailed(f"rank {peer} is gone: {why}")
                if not wait:
                    return None
                self._news.wait()

    def halt_others(self) -> None:
        for peer in self._peers:
            self.send(peer, _HALT, 0, EMPTY)

    def close(self) -> None:
        """Leave in good order: say so, and hear every peer say so."""
        for peer in self._peers:
            self.send(peer, _CLOSE, 0, EMPTY)
        for sends in self._sends.values():
            for work, _ in sends:
                work.wait()
        for thread in self._threads:
            thread.join()

    def _receive_from(self, peer: int) -> None:
        header = torch.empty(4, dtype=torch.int64)
        try:
            while True:
                dist.recv(header, peer, group=self._group)
                tag, version, dtype, numel = header.tolist()
                if tag == _CLOSE:
                    return
                if tag == _HALT:
                    self._on_halt()
                    continue
                data = torch.empty(numel, dtype=_DTYPES[dtype])
                if numel:
                    dist.recv(data, peer, group=self._group)
                self._put(Message(peer, tag, version, data))
        except RuntimeError as error:
            with self._news:
                self._lost[peer] = _first_line(error)
                self._news.notify_all()

    def _put(self, message: Message) -> None:
        with self._news:
            self._come.append(message)
            self._news.notify_all()


def _first_line(error: BaseException) -> str:
    return str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
