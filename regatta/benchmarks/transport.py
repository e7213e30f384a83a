"""How vectors move between two ranks: sums against gloo's, requests against the gloo mailbox."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from statistics import median
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from regatta.aboard import prepare_rank
from regatta.benchmarks import Case, Result, abba
from regatta.comm import Comm
from regatta.worlds.launch import launch
from regatta.worlds.processes import ProcessComm, connect, run_blocking

_SUM_BYTES = 178_000_000
_SUM_BAR = 4.0
_REQUEST_BYTES = 4_000_000
_REQUEST_BAR = 3.0
_REQUESTS = 20  # a block
_SUMS = 1
_WARM_UP = 2  # blocks


def transport(pairs: int) -> Result:
    cases = [sums(pairs), requests(pairs), requests(pairs, copied=True)]
    return Result("transport", "two ranks / the same through gloo", cases)


def sums(pairs: int, nbytes: int = _SUM_BYTES) -> Case:
    """Of vectors that lie where training has them: ours in the arena, the peer's anywhere."""
    name = f"sum of {nbytes / 1e6:.0f} MB / dist.all_reduce"
    return _case(name, _SUM_BAR, launch(2, _sums, (nbytes, 2 * pairs)), _SUMS)


def requests(pairs: int, nbytes: int = _REQUEST_BYTES, copied: bool = False) -> Case:
    """A worker sends so much and waits; a server looks at it and replies as much.

    Vectors lie in the arena, as gradients and weights do, or are `copied` there every time.
    """
    how = ", copied in" if copied else ""
    name = f"requests of {nbytes / 1e6:.0f} MB{how} / transport=sockets"
    told = launch(2, _requests, (nbytes, 2 * pairs, copied))
    return _case(name, _REQUEST_BAR, told, _REQUESTS)


def _case(name: str, bar: float, told: list[dict[str, list[float]]], count: int) -> Case:
    """A block is over when the slower rank is done."""
    sides = {
        side: [max(block) for block in zip(*(each[side] for each in told), strict=True)]
        for side in "AB"
    }
    ours, peer = (f"{1000 * median(sides[side]) / count:,.2f} ms" for side in "AB")
    ratios = [b / a for a, b in zip(sides["A"], sides["B"], strict=True)]
    return Case(name, ratios, bar, ours, peer)


def _sums(
    rank: int, size: int, init_method: str, nbytes: int, pairs: int
) -> dict[str, list[float]]:
    prepare_rank(rank, size)
    connect(rank, size, init_method)
    comm = ProcessComm({})
    ours = comm.empty(nbytes // 4, torch.float32, torch.device("cpu")).zero_()
    peers = torch.zeros(nbytes // 4)

    async def sum_up() -> None:
        for _ in range(_SUMS):
            await comm.all_reduce(ours, into=ours)

    def gloo() -> None:
        for _ in range(_SUMS):
            dist.all_reduce(peers)

    seconds = _timed({"A": lambda: run_blocking(sum_up()), "B": gloo}, pairs)
    comm.close()
    dist.destroy_process_group()
    return seconds


def _requests(
    rank: int, size: int, init_method: str, nbytes: int, pairs: int, copied: bool
) -> dict[str, list[float]]:
    prepare_rank(rank, size)
    connect(rank, size, init_method)
    comms = {"A": ProcessComm({}), "B": ProcessComm({}, transport="sockets")}
    role = _ask if rank == 0 else _answer
    elsewhere = torch.ones(nbytes // 4)
    made = comms["A"].empty(nbytes // 4, torch.float32, torch.device("cpu")).fill_(1.0)

    def block(comm: Comm, vector: Tensor) -> None:
        run_blocking(role(comm, vector))

    ours = partial(block, comms["A"], elsewhere if copied else made)
    seconds = _timed({"A": ours, "B": partial(block, comms["B"], elsewhere)}, pairs)
    for comm in comms.values():
        comm.close()
    dist.destroy_process_group()
    return seconds


async def _ask(comm: Comm, vector: Tensor) -> None:
    for _ in range(_REQUESTS):
        await comm.send(1, vector)
        _look_at(await comm.recv(1))


async def _answer(comm: Comm, vector: Tensor) -> None:
    for _ in range(_REQUESTS):
        _look_at(await comm.recv(0))
        await comm.send(0, vector)


def _look_at(message: Any) -> None:
    assert message.data[-1] == 1, "a message came damaged"


def _timed(sides: dict[str, Callable[[], None]], pairs: int) -> dict[str, list[float]]:
    for _ in range(_WARM_UP):
        for work in sides.values():
            work()
    seconds: dict[str, list[float]] = {side: [] for side in sides}
    for side in abba(pairs):
        dist.barrier()
        began = time.perf_counter()
        sides[side]()
        seconds[side].append(time.perf_counter() - began)
    return seconds
