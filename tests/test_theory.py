"""Virtual time against theory: what the books say a collective, a server or a barrier costs.

Wherever the clock charges a formula as a whole (all-reduce), the same algorithm is also played out
message by message over sends and receives, so that the formula is not compared with itself.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from statistics import NormalDist, fmean, pstdev

import pytest
from helpers import timed

from regatta.cluster import Cluster
from regatta.comm import Load, Phantom
from regatta.strategies import Strategy
from regatta.strategies.all_reduce import AllReduce
from regatta.strategies.averaging import Averaging
from regatta.strategies.parameter_server import ParameterServer
from regatta.strategies.ring import Ring
from regatta.worlds.virtual import VirtualWorld

NBYTES = 48_000_000
WIRES = Cluster(latency=50e-6, bandwidth=1.25e9, local_latency=5e-6, local_bandwidth=12e9)
WITHIN = {"rel": 0.02}


def seconds_of(ranks, play_rank, cluster=WIRES):
    """When the last of so many ranks has ended."""

    async def timed(comm):
        await play_rank(comm)
        return comm.now()

    world = VirtualWorld(ranks, cluster)
    return max(world.run(timed))


# -- collectives, message by message ---------------------------------------------------------


async def ring_all_reduce(comm, members, nbytes):
    """Reduce-scatter, then all-gather: every rank passes a part of the vector to the next."""
    place = members.index(comm.rank)
    following, previous = members[(place + 1) % len(members)], members[place - 1]
    for _ in range(2 * (len(members) - 1)):
        await comm.send(following, Phantom(nbytes // len(members)))
        await comm.recv(previous)


async def ring_half(comm, members, nbytes):
    """Either half of it."""
    place = members.index(comm.rank)
    following, previous = members[(place + 1) % len(members)], members[place - 1]
    for _ in range(len(members) - 1):
        await comm.send(following, Phantom(nbytes // len(members)))
        await comm.recv(previous)


@pytest.mark.parametrize("ranks", [2, 3, 8, 16, 64])
def test_a_ring_all_reduce_takes_what_its_messages_take(ranks):
    members = list(range(ranks))
    by_message = seconds_of(ranks, lambda comm: ring_all_reduce(comm, members, NBYTES))
    theory = 2 * (ranks - 1) * 50e-6 + 2 * (ranks - 1) / ranks * NBYTES / 1.25e9
    assert by_message == pytest.approx(theory, **WITHIN)
    assert seconds_of(ranks, lambda comm: comm_all_reduce(comm)) == pytest.approx(theory, **WITHIN)


async def comm_all_reduce(comm):
    await comm.all_reduce(Phantom(NBYTES))


@pytest.mark.parametrize(("hosts", "per_host"), [(2, 2), (4, 4), (8, 4), (3, 8), (1, 8)])
def test_a_hierarchical_all_reduce_takes_what_its_messages_take(hosts, per_host):
    """Reduce-scatter in a host, all-reduce of every stripe between hosts, all-gather in a host."""
    ranks = hosts * per_host
    cluster = Cluster(**{**vars(WIRES), "per_host": per_host})

    async def by_message(comm):
        host, place = divmod(comm.rank, per_host)
        inside = [host * per_host + n for n in range(per_host)]
        across = [n * per_host + place for n in range(hosts)]
        await ring_half(comm, inside, NBYTES)
        if hosts > 1:
            await ring_all_reduce(comm, across, NBYTES // per_host)
        await ring_half(comm, inside, NBYTES)

    # A host has one card, which its stripes share: M bytes of it, not M / g.
    theory = (
        2 * (per_host - 1) * 5e-6
        + 2 * (per_host - 1) / per_host * NBYTES / 12e9
        + 2 * (hosts - 1) * 50e-6
        + 2 * (hosts - 1) / hosts * NBYTES / 1.25e9
    )
    assert seconds_of(ranks, comm_all_reduce, cluster) == pytest.approx(theory, **WITHIN)
    assert seconds_of(ranks, by_message, cluster) == pytest.approx(theory, **WITHIN)


async def spread_by_tree(comm, members, nbytes):
    """A binomial tree: in every round whoever has the vector sends it to one who has not."""
    place, reach = members.index(comm.rank), 1
    while reach < len(members):
        if place < reach and place + reach < len(members):
            await comm.send(members[place + reach], Phantom(nbytes))
        elif reach <= place < 2 * reach:
            await comm.recv(members[place - reach])
        reach *= 2


@pytest.mark.parametrize(("hosts", "per_host"), [(2, 1), (3, 1), (16, 1), (1, 8), (4, 4), (5, 3)])
def test_a_broadcast_takes_what_the_messages_of_a_tree_take(hosts, per_host):
    """Between the first ranks of the hosts, then inside each."""
    ranks = hosts * per_host
    cluster = Cluster(**{**vars(WIRES), "per_host": per_host})

    async def by_message(comm):
        host, place = divmod(comm.rank, per_host)
        if place == 0:
            await spread_by_tree(comm, [n * per_host for n in range(hosts)], NBYTES)
        await spread_by_tree(comm, [host * per_host + n for n in range(per_host)], NBYTES)

    async def as_a_whole(comm):
        await comm.broadcast(Phantom(NBYTES), root=0)

    between = math.ceil(math.log2(hosts)) * (50e-6 + NBYTES / 1.25e9)
    theory = between + math.ceil(math.log2(per_host)) * (5e-6 + NBYTES / 12e9)
    assert seconds_of(ranks, as_a_whole, cluster) == pytest.approx(theory, **WITHIN)
    assert seconds_of(ranks, by_message, cluster) == pytest.approx(theory, **WITHIN)


@pytest.mark.parametrize(("hosts", "per_host"), [(1, 2), (1, 8), (4, 8)])
def test_sums_through_memory_take_a_meeting_and_the_bytes(hosts, per_host):
    """What leaves a host goes round the ring of hosts as before."""
    cluster = Cluster(
        **{**vars(WIRES), "per_host": per_host, "sum_latency": 2e-3, "sum_bandwidth": 6e9}
    )
    between = 2 * (hosts - 1) * (50e-6 + NBYTES / hosts / 1.25e9)
    theory = between + 2e-3 + NBYTES / 6e9
    assert seconds_of(hosts * per_host, comm_all_reduce, cluster) == pytest.approx(theory, **WITHIN)
    # A step of theirs is one gradient, one sum and nothing else.
    turn = a_turn(AllReduce(), hosts * per_host, cluster)
    assert turn == pytest.approx(cluster.sample_seconds + theory, **WITHIN)


# -- contention ------------------------------------------------------------------------------


def arrivals(cluster, sizes, pairs):
    """When messages of these sizes, all sent at once, have come; by (source, destination)."""
    ranks = 1 + max(map(max, pairs))

    async def play(comm):
        for (source, dst), nbytes in zip(pairs, sizes, strict=True):
            if source == comm.rank:
                await comm.send(dst, Phantom(nbytes))
        times = []
        for _ in [dst for _, dst in pairs if dst == comm.rank]:
            source = (await comm.recv()).src
            times.append(((source, comm.rank), comm.now()))
        return times

    by_rank = VirtualWorld(ranks, cluster).run(play)
    return dict(arrived for times in by_rank for arrived in times)


def card(sharing: str, **more) -> Cluster:
    return Cluster(latency=50e-6, bandwidth=1.25e9, sharing=sharing, **more)


@pytest.mark.parametrize("senders", [2, 5, 16])
def test_many_to_one_by_turns_and_by_even_shares(senders):
    """The last comes when all bytes have passed; evenly shared, everybody comes so late."""
    pairs = [(n, senders) for n in range(senders)]
    turns = sorted(arrivals(card("turns"), [NBYTES] * senders, pairs).values())
    even = sorted(arrivals(card("fair"), [NBYTES] * senders, pairs).values())
    alone = NBYTES / 1.25e9
    assert turns == pytest.approx([50e-6 + n * alone for n in range(1, senders + 1)], **WITHIN)
    assert even == pytest.approx([50e-6 + senders * alone] * senders, **WITHIN)


def test_shorter_messages_leave_their_share_to_longer_ones():
    """Of n messages the k-th shortest has ended when sum(shorter) + (n - k + 1) its own passed."""
    sizes = [NBYTES, 3 * NBYTES, 4 * NBYTES, 9 * NBYTES]
    pairs = [(n, 4) for n in range(4)]
    found = arrivals(card("fair"), sizes, pairs)
    for k, size in enumerate(sizes):
        theory = 50e-6 + (sum(sizes[:k]) + (len(sizes) - k) * size) / 1.25e9
        assert found[k, 4] == pytest.approx(theory, **WITHIN)


@pytest.mark.parametrize("per_host", [2, 4, 8])
@pytest.mark.parametrize("sharing", ["turns", "fair"])
def test_ranks_of_a_host_get_out_by_one_card(per_host, sharing):
    cluster = card(sharing, per_host=per_host)
    pairs = [(n, per_host + n) for n in range(per_host)]
    last = max(arrivals(cluster, [NBYTES] * per_host, pairs).values())
    assert last == pytest.approx(50e-6 + per_host * NBYTES / 1.25e9, **WITHIN)


@pytest.mark.parametrize(("duplex", "times"), [(True, 1), (False, 2)])
def test_a_card_of_one_way_at_a_time_takes_twice_as_long(duplex, times):
    both = arrivals(card("fair", duplex=duplex), [NBYTES] * 2, [(0, 1), (1, 0)])
    assert list(both.values()) == pytest.approx([50e-6 + times * NBYTES / 1.25e9] * 2, **WITHIN)


@pytest.mark.parametrize("load", [0.3, 0.6])
@pytest.mark.parametrize("sharing", ["turns", "fair"])
def test_messages_at_random_wait_as_queueing_theory_says(load, sharing):
    """Equal messages, exponential gaps: M/D/1 by turns, and an M/D/1 that shares evenly.

    They go to many hosts by one card: those of one pair keep their order and share nothing.
    """
    receivers, each, draws = 20, 1_500, random.Random(3)
    cluster = Cluster(sample_seconds=1.0, latency=0.0, bandwidth=1.0, sharing=sharing)
    sent: list[float] = []
    stayed: list[float] = []

    async def play(comm):
        if comm.rank:
            for _ in range(each):
                message = await comm.recv(0)
                stayed.append(comm.now() - sent[message.version])
            return
        for number in range(each * receivers):
            await comm.compute(lambda: None, Load(samples=draws.expovariate(load)))
            sent.append(comm.now())
            await comm.send(1 + number % receivers, Phantom(1), version=number)

    VirtualWorld(1 + receivers, cluster).run(play)
    by_turns = 1 + load / (2 * (1 - load))
    theory = by_turns if sharing == "turns" else 1 / (1 - load)
    assert fmean(stayed) == pytest.approx(theory, **WITHIN)


# -- parameter servers -----------------------------------------------------------------------


def seconds_for(
    strategy: Strategy, workers: int, turns: int, cluster: Cluster, nbytes: int
) -> float:
    return max(rank.time for rank in timed(strategy, workers, turns, cluster, nbytes))


def a_turn(
    strategy: Strategy, workers: int, cluster: Cluster, nbytes: int = NBYTES, turns: int = 20
) -> float:
    """Virtual seconds of a turn in the long run, without the start and the closing."""
    seconds = [seconds_for(strategy, workers, n, cluster, nbytes) for n in (20, 20 + turns)]
    return (seconds[1] - seconds[0]) / turns


def a_first_turn(strategy: Strategy, workers: int, cluster: Cluster) -> float:
    """Virtual seconds of a turn that all workers begin at once, without the closing."""
    seconds = [seconds_for(strategy, workers, n, cluster, NBYTES) for n in (0, 1)]
    return seconds[1] - seconds[0]


NO_MERGING = 1e15


@pytest.mark.parametrize("workers", [4, 8, 16])
@pytest.mark.parametrize("servers", [1, 2, 4])
def test_a_synchronous_server_in_stripes(workers, servers):
    """2 alpha + push + merging + pull, each way as long as the fuller side's cards are busy."""
    cluster = Cluster(sample_seconds=0.5, merge_bandwidth=10e9, latency=50e-6, bandwidth=1.25e9)
    one_way = max(NBYTES / 1.25e9, workers * NBYTES / (servers * 1.25e9))
    merging = workers * NBYTES / servers / 10e9
    theory = 0.5 + 2 * 50e-6 + 2 * one_way + merging
    strategy = ParameterServer(mode="sync", servers=servers)
    assert a_first_turn(strategy, workers, cluster) == pytest.approx(theory, **WITHIN)
    # Later the replies have put the workers out of step, and pushing no longer queues.
    in_step = theory - one_way + NBYTES / 1.25e9
    if servers == 1:
        assert a_turn(strategy, workers, cluster) == pytest.approx(in_step, **WITHIN)
    else:
        assert in_step * 0.98 < a_turn(strategy, workers, cluster) < theory * 1.02


