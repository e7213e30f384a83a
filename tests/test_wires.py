"""Messages and sums between real processes, through memory and over sockets."""

import os
import time

import numpy as np
import pytest
import torch
import torch.distributed as dist

from regatta.comm import ANY
from regatta.worlds.launch import launch
from regatta.worlds.neighbours import SMALL_BYTES, host_numbers
from regatta.worlds.processes import ProcessComm, connect, run_blocking

pytestmark = pytest.mark.real
SIZES = (1, 10, SMALL_BYTES // 4, SMALL_BYTES // 4 + 1, 100_003)


def play(ranks, act, transport="auto", hosts=None, groups=None):
    """What `act(comm)` returns on every rank; `hosts` names where each pretends to be."""
    return launch(ranks, _body, (act, transport, hosts, groups or {}))


def _body(rank, size, init_method, act, transport, hosts, groups):
    if hosts is not None:
        os.environ["REGATTA_HOST"] = str(hosts[rank])
    torch.set_num_threads(1)
    connect(rank, size, init_method)
    comm = ProcessComm(groups, transport=transport)
    try:
        result = run_blocking(act(comm))
        comm.close()
        dist.destroy_process_group()
        return result
    finally:
        os.environ.pop("REGATTA_HOST", None)


def vector(rank, numel, turn=0):
    return torch.randn(numel, generator=torch.Generator().manual_seed(100 * turn + rank))


# -- sums ------------------------------------------------------------------------------------


async def _sums(comm):
    return [(await comm.all_reduce(vector(comm.rank, numel))).numpy() for numel in SIZES]


@pytest.mark.parametrize("transport", ["auto", "sockets"])
@pytest.mark.parametrize("ranks", [2, 3, 5])
def test_sums_are_added_in_rank_order_on_every_way(ranks, transport):
    expected = []
    for numel in SIZES:
        total = vector(0, numel)
        for rank in range(1, ranks):
            total = total + vector(rank, numel)
        expected.append(total)
    for sums in play(ranks, _sums, transport):
        assert all(np.array_equal(mine, right) for mine, right in zip(sums, expected, strict=True))


HOSTS = {"2+2": [0, 0, 1, 1], "2+1": [0, 0, 1], "mixed up": [0, 1, 0, 1, 0], "1+1": [0, 1]}


@pytest.mark.parametrize("transport", ["auto", "sockets"])
@pytest.mark.parametrize("hosts", HOSTS.values(), ids=HOSTS)
def test_sums_over_hosts_are_added_host_by_host(hosts, transport):
    ranks = len(hosts)
    for sums in play(ranks, _sums, transport, hosts):
        for numel, total in zip(SIZES, sums, strict=True):
            expected = None
            for host in sorted(set(hosts)):
                inside = None
                for rank in [r for r in range(ranks) if hosts[r] == host]:
                    mine = vector(rank, numel)
                    inside = mine if inside is None else inside + mine
                expected = inside if expected is None else expected + inside
            assert np.array_equal(total, expected)


async def _several_open(comm):
    started = [comm.all_reduce(vector(comm.rank, 30_000, turn)) for turn in range(5)]
    return [(await operation).numpy() for operation in started]


def test_several_sums_may_be_open_at_once():
    for sums in play(3, _several_open):
        for turn, total in enumerate(sums):
            summands = [vector(rank, 30_000, turn) for rank in range(3)]
            assert np.array_equal(total, (summands[0] + summands[1]) + summands[2])


async def _reuse(comm):
    """The same memory every turn, and a slow rank: nobody may read the next turn's numbers."""
    mine = comm.empty(50_000, torch.float32, torch.device("cpu"))
    wrong = 0
    for turn in range(200):
        mine.fill_(turn)
        if comm.rank == turn % comm.size:
            time.sleep(0.002)
        total = await comm.all_reduce(mine, into=mine)
        wrong += int((total != turn * comm.size).sum())
    return wrong


@pytest.mark.parametrize("ranks", [2, 3])
def test_memory_may_be_used_again_as_soon_as_the_sum_is_there(ranks):
    assert play(ranks, _reuse) == [0] * ranks


async def _broadcasts(comm):
    small, large = comm.rank * torch.ones(10), comm.rank * torch.ones(10_000)
    return [
        float((await comm.broadcast(data, root)).mean())
        for root in range(comm.size)
        for data in (small, large)
    ]


@pytest.mark.parametrize("hosts", [[0, 0, 0], *HOSTS.values()], ids=["3", *HOSTS])
def test_a_broadcast_brings_the_roots_value_to_all(hosts):
    expected = [float(root) for root in range(len(hosts)) for _ in range(2)]
    assert play(len(hosts), _broadcasts, hosts=hosts) == [expected] * len(hosts)


async def _in_teams(comm):
    team = "low" if comm.rank < 2 else "high"
    mine = torch.full((5000,), float(comm.rank))
    inside = await comm.all_reduce(mine, group=team)
    whole = await comm.all_reduce(mine)
    return float(inside[0]), float(whole[0])


def test_groups_do_not_hear_each_other():
    groups = {"low": (0, 1), "high": (2, 3, 4)}
    sums = play(5, _in_teams, groups=groups)
    assert sums == [(1.0, 10.0)] * 2 + [(9.0, 10.0)] * 3


# -- messages --------------------------------------------------------------------------------


async def _everybody_to_everybody(comm):
    for peer in range(comm.size):
        for numel in SIZES:
            await comm.send(peer, vector(comm.rank, numel), tag=numel, version=comm.rank)
    come = {}
    for _ in range(comm.size * len(SIZES)):
        message = await comm.recv(ANY)
        assert message.src == message.version
        come[message.src, message.tag] = message.data
    return all(
        torch.equal(come[src, numel], vector(src, numel))
        for src in range(comm.size)
        for numel in SIZES
    )


@pytest.mark.parametrize("hosts", [[0, 0, 0], *HOSTS.values()], ids=["3", *HOSTS])
@pytest.mark.parametrize("transport", ["auto", "sockets"])
def test_messages_come_whole_from_near_and_far(hosts, transport):
    assert all(play(len(hosts), _everybody_to_everybody, transport, hosts))


async def _flood(comm):
    """More than any pipe holds, both ways, before anybody receives."""
    other = 1 - comm.rank
    for number in range(5000):
        await comm.send(other, torch.full((100,), float(number)), version=number)
    return [int((await comm.recv(other)).data[0]) for _ in range(5000)]


def test_full_pipes_are_no_deadlock_and_keep_the_order():
    assert play(2, _flood) == [list(range(5000))] * 2


async def _keep_old_values(comm):
    """Values that a receiver keeps stay as they were sent, however much is sent after them."""
    if comm.rank == 0:
        for number in range(100):
            value = comm.empty(20_000, torch.float32, torch.device("cpu")).fill_(number)
            await comm.send(1, value)
            del value
        return True
    kept = [(await comm.recv(0)).data for _ in range(100)]
    return all(bool((value == number).all()) for number, value in enumerate(kept))


def test_a_kept_value_is_never_overwritten():
    assert all(play(2, _keep_old_values))


async def _handles(comm):
    """Who sends again and again what lies in its arena, needs no more room for it."""
    if comm.rank == 0:
        value = comm.empty(100_000, torch.float32, torch.device("cpu")).fill_(1.0)
        blocks = comm._arena.blocks_in_use()
        for _ in range(50):
            await comm.send(1, value)
        await comm.recv(1)
        return comm._arena.blocks_in_use() - blocks
    kept = [(await comm.recv(0)).data for _ in range(50)]
    await comm.send(0, torch.ones(1))
    return len({value.data_ptr() for value in kept}) - 1


def test_what_lies_in_the_arena_is_handed_over_by_its_place():
    assert play(2, _handles) == [0, 0]


# -- waiting ---------------------------------------------------------------------------------


async def _wait_for_a_sleeper(comm):
    began = time.process_time()
    if comm.rank == 0:
        time.sleep(1.0)
        await comm.send(1, torch.ones(1))
    else:
        await comm.recv(0)
    if comm.rank == 0:
        time.sleep(1.0)
    await comm.all_reduce(torch.ones(100_000))
    return time.process_time() - began


def test_waiting_takes_no_core_from_others():
    assert max(play(2, _wait_for_a_sleeper)) < 0.2


async def _halt(comm):
    if comm.rank == 0:
        comm.halt()
    began = time.monotonic()
    while not comm.halted():
        assert time.monotonic() - began < 10
    return True


@pytest.mark.parametrize("hosts", [[0, 0], [0, 1]], ids=["near", "far"])
def test_a_halt_is_heard(hosts):
    assert all(play(2, _halt, hosts=hosts))


async def _hosts(comm):
    return host_numbers()


def test_hosts_are_numbered_by_their_first_rank():
    assert play(3, _hosts) == [[0, 0, 0]] * 3
    assert play(3, _hosts, hosts=[7, 3, 7]) == [[0, 1, 0]] * 3
