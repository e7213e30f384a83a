"""Ranks as real processes on torch.distributed: gloo on CPU, NCCL for collectives on GPU.

Every operation blocks inside `__await__`, so a coroutine never suspends. What was started earlier
(an all-reduce, a send) goes on meanwhile in gloo's own threads.
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable, Coroutine, Generator, Mapping, Sequence
from typing import Any, Generic, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor
from torch._C._distributed_c10d import TCPStore

from regatta.choices import NOTHING, Chance, Live
from regatta.comm import ANY, DATA, WORLD, Load, Message, Op, Seconds, Traffic, Vector, WorldFailed
from regatta.worlds.memory import give_back_freed_memory
from regatta.worlds.neighbours import host_numbers
from regatta.worlds.shared_sum import SharedSum
from regatta.worlds.wires import AUTO, PATIENCE, Wires

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
    ) -> None:
        self.rank = dist.get_rank()
        self.size = dist.get_world_size()
        self.traffic = Traffic()
        self.chance: Chance = chance or Live()
        self._device = device
        self._halted = False
        self.groups = {WORLD: tuple(range(self.size))} | {k: tuple(v) for k, v in groups.items()}
        wires = Wires(hosts or host_numbers(), device, transport, self.traffic, self._be_halted)
        self._arena = wires.arena
        self._mailbox = wires.mailbox
        self._collectives = {name: wires.join(ranks) for name, ranks in self.groups.items()}
        self._began = time.perf_counter()

    def start_clock(self) -> None:
        """Everybody is ready: from here on it counts."""
        give_back_freed_memory()
        dist.barrier()
        self._began = time.perf_counter()

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
        self.chance.note("poll", NOTHING if message is None else message.src)
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

    def halt(self) -> None:
        if not self._halted:
            self._halted = True
            self._mailbox.halt_others()

    def halted(self) -> bool:
        self._mailbox.take_in()
        return self._halted

    def close(self) -> None:
        """Leave together with all other ranks."""
        self._mailbox.close()
        dist.barrier()

    def _be_halted(self) -> None:
        self._halted = True

    def _count(self, data: Vector) -> None:
        self.traffic.messages += 1
        self.traffic.nbytes += data.nbytes

    def _receive(self, src: int, tag: int) -> Message:
        message = self._mailbox.take(src, tag)
        assert message is not None
        if src == ANY:
            self.chance.note("recv", message.src)
        return self._placed(message)

    def _placed(self, message: Message) -> Message:
        if self._device != "cpu":
            message.data = message.data.to(self._device)
        return message


def connect(rank: int, size: int, init_method: str, device: str = "cpu") -> None:
    """Join a world; its sockets stay on loopback unless GLOO_SOCKET_IFNAME says otherwise."""
    address = os.environ.get("MASTER_ADDR", "")
    is_here = init_method.startswith("file:") or _is_loopback(address)
    if is_here:
        for name in ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME"):
            os.environ.setdefault(name, "lo")
    backend = "cpu:gloo,cuda:nccl" if device == "cuda" else "gloo"
    try:
        store = _store_on_loopback(rank, size) if is_here and init_method == "env://" else None
        dist.init_process_group(
            backend, init_method=init_method if store is None else None, store=store,
            rank=rank, world_size=size, timeout=PATIENCE,
        )  # fmt: skip
    except (RuntimeError, ValueError, OSError) as error:
        if "EADDRINUSE" in str(error) or "in use" in str(error):
            where = f"{address}:{os.environ.get('MASTER_PORT')}"
            raise WorldFailed(
                f"{where} is in use by another program: choose another MASTER_PORT "
                "(torchrun: --master-port)"
            ) from None
        raise


def _store_on_loopback(rank: int, size: int) -> TCPStore | None:
    """Where ranks meet. Left to itself, PyTorch would listen on every interface of the host."""
    if os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True":  # torchrun has made one
        return None
    host, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    listener = None
    if rank == 0:
        family = socket.AF_INET6 if host == "::1" else socket.AF_INET
        listener = socket.create_server((host, port), family=family).detach()
    return TCPStore(host, port, size, is_master=rank == 0, master_listen_fd=listener)


def _is_loopback(host: str) -> bool:
    return host in ("localhost", "::1") or host.startswith("127.")


def environment_rank() -> tuple[int, int] | None:
    """Rank and size if torchrun (or anything that speaks its variables) started this process."""
    try:
        return int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    except (KeyError, ValueError):
        return None