@pytest.mark.parametrize(
    ("workers", "servers", "sample_seconds"),
    [(4, 1, 2.0), (32, 1, 0.1), (32, 4, 0.1), (8, 2, 1.0), (64, 8, 0.05)],
)
def test_asynchronous_servers_are_limited_by_workers_or_by_their_cards(
    workers, servers, sample_seconds
):
    """Updates a second: min(P / (Tc + Tpush + Tpull), k Bs / M)."""
    cluster = Cluster(
        sample_seconds=sample_seconds, merge_bandwidth=NO_MERGING, latency=50e-6, bandwidth=1.25e9
    )
    transfer = NBYTES / 1.25e9
    alone = sample_seconds + 2 * (50e-6 + transfer / servers + transfer * (servers - 1) / servers)
    rate = min(workers / alone, servers * 1.25e9 / NBYTES)
    turn = a_turn(ParameterServer(servers=servers), workers, cluster)
    assert workers / turn == pytest.approx(rate, **WITHIN)


def test_a_server_on_a_workers_host_shares_its_card_and_its_time():
    """Two workers and a server. Beside a worker, that worker's bytes stay inside the host."""
    cluster = Cluster(
        sample_seconds=0.5, merge_bandwidth=1e9, latency=0.0, bandwidth=1e9,
        local_latency=0.0, local_bandwidth=1e15,
    )  # fmt: skip
    transfer = merge = NBYTES / 1e9
    apart = ParameterServer(mode="sync")
    beside = ParameterServer(mode="sync", placement="colocated")
    dedicated, colocated = 0.5 + 2 * (2 * transfer + merge), 0.5 + 2 * (transfer + merge)
    assert a_first_turn(apart, 2, cluster) == pytest.approx(dedicated, **WITHIN)
    assert a_first_turn(beside, 2, cluster) == pytest.approx(colocated, **WITHIN)
    # Asynchronously the worker beside the server loses what merging takes.
    merging = Cluster(**{**vars(cluster), "bandwidth": 1e15})
    lone = ParameterServer(), ParameterServer(placement="colocated")
    apart_turn, beside_turn = (a_turn(strategy, 8, merging) for strategy in lone)
    assert apart_turn < beside_turn


