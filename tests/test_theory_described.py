"""Virtual time on unequal devices and links against theory, within 2 %."""

from __future__ import annotations

from dataclasses import replace
from statistics import NormalDist

import pytest
from describing import described
from helpers import timed

from regatta.cluster import Cluster
from regatta.comm import Phantom
from regatta.strategies.all_reduce import AllReduce
from regatta.strategies.parameter_server import ParameterServer
from regatta.worlds.virtual import VirtualWorld

WITHIN = {"rel": 0.02}
NBYTES = 48_000_000


def seconds_of(ranks: int, cluster: Cluster, play_rank) -> float:
    async def timed_rank(comm):
        await play_rank(comm)
        return comm.now()

    return max(VirtualWorld(ranks, cluster).run(timed_rank))


async def summed(comm):
    await comm.all_reduce(Phantom(NBYTES))


def by_message(order: list[int]):
    """The same sum, message by message round this ring."""

    async def play_rank(comm):
        place, size = order.index(comm.rank), len(order)
        for _ in range(2 * (size - 1)):
            await comm.send(order[(place + 1) % size], Phantom(NBYTES // size))
            await comm.recv(order[place - 1])

    return play_rank


SLOW_CARD = """
[device.any]
[link.fast]
bandwidth = 1.25e9
latency = 20e-6
[link.slow]
bandwidth = 0.25e9
latency = 60e-6
[[host]]
count = 7
devices = ["any"]
card = "fast"
[[host]]
name = "last"
devices = ["any"]
card = "slow"
"""


@pytest.mark.parametrize("sharing", ["turns", "fair"])
def test_a_ring_takes_as_long_as_its_slowest_hop(sharing):
    cluster = replace(described(SLOW_CARD), sharing=sharing)
    theory = 2 * 7 * (60e-6 + NBYTES / 8 / 0.25e9)
    assert seconds_of(8, cluster, summed) == pytest.approx(theory, **WITHIN)
    assert seconds_of(8, cluster, by_message([*range(8)])) == pytest.approx(theory, **WITHIN)
    # Without that host the others' cards set the pace.
    fast = 2 * 6 * (20e-6 + NBYTES / 7 / 1.25e9)
    assert seconds_of(7, cluster, summed) == pytest.approx(fast, **WITHIN)


SOCKETS = """
[device.any]
[link.bus]
bandwidth = 12e9
latency = 5e-6
[link.sockets]
bandwidth = 4e9
latency = 5e-6
[[host]]
devices = ["8 any"]
link = "bus"
groups = [{devices = [0, 2, 4, 6], link = "sockets"}, {devices = [1, 3, 5, 7], link = "sockets"}]
"""


def test_a_ring_in_a_host_crosses_its_sockets_once():
    cluster = described(SOCKETS)
    theory = 2 * 7 * (5e-6 + NBYTES / 8 / 4e9)
    assert seconds_of(8, cluster, summed) == pytest.approx(theory, **WITHIN)
    best = by_message([0, 2, 4, 6, 1, 3, 5, 7])
    assert seconds_of(8, cluster, best) == pytest.approx(theory, **WITHIN)
    # In the order of their numbers every hop crosses, and four share each way.
    poor = by_message([*range(8)])
    shared = 2 * 7 * (5e-6 + NBYTES / 8 / (4e9 / 4))
    fair = replace(cluster, sharing="fair")
    assert seconds_of(8, fair, poor) == pytest.approx(shared, **WITHIN)


RACKS = """
sharing = "fair"
[device.any]
merge_bandwidth = 1e18
[link.card]
bandwidth = 1.25e9
latency = 20e-6
[link.uplink]
bandwidth = 2.5e9
[switch.rack]
count = 2
link = "uplink"
[[host]]
count = 16
devices = ["any"]
card = "card"
switch = "rack"
[[host]]
name = "server"
card = "card"
"""


@pytest.mark.parametrize("senders", [1, 2, 4, 8])
def test_who_crosses_an_oversubscribed_switch_shares_its_uplink(senders):
    """Of 8 hosts on a switch: each at its card's speed, until the uplink is full."""

    async def across(comm):
        if comm.rank < senders:
            await comm.send(comm.rank + 8, Phantom(NBYTES))
        elif 8 <= comm.rank < 8 + senders:
            await comm.recv()

    theory = 20e-6 + NBYTES / min(1.25e9, 2.5e9 / senders)
    assert seconds_of(16, described(RACKS), across) == pytest.approx(theory, **WITHIN)


def test_what_the_uplink_does_not_let_through_others_may_use():
    """Max-min: eight cross at U/8 each; a ninth message below the switch has the rest of a card."""
    across, below = NBYTES, 6 * NBYTES

    async def play_rank(comm):
        if comm.rank < 8:
            await comm.send(comm.rank + 8, Phantom(across))
        if comm.rank == 0:
            await comm.send(1, Phantom(below))
        if comm.rank == 1 or comm.rank >= 8:
            await comm.recv()

    part = 2.5e9 / 8
    crossing = across / part
    left = below - crossing * (1.25e9 - part)  # that is still to go when the others are through
    theory = 20e-6 + crossing + left / 1.25e9
    assert left > 0
    assert seconds_of(16, described(RACKS), play_rank) == pytest.approx(theory, **WITHIN)


def test_a_ring_leaves_each_switch_once():
    theory = 2 * 15 * (20e-6 + NBYTES / 16 / 1.25e9)
    assert seconds_of(16, described(RACKS), summed) == pytest.approx(theory, **WITHIN)
    assert seconds_of(16, described(RACKS), by_message([*range(16)])) == pytest.approx(
        theory, **WITHIN
    )
    narrow = described(RACKS.replace("bandwidth = 2.5e9", "bandwidth = 0.5e9"))
    theory = 2 * 15 * (20e-6 + NBYTES / 16 / 0.5e9)
    assert seconds_of(16, narrow, summed) == pytest.approx(theory, **WITHIN)
    assert seconds_of(16, narrow, by_message([*range(16)])) == pytest.approx(theory, **WITHIN)


def test_a_server_behind_uplinks_is_limited_by_the_narrowest():
    """Synchronous pushes of 16 hosts behind two uplinks of 0.4 GB/s to a server with 1.25 GB/s."""
    cluster = described(
        RACKS.replace("bandwidth = 2.5e9", "bandwidth = 0.4e9")
        .replace("merge_bandwidth = 1e18", "sample_seconds = 0.0")
        .replace('sharing = "fair"', 'sharing = "fair"\nmerge_bandwidth = 1e18')
    )
    first, none = (
        max(rank.time for rank in timed(ParameterServer(mode="sync"), 16, n, cluster, NBYTES))
        for n in (1, 0)
    )
    theory = 2 * (20e-6 + 8 * NBYTES / 0.4e9)
    assert first - none == pytest.approx(theory, **WITHIN)


@pytest.mark.parametrize(("many", "few"), [(8, 8), (32, 4), (4, 32), (64, 64)])
def test_a_synchronous_step_takes_as_long_as_the_slowest_of_unequal_devices(many, few):
    """E[max] of both kinds: the integral of 1 - F1^n F2^m."""
    spread, fast, slow = 0.1, 1.0, 1.15
    cluster = described(
        f"""
        jitter = {spread}
        jitter_shape = "normal"
        latency = 0.0
        bandwidth = 1e15
        [device.fast]
        sample_seconds = {fast}
        merge_bandwidth = 1e18
        [device.slow]
        sample_seconds = {slow}
        merge_bandwidth = 1e18
        [[host]]
        name = "fast"
        count = {many}
        devices = ["fast"]
        [[host]]
        name = "slow"
        count = {few}
        devices = ["slow"]
        """
    )
    short, long = (
        max(rank.time for rank in timed(AllReduce(), many + few, turns, cluster))
        for turns in (20, 220)
    )
    chances = NormalDist(fast, spread * fast), NormalDist(slow, spread * slow)
    step, theory = 1e-3, 0.0
    for n in range(3000):
        at = (n + 0.5) * step
        theory += step * (1 - chances[0].cdf(at) ** many * chances[1].cdf(at) ** few)
    assert (long - short) / 200 == pytest.approx(theory, **WITHIN)
