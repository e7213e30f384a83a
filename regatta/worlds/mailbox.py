"""What has come for this rank, from neighbours and from afar, until somebody takes it.

Tags below zero are for the worlds' own use: they are kept apart, so that a strategy which takes any
message never takes one of those.
"""

from __future__ import annotations

import os
import select
from collections import defaultdict, deque
from collections.abc import Callable, Collection
from contextlib import suppress
from functools import partial
from typing import Any, TypeVar

from torch import Tensor

from regatta.comm import ANY, EMPTY, GONE, Message, WorldFailed, goodbye_of
from regatta.worlds.neighbours import Neighbours
from regatta.worlds.sockets import Sockets

T = TypeVar("T")
_HALT = -2  # a rank is asked to end its stream, before the turn that is the version
SOMETIME = -1  # no turn: rank 0 is asked to say which
_CLOSE = -3  # the sender leaves in good order
FIRST_OWN_TAG = -4  # and below: values of collective operations


class Mailbox:
    def __init__(
        self,
        rank: int,
        size: int,
        neighbours: Neighbours | None,
        group: Any,
        on_halt: Callable[[int], None],
        mortal: Collection[int] = (),
    ) -> None:
        """The `mortal` are ranks whose death the others survive."""
        self._mortal = mortal
        self.gone: set[int] = set()  # of them
        self._rank = rank
        self._peers = [peer for peer in range(size) if peer != rank]
        self._near = neighbours
        self._on_halt = on_halt
        self._come: deque[Message] = deque()
        self._own: defaultdict[tuple[int, int], deque[Tensor]] = defaultdict(deque)
        self._at_the_door: deque[Message | tuple[int, str]] = deque()
        self._lost: dict[int, str] = {}
        self._closed: set[int] = set()
        self._poll = select.poll() if neighbours is None else neighbours.poll
        self._bell, self._ringer = os.pipe()  # rung by threads when something has come from afar
        os.set_blocking(self._ringer, False)
        self._poll.register(self._bell, select.POLLIN)
        far = [peer for peer in self._peers if neighbours is None or peer not in neighbours]
        self._far = Sockets(far, group, self._put_from_afar, self._lose_from_afar)

    def send(self, dst: int, tag: int, version: int, data: Tensor) -> None:
        """Start a send; the payload is a value, so it needs no copy."""
        data = data.detach().cpu()
        if dst == self._rank:
            self._put(Message(dst, tag, version, data))
        elif self._near is not None and dst in self._near:
            self._send_near(dst, tag, version, data)
        else:
            self._far.send(dst, tag, version, data)

    def _send_near(self, dst: int, tag: int, version: int, data: Tensor) -> None:
        assert self._near is not None
        if dst in self.gone:
            return
        try:
            self._near.send(dst, tag, version, data, self.take_in)
        except WorldFailed:
            if dst not in self._mortal:
                raise

    def take(self, src: int, tag: int, wait: bool = True) -> Message | None:
        """The first message that has come and fits."""
        find = partial(self._find, src, tag)
        if not wait:
            self.take_in()
        return self._when_there(find, src, wait)

    def take_own(self, src: int, tag: int) -> Tensor:
        """The next value of a collective operation from this rank."""
        values = self._own[src, tag]
        value = self._when_there(lambda: values.popleft() if values else None, src)
        assert value is not None
        return value

    def take_own_unless_gone(self, src: int, tag: int) -> Tensor | None:
        """As `take_own`; None from a rank that is dead and has not said it any more."""
        values = self._own[src, tag]
        self.when_there(lambda: True if values or src in self.gone else None)
        return values.popleft() if values else None

    def when_there(self, find: Callable[[], T | None]) -> T:
        """What is found, when it is; fails if a rank is lost that all others need."""
        found = self._when_there(find, ANY)
        assert found is not None
        return found

    def begin_segment(self) -> None:
        """The dead say goodbye at the start of every role."""
        self.take_in()
        self._come = deque(message for message in self._come if message.tag != GONE)
        self._come.extend(map(goodbye_of, sorted(self.gone)))

    def halt_others(self, turn: int) -> None:
        for peer in self._peers:
            self.send(peer, _HALT, turn, EMPTY)

    def ask_for_halt(self) -> None:
        self.send(0, _HALT, SOMETIME, EMPTY)

    def close(self) -> None:
        """Leave in good order: say so, and hear every peer say so."""
        for peer in self._peers:
            self.send(peer, _CLOSE, 0, EMPTY)
        for peer in self._peers:
            self._when_there(partial(self._has_closed, peer), peer)
        self._far.close()

    def _has_closed(self, peer: int) -> bool | None:
        return peer in self._closed or peer in self.gone or None

    def _find(self, src: int, tag: int) -> Message | None:
        for number, message in enumerate(self._come):
            if src in (ANY, message.src) and tag in (ANY, message.tag):
                del self._come[number]
                return message
        return None

    def _when_there(self, find: Callable[[], T | None], src: int, wait: bool = True) -> T | None:
        while True:
            found = find()
            if found is not None:
                return found
            for peer, why in self._lost.items():
                if src in (ANY, peer):
                    raise WorldFailed(f"rank {peer} is gone: {why}")
            if not wait:
                return None
            self.take_in(patience=None)

    def take_in(self, patience: int | None = 0) -> None:
        """What has come: without patience at once, with None when something has."""
        for file, _ in self._poll.poll(patience):
            if file == self._bell:
                self._open_the_door()
                continue
            assert self._near is not None
            peer, messages = self._near.come(file)
            if messages is None and peer not in self._closed:
                self._lose(peer)
            for message in messages or ():
                self._put(message)

    def _lose(self, peer: int) -> None:
        """All that it has said has come by now."""
        if peer in self._mortal:
            assert self._near is not None
            self._near.forget(peer)
            self.gone.add(peer)
            self._come.append(goodbye_of(peer))
        else:
            self._lost[peer] = "it has closed its pipes"

    def _open_the_door(self) -> None:
        os.read(self._bell, 4096)
        while self._at_the_door:
            came = self._at_the_door.popleft()
            if isinstance(came, Message):
                self._put(came)
            else:
                self._lost[came[0]] = came[1]

    def _put(self, message: Message) -> None:
        tag = message.tag
        if tag == _HALT:
            self._on_halt(message.version)
        elif tag == _CLOSE:
            self._closed.add(message.src)
        elif tag <= FIRST_OWN_TAG:
            self._own[message.src, tag].append(message.data)
        else:
            self._come.append(message)

    # -- by the threads of far peers: they only leave it at the door ------------------------

    def _put_from_afar(self, message: Message) -> bool:
        self._at_the_door.append(message)
        self.ring()
        return message.tag != _CLOSE

    def _lose_from_afar(self, peer: int, why: str) -> None:
        self._at_the_door.append((peer, why))
        self.ring()

    def ring(self) -> None:
        """Whoever waits looks up."""
        with suppress(BlockingIOError):  # it has been rung often enough
            os.write(self._ringer, b"!")