# -- barriers under jitter -------------------------------------------------------------------


def blom(of: int, among: int, spread: float) -> float:
    """The expected `of`-th least of `among` normal times around 1."""
    return 1 + spread * NormalDist().inv_cdf((of - 0.375) / (among + 0.25))


def jittery(spread: float, shape: str = "normal") -> Cluster:
    return Cluster(
        sample_seconds=1.0, merge_bandwidth=1e18, latency=0.0, bandwidth=1e18,
        jitter=spread, jitter_shape=shape,
    )  # fmt: skip


def expected(
    of: int, among: int, quantile: Callable[[float], float], points: int = 20_000
) -> float:
    """Of the `of`-th least of `among` draws: the integral of its quantiles over its density."""
    scale = math.lgamma(among + 1) - math.lgamma(of) - math.lgamma(among - of + 1)
    middles = [(n + 0.5) / 20_000 for n in range(20_000)]
    density = [
        math.exp(scale + (of - 1) * math.log(u) + (among - of) * math.log1p(-u)) for u in middles
    ]
    return sum(map(math.prod, zip(density, map(quantile, middles), strict=True))) / sum(density)


def lognormal(variation: float) -> Callable[[float], float]:
    """Its quantiles; its mean is 1."""
    spread = math.sqrt(math.log1p(variation**2))
    normal = NormalDist(-spread * spread / 2, spread)
    return lambda u: math.exp(normal.inv_cdf(u))


