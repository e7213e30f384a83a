"""Links that are shared evenly."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from regatta.cluster import Cluster
from regatta.comm import Load, Phantom
from regatta.worlds.sharing import fair_shares
from regatta.worlds.virtual import VirtualWorld

ways = st.sampled_from("abcd")
messages = st.lists(st.sets(ways, min_size=1, max_size=3).map(tuple), min_size=1, max_size=8)
bandwidths = st.fixed_dictionaries({way: st.floats(0.1, 100) for way in "abcd"})


@given(messages, bandwidths)
def test_shares_are_max_min_fair(messages, bandwidths):
    shares = fair_shares(messages, bandwidths)
    used = {
        way: sum(share for ways, share in zip(messages, shares, strict=True) if way in ways)
        for way in bandwidths
    }
    for way, bandwidth in bandwidths.items():
        assert used[way] <= bandwidth * (1 + 1e-9)
    # Every message takes a full way on which nobody has more.
    for own, share in zip(messages, shares, strict=True):
        assert any(
            used[way] >= bandwidths[way] * (1 - 1e-9)
            and all(
                other <= share * (1 + 1e-9)
                for ways, other in zip(messages, shares, strict=True)
                if way in ways
            )
            for way in own
        )


def test_what_one_cannot_use_others_may():
    assert fair_shares([("a", "b"), ("a",)], {"a": 10.0, "b": 2.0}) == [2.0, 8.0]


FAIR = Cluster(sharing="fair", bandwidth=10.0, latency=1.0)


def arrivals(cluster: Cluster, sent: dict[int, list[tuple[int, int]]], size: int) -> list[list]:
    """(time, source) of what every rank gets; `sent`: (destination, bytes) by source."""

    async def play(comm):
        for dst, nbytes in sent.get(comm.rank, []):
            await comm.send(dst, Phantom(nbytes))
        expected = sum(dst == comm.rank for each in sent.values() for dst, _ in each)
        got = []
        for _ in range(expected):
            message = await comm.recv()
            got.append((comm.now(), message.src))
        return got

    return VirtualWorld(size, cluster).run(play)


def test_two_messages_to_one_rank_come_at_half_speed():
    got = arrivals(FAIR, {0: [(2, 20)], 1: [(2, 20)]}, 3)[2]
    assert [time for time, _ in got] == [5.0, 5.0]  # 20 bytes at 5 a second, and the latency
    turns = arrivals(Cluster(bandwidth=10.0, latency=1.0), {0: [(2, 20)], 1: [(2, 20)]}, 3)[2]
    assert [time for time, _ in turns] == [3.0, 5.0]


def test_who_is_left_goes_faster():
    got = arrivals(FAIR, {0: [(2, 10)], 1: [(2, 30)]}, 3)[2]
    assert got == [(3.0, 0), (5.0, 1)]  # 10 at half speed, then 20 alone


def test_both_ways_at_once_unless_there_is_one_way():
    both = {0: [(1, 20)], 1: [(0, 20)]}
    assert [got[0][0] for got in arrivals(FAIR, both, 2)] == [3.0, 3.0]
    half = Cluster(sharing="fair", duplex=False, bandwidth=10.0, latency=1.0)
    assert [got[0][0] for got in arrivals(half, both, 2)] == [5.0, 5.0]


def test_workers_of_a_host_share_its_card():
    cluster = Cluster(sharing="fair", bandwidth=10.0, latency=1.0, per_host=2)
    got = arrivals(cluster, {0: [(2, 20)], 1: [(3, 20)]}, 4)
    assert (got[2][0][0], got[3][0][0]) == (5.0, 5.0)


def test_nothing_takes_a_latency():
    assert arrivals(FAIR, {0: [(1, 0)]}, 2)[1] == [(1.0, 0)]


def test_none_overtakes_another_of_its_own_sender():
    """As through a socket; what goes elsewhere has its share meanwhile."""
    got = arrivals(FAIR, {0: [(1, 40), (1, 0), (2, 10)]}, 3)
    assert got == [[], [(6.0, 0), (6.0, 0)], [(3.0, 0)]]


def test_data_come_whole():
    async def play(comm):
        if comm.rank == 0:
            await comm.send(1, torch.arange(5.0))
            return None
        return (await comm.recv()).data.tolist()

    assert VirtualWorld(2, FAIR).run(play)[1] == [0, 1, 2, 3, 4]


def test_other_ways_are_refused():
    with pytest.raises(ValueError, match="turns or fair"):
        Cluster(sharing="unfair")


def test_a_clock_that_is_late_still_ends_what_is_fast():
    """So little time is left of a fast message that a late clock does not move by it."""
    fast = Cluster(sharing="fair", bandwidth=20.0, local_bandwidth=12e9, latency=1e-3, per_host=2)

    async def play(comm):
        await comm.compute(lambda: None, Load(samples=323_001))
        for number in range(40):
            for dst in range(comm.size):
                if dst != comm.rank:
                    await comm.send(dst, Phantom(3 + number % 7))
        for _ in range(40 * (comm.size - 1)):
            await comm.recv()

    VirtualWorld(4, fast).run(play)
