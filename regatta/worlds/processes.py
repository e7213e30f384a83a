"""Ranks as real processes on torch.distributed: gloo on CPU, NCCL for collectives on GPU.

Every operation blocks inside `__await__`, so a coroutine never suspends. What was started earlier
(an all-reduce, a send) goes on meanwhile in gloo's own threads.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Collection, Coroutine, Generator, Mapping, Sequence
from typing import Any, Generic, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

from regatta.choices import NOTHING, Chance, Live
from regatta.comm import (
    ANY,
    DATA,
    GONE,
    WORLD,
    Load,
    Loss,
    Message,
    Op,
    Seconds,
    Traffic,
    Vector,
)
from regatta.worlds.leaving import Halt
from regatta.worlds.mailbox import SOMETIME
from regatta.worlds.memory import give_back_freed_memory
from regatta.worlds.neighbours import host_numbers
from regatta.worlds.rendezvous import join
from regatta.worlds.roll_call import Line
from regatta.worlds.shared_sum import SharedSum
from regatta.worlds.started import INTERFACE, NCCL_INTERFACE
from regatta.worlds.survivors_sum import SurvivorsSum
from regatta.worlds.wires import AUTO, Wires

T = TypeVar("T")


class _Blocking(Generic[T]):
    """An operation under way whose end is waited for without suspending."""

    __slots__ = ("_finish", "_traffic")

    def __init__(self, finish: Callable[[], T], traffic: Traffic) -> None:
        self._finish = finish
        self._traffic = traffic

    def __await__(self) -> Generator[Any, Any, T]:
        began = time.perf_counter()
        try:
            return self._finish()
        finally:
            self._traffic.waited(began, time.perf_counter())
        yield


class _Done(Generic[T]):
    __slots__ = ("_value",)

    def __init__(self, value: T) -> None:
        self._value = value

    def __await__(self) -> Generator[Any, Any, T]:
        return self._value
        yield


def run_blocking(coroutine: Coroutine[Any, Any, T]) -> T:
    try:
        coroutine.send(None)
    except StopIteration as stop:
        return stop.value  # type: ignore[no-any-return]
    raise RuntimeError("a strategy may only await operations of its Comm")


class ProcessComm:
    """This process as one rank of a world that `connect` has joined."""

    reduces_in_place = True
    sends_unwritten = False

    def __init__(
        self,
        groups: Mapping[str, Sequence[int]],
        chance: Chance | None = None,
        device: str = "cpu",
        transport: str = AUTO,
        hosts: Sequence[int] | None = None,
        line: Line | None = None,
        mortal: Collection[int] = (),
    ) -> None:
        """With a `line` to the launcher the others go on when one of the `mortal` dies."""
        self.rank = dist.get_rank()
        self.size = dist.get_world_size()
        self.traffic = Traffic()
        self.chance: Chance = chance or Live()
        self._device = device
        self.asked_to_leave = False
        self._halt = Halt()
        self.groups = {WORLD: tuple(range(self.size))} | {k: tuple(v) for k, v in groups.items()}
        wires = Wires(
            hosts or host_numbers(), device, transport, self.traffic, self._be_halted,
            line, mortal, self.chance.bury,
        )  # fmt: skip
        self.survives = wires.survives
        self._arena = wires.arena
        self._mailbox = wires.mailbox
        everybody = wires.join_all()
        self._collectives = {
            name: everybody if name == WORLD else wires.join(ranks)
            for name, ranks in self.groups.items()
        }
        self._survivors = everybody if isinstance(everybody, SurvivorsSum) else None
        self.losses: Sequence[Loss] = ()
        if line is not None:
            self.losses, line.ring = line.losses, self._mailbox.ring
        self._messages_before = 0  # the present segment
        self._began = time.perf_counter()

    def start_clock(self) -> None:
        """Everybody is ready: from here on it counts."""
        give_back_freed_memory()
        dist.barrier()
        self._began = time.perf_counter()

    @property
    def present(self) -> Sequence[int]:
        return self.groups[WORLD] if self._survivors is None else self._survivors.present

    def begin_segment(self, segment: int) -> None:
        self.chance.begin(segment)
        self._messages_before = self.traffic.messages
        if self._survivors is not None:
            self._survivors.begin_segment()
            self._mailbox.begin_segment()

    def now(self) -> Seconds:
        return time.perf_counter() - self._began

    def send(self, dst: int, data: Vector, tag: int = DATA, version: int = 0) -> Op[None]:
        self._count(data)
        began = time.perf_counter()
        self._mailbox.send(dst, tag, version, data)
        self.traffic.sent(began, time.perf_counter())
        return _Done(None)

    def recv(self, src: int = ANY, tag: int = ANY) -> Op[Message]:
        return _Blocking(lambda: self._receive(src, tag), self.traffic)

    def poll(self, src: int = ANY, tag: int = ANY) -> Op[Message | None]:
        message = self._mailbox.take(src, tag, wait=False)
        self.chance.note("poll", NOTHING if message is None else message.outcome)
        return _Done(None if message is None else self._placed(message))

    def all_reduce(
        self, data: Vector, group: str = WORLD, into: Vector | None = None, written: bool = True
    ) -> Op[Vector]:
        self._count(data)
        ranks = self._collectives[group]
        if written or not isinstance(ranks, SharedSum):
            return _Blocking(ranks.sum(data, into), self.traffic)
        return _Blocking(ranks.show(data), self.traffic)

    def broadcast(self, data: Vector, root: int, group: str = WORLD) -> Op[Vector]:
        self._count(data)
        return _Blocking(self._collectives[group].broadcast(data, root), self.traffic)

    def owe(self, stepped: int) -> None:
        """Done is done: the clock has seen it."""

    def empty(self, numel: int, dtype: torch.dtype, device: torch.device) -> Tensor:
        if self._arena is None or device.type != "cpu":
            return torch.empty(numel, dtype=dtype, device=device)
        return self._arena.empty(numel, dtype)

    def compute(
        self, work: Callable[[], T], load: Load, overlap: bool = False, at_once: bool = False
    ) -> Op[T]:
        began = time.perf_counter()
        value = work()
        self.traffic.computed(began, time.perf_counter())
        return _Done(value)

    def progress(self, fraction: float) -> None: ...

    def halt(self, turn: int = 0) -> None:
        if self._halt.before(turn):
            self._mailbox.halt_others(turn)

    def halted(self, turn: int | None = None) -> bool:
        self._mailbox.take_in()
        return self._halt.is_due(turn)

    def ask_to_leave(self) -> None:
        if not self.asked_to_leave:
            self.asked_to_leave = True
            self._mailbox.ask_for_halt()

    def close(self) -> None:
        """Leave together with all other ranks."""
        self._mailbox.close()
        if self._survivors is None:  # a barrier would wait for the dead
            dist.barrier()

    def _be_halted(self, turn: int) -> None:
        if turn == SOMETIME:
            self.asked_to_leave = True
        else:
            self._halt.before(turn)

    def _count(self, data: Vector) -> None:
        self.traffic.messages += 1
        self.traffic.nbytes += data.nbytes

    def _receive(self, src: int, tag: int) -> Message:
        message = self._mailbox.take(src, tag)
        assert message is not None
        if src == ANY:
            self.chance.note("recv", message.outcome)
        elif message.tag == GONE:
            self.chance.note("mute", self.traffic.messages - self._messages_before)
        return self._placed(message)

    def _placed(self, message: Message) -> Message:
        if self._device != "cpu":
            message.data = message.data.to(self._device)
        return message


def connect(rank: int, size: int, init_method: str, device: str = "cpu") -> None:
    """Join a world of this machine; its sockets stay on loopback."""
    for interface in (INTERFACE, NCCL_INTERFACE):
        os.environ.setdefault(interface, "lo")
    join(rank, size, device, init_method=init_method)