@pytest.mark.parametrize("workers", [8, 16, 32, 64, 128, 256])
@pytest.mark.parametrize("spread", [0.1, 0.2])
def test_a_synchronous_step_takes_as_long_as_the_slowest_of_all(workers, spread):
    turn = a_turn(AllReduce(), workers, jittery(spread), nbytes=400, turns=100)
    assert turn == pytest.approx(blom(workers, workers, spread), **WITHIN)


@pytest.mark.parametrize("workers", [8, 16, 32, 64, 128, 256])
@pytest.mark.parametrize("share", [16, 8])
def test_with_backup_workers_a_step_takes_as_long_as_the_last_that_is_needed(workers, share):
    backup = max(1, workers // share)
    strategy = ParameterServer(mode="sync", backup=backup)
    turn = a_round(strategy, workers, jittery(0.1))
    assert turn == pytest.approx(blom(workers - backup, workers, 0.1), **WITHIN)


@pytest.mark.parametrize("workers", [2, 8, 64, 256])
@pytest.mark.parametrize("variation", [0.1, 0.5])
def test_the_slowest_of_all_where_times_are_lognormal(workers, variation):
    turn = a_turn(AllReduce(), workers, jittery(variation, "lognormal"), nbytes=400, turns=400)
    theory = expected(workers, workers, lognormal(variation))
    assert turn == pytest.approx(theory, **WITHIN)


@pytest.mark.parametrize(("workers", "backup"), [(8, 1), (64, 8), (128, 16)])
def test_the_last_that_is_needed_where_times_are_lognormal(workers, backup):
    strategy = ParameterServer(mode="sync", backup=backup)
    turn = a_round(strategy, workers, jittery(0.1, "lognormal"))
    theory = expected(workers - backup, workers, lognormal(0.1))
    assert turn == pytest.approx(theory, **WITHIN)


@pytest.mark.parametrize("workers", [2, 16, 64])
@pytest.mark.parametrize("period", [4, 16])
def test_who_meets_seldom_waits_for_the_slowest_sum_of_a_period(workers, period):
    """A period's work varies by the square root of its steps."""
    turn = a_turn(Averaging(period=period), workers, jittery(0.2), nbytes=400, turns=40 * period)
    theory = expected(workers, workers, NormalDist(1.0, 0.2 / period**0.5).inv_cdf)
    assert turn == pytest.approx(theory, **WITHIN)


def a_round(strategy: ParameterServer, workers: int, cluster: Cluster) -> float:
    """Virtual seconds from one update to the next, in the long run."""
    short, long = (timed(strategy, workers, turns, cluster)[-1] for turns in (20, 120))
    return (long.time - short.time) / (long.steps - short.steps)


# -- a ring in chunks ------------------------------------------------------------------------


def test_chunks_shorten_a_ring_that_is_limited_by_its_wires():
    """The model's head runs ahead: while one chunk is merged the next is on the wire."""
    nbytes, transmit, merge, chunks = 48_000, 0.11, 0.05, 10
    cluster = Cluster(
        sample_seconds=0.05,
        merge_bandwidth=nbytes / merge,
        latency=0.0,
        bandwidth=nbytes / transmit,
    )
    workers = 16
    whole = a_turn(Ring(), workers, cluster, nbytes)
    chunked = a_turn(Ring(chunks=chunks), workers, cluster, nbytes)
    assert whole == pytest.approx(workers * (transmit + merge), **WITHIN)
    lap = max(transmit, workers * (transmit + merge) / chunks)
    assert chunked == pytest.approx(lap, rel=0.1)


# -- what differs from worker to worker and from time to time ----------------------------------


def paces(cluster: Cluster, workers: int, works: int) -> list[float]:
    """Mean seconds of every worker's minibatches of one sample."""
    load = Load(samples=1)
    by_worker = (cluster.computing(rank, workers) for rank in range(workers))
    return [sum(seconds(load) for _ in range(works)) / works for seconds in by_worker]


def test_workers_keep_paces_of_their_own():
    found = paces(Cluster(sample_seconds=1.0, uneven=0.2), 20_000, works=1)
    again = paces(Cluster(sample_seconds=1.0, uneven=0.2), 10, works=3)
    assert again == pytest.approx(found[:10])
    assert fmean(found) == pytest.approx(1.0, rel=0.02)
    assert pstdev(found) == pytest.approx(0.2, rel=0.02)


def test_pauses_come_as_often_and_take_as_long_as_said():
    cluster = Cluster(sample_seconds=1.0, pauses=0.05, pause_seconds=4.0, jitter=0.1)
    (mean,) = paces(cluster, 1, works=200_000)
    assert mean == pytest.approx(1.0 + 0.05 * 4.0, **WITHIN)


def test_averaging_damps_jitter_but_not_uneven_workers():
    """Over a period the jitter of a worker evens out; its own pace does not."""
    works = 64
    jittery_ones = paces(Cluster(sample_seconds=1.0, jitter=0.2), 2_000, works)
    uneven_ones = paces(Cluster(sample_seconds=1.0, uneven=0.2), 2_000, works)
    assert pstdev(jittery_ones) == pytest.approx(0.2 / works**0.5, rel=0.05)
    assert pstdev(uneven_ones) == pytest.approx(0.2, rel=0.05)
