"""The virtual world: what happens when, and who waits for what.

Times are binary fractions wherever they are compared with `==`, so they are exact.
"""

from __future__ import annotations

import gc
from dataclasses import replace

import pytest
import torch
from helpers import ROUND, Sized, play, small_run, timed
from torch import tensor

from regatta.cluster import Cluster
from regatta.comm import Deadlock, Load, Phantom
from regatta.config import Run, Stop, component
from regatta.events import Ended
from regatta.runs import simulate
from regatta.strategies.all_reduce import AllReduce
from regatta.strategies.parameter_server import ParameterServer
from regatta.strategies.ring import Ring
from regatta.tasks.sequences import Sequences
from regatta.tasks.teacher import Teacher
from regatta.tasks.vectors import Vectors
from regatta.worlds.virtual import VirtualWorld

LETTER = Phantom(8)  # 0.125 s of latency, 0.5 s of a network card in the ROUND cluster
MINIBATCH = Load(samples=1)  # 1 s in the ROUND cluster


def nothing():
    return None


def run(*ranks, groups=None, cluster=ROUND):
    """Play one coroutine function a rank; what each returns."""
    world = VirtualWorld(len(ranks), cluster, groups)
    return world.run(lambda comm: ranks[comm.rank](comm))


async def idle(comm):
    return None


# -- messages -------------------------------------------------------------------------------


def test_a_message_takes_latency_and_transmission():
    async def sender(comm):
        await comm.send(1, LETTER)
        return comm.now()

    async def receiver(comm):
        await comm.recv(0)
        return comm.now()

    assert run(sender, receiver) == [0.0, 0.625]  # a send is buffered: the sender goes on at once


def test_a_receiver_takes_one_message_at_a_time():
    async def sender(comm):
        await comm.send(2, LETTER)

    async def receiver(comm):
        times = []
        for _ in range(2):
            await comm.recv()
            times.append(comm.now())
        return times

    assert run(sender, sender, receiver)[2] == [0.625, 1.125]


def test_a_sender_sends_one_message_at_a_time():
    async def sender(comm):
        await comm.send(1, LETTER)
        await comm.send(2, LETTER)

    async def receiver(comm):
        await comm.recv(0)
        return comm.now()

    assert run(sender, receiver, receiver)[1:] == [0.625, 1.125]


def test_both_ways_at_once():
    async def peer(comm):
        await comm.send(1 - comm.rank, LETTER)
        await comm.recv(1 - comm.rank)
        return comm.now()

    assert run(peer, peer) == [0.625, 0.625]


def test_a_message_to_oneself_is_there_at_once():
    async def lonely(comm):
        await comm.send(0, LETTER, version=5)
        return (await comm.recv(0)).version, comm.now()

    assert run(lonely) == [(5, 0.0)]


def test_messages_of_one_sender_keep_their_order_and_header():
    async def sender(comm):
        for number in range(3):
            await comm.send(1, tensor([float(number)]), tag=number % 2, version=10 + number)

    async def receiver(comm):
        odd = await comm.recv(0, tag=1)  # passes over the first
        rest = [await comm.recv(), await comm.recv()]
        return [(m.src, m.tag, m.version, m.data.item()) for m in (odd, *rest)]

    assert run(sender, receiver)[1] == [(0, 1, 11, 1.0), (0, 0, 10, 0.0), (0, 0, 12, 2.0)]


def test_what_is_taken_by_name_leaves_the_order_of_the_rest():
    async def sender(comm):
        for number in range(2):
            await comm.send(4, LETTER, tag=number, version=comm.rank)

    async def receiver(comm):
        await comm.compute(nothing, Load(samples=100))  # until all have come
        named = [await comm.recv(2, tag=1), await comm.recv(1), await comm.recv(2)]
        rest = [await comm.recv() for _ in range(5)]
        return [(m.version, m.tag) for m in (*named, *rest)]

    first, second = [(0, 0), (3, 0)], [(0, 1), (1, 1), (3, 1)]
    assert run(*[sender] * 4, receiver)[4] == [(2, 1), (1, 0), (2, 0), *first, *second]


def test_poll_never_waits():
    async def sender(comm):
        await comm.send(1, LETTER)

    async def receiver(comm):
        found = [await comm.poll() is not None]
        polled_at = [comm.now()]
        await comm.compute(nothing, MINIBATCH)
        found += [await comm.poll(0, tag=9) is not None, await comm.poll() is not None]
        found.append(await comm.poll() is not None)  # it was taken
        return found, [*polled_at, comm.now()]

    assert run(sender, receiver)[1] == ([False, False, True, False], [0.0, 1.0])


def test_traffic_is_counted():
    world = VirtualWorld(2, ROUND)

    async def peer(comm):
        await comm.compute(nothing, Load(samples=2))
        await comm.send(1 - comm.rank, LETTER)
        await comm.recv(1 - comm.rank)
        await comm.all_reduce(Phantom(16))

    world.run(peer)
    traffic = world.comms[0].traffic
    assert (traffic.messages, traffic.nbytes) == (2, 8 + 16)
    # An all-reduce of 16 bytes by two: twice 0.125 s and half of 1 s.
    assert (traffic.computing, traffic.waiting) == (2.0, 0.625 + 1.25)


# -- work and overlap -----------------------------------------------------------------------


def test_an_operation_starts_when_called():
    async def sender(comm):
        await comm.send(1, LETTER)

    async def apart(comm):
        await comm.compute(nothing, MINIBATCH)
        await comm.compute(nothing, MINIBATCH)
        return comm.now()

    async def at_once(comm):
        first = comm.compute(nothing, MINIBATCH)
        message = comm.recv(0)
        await message
        received = comm.now()
        await first
        return received, comm.now()

    # One device computes one thing after another; a receive goes on beside it.
    assert run(sender, apart)[1] == 2.0
    assert run(sender, at_once)[1] == (0.625, 1.0)


def test_an_all_reduce_started_inside_backward_overlaps_it():
    """Half of the work is done at 1 s; what was started there has ended when the work has."""

    async def rank(comm):
        def work():
            comm.progress(0.5)
            early = comm.all_reduce(LETTER)
            comm.progress(1.0)
            return early, comm.all_reduce(LETTER)

        early, late = await comm.compute(work, Load(samples=2), overlap=True)
        await early
        times = [comm.now()]
        await late
        return [*times, comm.now()]

    # Each takes 2 x (0.125 + 0.25) s: the first from 1 to 1.75, the second from 2.
    assert run(rank, rank) == [[2.0, 2.75]] * 2


def test_collectives_of_a_group_follow_one_another():
    async def rank(comm):
        both = comm.all_reduce(LETTER), comm.all_reduce(LETTER)
        return [(await operation, comm.now())[1] for operation in both]

    assert run(rank, rank) == [[0.75, 1.5]] * 2


@pytest.mark.parametrize("ranks", [1, 2, 4, 8])
def test_what_collectives_cost(ranks):
    async def reduce(comm):
        await comm.all_reduce(LETTER)
        return comm.now()

    async def spread(comm):
        await comm.broadcast(LETTER, root=ranks - 1)
        return comm.now()

    # A ring: 2(P-1) messages of a P-th. A binomial tree: log2 P levels of the whole.
    assert run(*[reduce] * ranks) == [2 * (ranks - 1) * (0.125 + 0.5 / ranks)] * ranks
    assert run(*[spread] * ranks) == [(ranks.bit_length() - 1) * 0.625] * ranks


def test_a_collective_starts_when_its_last_rank_has_come():
    async def early(comm):
        await comm.all_reduce(LETTER)
        return comm.now()

    async def late(comm):
        await comm.compute(nothing, Load(samples=3))
        await comm.all_reduce(LETTER)
        return comm.now()

    assert run(early, late) == [3.75, 3.75]


# -- values ---------------------------------------------------------------------------------


def test_all_reduce_adds_in_rank_order_whoever_comes_first():
    generator = torch.Generator().manual_seed(0)
    a, b, c = torch.randn(3, 1000, generator=generator)

    def rank(vector, seconds):
        async def play(comm):
            await comm.compute(nothing, Load(samples=seconds))
            return await comm.all_reduce(vector)

        return play

    sums = run(rank(a, 3), rank(b, 2), rank(c, 1))
    assert all(torch.equal(total, (a + b) + c) for total in sums)
    # Were it the order of arrival, some elements would differ.
    assert not torch.equal((a + b) + c, (c + b) + a)


def test_all_reduce_leaves_what_it_was_given():
    given = [torch.ones(2), torch.full((2,), 2.0), torch.full((2,), 4.0)]

    async def rank(comm):
        return (await comm.all_reduce(given[comm.rank])).tolist()

    assert run(rank, rank, rank) == [[7.0, 7.0]] * 3
    assert [vector.tolist() for vector in given] == [[1.0] * 2, [2.0] * 2, [4.0] * 2]


def test_broadcast_gives_the_vector_of_its_root():
    async def rank(comm):
        return (await comm.broadcast(tensor([float(comm.rank)]), root=1)).item()

    assert run(rank, rank, rank) == [1.0] * 3


def test_groups_meet_by_themselves():
    async def rank(comm):
        if comm.rank == 4:  # of no group
            return 0.0
        pair = "even" if comm.rank % 2 == 0 else "odd"
        return (await comm.all_reduce(tensor([10.0**comm.rank]), pair)).item()

    sums = run(*[rank] * 5, groups={"even": [0, 2], "odd": [1, 3]})
    assert sums == [101.0, 1010.0, 101.0, 1010.0, 0.0]


# -- what goes wrong ------------------------------------------------------------------------


def test_deadlock_names_who_waits_for_a_rank_that_ended():
    async def waiting(comm):
        await comm.recv(1)

    with pytest.raises(Deadlock, match="rank 0 waits for a message from rank 1; ended: 1"):
        run(waiting, idle)


def test_deadlock_names_any_source_and_tag():
    async def waiting(comm):
        await comm.recv(tag=7)

    with pytest.raises(Deadlock, match="rank 0 waits for a message from anyone with tag 7"):
        run(waiting)


def test_deadlock_names_a_collective_that_one_never_joins():
    async def joining(comm):
        await comm.all_reduce(LETTER, "pair")

    with pytest.raises(Deadlock) as caught:
        run(joining, idle, groups={"pair": [0, 1]})
    assert "rank 0 waits for all-reduce in group pair" in str(caught.value)
    assert "ended: 1" in str(caught.value)


def test_deadlock_names_all_who_wait():
    async def waiting(comm):
        await comm.recv(1 - comm.rank)

    with pytest.raises(Deadlock) as caught:
        run(waiting, waiting)
    assert "rank 0 waits for a message from rank 1" in str(caught.value)
    assert "rank 1 waits for a message from rank 0" in str(caught.value)
    assert "ended" not in str(caught.value)


def test_an_error_says_on_which_rank_and_when():
    async def failing(comm):
        await comm.compute(nothing, MINIBATCH)
        raise ZeroDivisionError("of this rank")

    with pytest.raises(ZeroDivisionError, match="of this rank") as caught:
        run(idle, failing)
    assert caught.value.__notes__ == ["on rank 1, at 1 virtual seconds"]


def test_halting_reaches_everybody():
    async def first(comm):
        comm.halt()

    async def second(comm):
        before = comm.halted()
        await comm.compute(nothing, MINIBATCH)
        return before, comm.halted()

    # Rank 0 is resumed first, so rank 1 sees it from its start.
    assert run(first, second)[1] == (True, True)
    assert run(idle, second)[1] == (False, False)


@pytest.mark.parametrize("ranks", [2, 1000])
def test_garbage_is_looked_for_less_often_while_many_ranks_play(ranks):
    usual = gc.get_threshold()

    async def rank(comm):
        return gc.get_threshold()[0]

    async def failing(comm):
        raise ZeroDivisionError

    assert run(*[rank] * ranks)[0] == max(usual[0], 20 * ranks)
    with pytest.raises(ZeroDivisionError):
        run(*[failing] * ranks)
    assert gc.get_threshold() == usual


# -- the cluster ----------------------------------------------------------------------------


def test_a_load_is_samples_a_fixed_part_and_merging():
    cluster = Cluster(sample_seconds=0.5, batch_seconds=2.0, merge_bandwidth=4.0)
    seconds = cluster.computing(rank=0, workers=1)
    assert seconds(Load(samples=3)) == 2.0 + 1.5
    assert seconds(Load(nbytes=16)) == 4.0  # no minibatch, no fixed part
    assert seconds(Load()) == 0.0


def test_the_last_workers_are_the_stragglers_and_a_server_is_none():
    cluster = Cluster(sample_seconds=1.0, stragglers=2, straggle=3.0)
    seconds = [cluster.computing(rank, workers=4)(MINIBATCH) for rank in range(5)]
    assert seconds == [1.0, 1.0, 3.0, 3.0, 1.0]


def test_jitter_repeats_itself_and_differs_by_rank_and_seed():
    def draws(rank, seed=0):
        seconds = Cluster(jitter=0.3, jitter_seed=seed).computing(rank, workers=2)
        return [seconds(MINIBATCH) for _ in range(5)]

    assert draws(0) == draws(0)
    assert draws(0) != draws(1)
    assert draws(0) != draws(0, seed=1)


def test_jitter_keeps_the_mean_and_has_the_stated_spread():
    seconds = Cluster(sample_seconds=1.0, jitter=0.3).computing(0, workers=1)
    times = torch.tensor([seconds(MINIBATCH) for _ in range(20_000)])
    assert times.mean().item() == pytest.approx(1.0, rel=0.02)
    assert (times.std() / times.mean()).item() == pytest.approx(0.3, rel=0.05)


# -- theory ---------------------------------------------------------------------------------

T_CALCULATE, T_MERGE, T_TRANSMIT = 1.0, 0.02, 0.11
WIRES = Cluster(
    sample_seconds=T_CALCULATE, merge_bandwidth=4000 / T_MERGE, latency=0.01, bandwidth=40_000
)  # a vector of 4000 bytes


def seconds_of(strategy, workers, turns, cluster):
    """Virtual seconds of a timing-only run of so many turns a worker."""
    return max(rank.time for rank in timed(strategy, workers, turns, cluster, 4000))


@pytest.mark.parametrize("workers", range(1, 17))
def test_a_ring_is_as_fast_as_its_paper_says(workers):
    """Speedup n up to the knee, n = 7.85 here, and the knee's ratio from there on."""
    turns = 40
    # The difference of two lengths is free of the first and the closing laps.
    ring = seconds_of(Ring(), workers, 2 * turns, WIRES) - seconds_of(Ring(), workers, turns, WIRES)
    alone = workers * turns * (T_CALCULATE + T_MERGE)
    knee = (T_CALCULATE + T_MERGE) / (T_TRANSMIT + T_MERGE)
    assert alone / ring == pytest.approx(min(workers, knee), rel=0.01)


@pytest.mark.parametrize("task", [Vectors, Sequences, Teacher])
def test_no_sample_is_made_where_only_the_clock_is_charged(task):
    plenty = task(train=10**11)  # terabytes of them
    run = small_run("all-reduce", 4, task=plenty, minibatch=1, stop=Stop(samples=12))
    ranks = play(run, timing_only=True).ranks
    assert [rank.samples for rank in ranks] == [3] * 4
    made, outlined = replace(plenty, train=8).open(), replace(plenty, train=8).outline()
    batches = [data.batch(tensor([3, 1])) for data in (made, outlined)]
    shapes = [[(part.shape, part.dtype) for part in parts_of(batch)] for batch in batches]
    assert shapes[0] == shapes[1]


def parts_of(batch):
    return batch if isinstance(batch, tuple) else (batch,)


def test_staleness_at_a_server_is_workers_minus_one():
    run = small_run(
        ParameterServer(),
        64,
        task=Sized(train=64 * 50),
        minibatch=1,
        stop=Stop(epochs=1),
        cluster=Cluster(sample_seconds=1.0),
    )
    server = play(run, timing_only=True).ranks[-1]
    ages = server.staleness
    assert sum(ages.values()) == 64 * 50
    mean = sum(age * count for age, count in ages.items()) / sum(ages.values())
    assert mean == pytest.approx(63, rel=0.05)


EVEN = Cluster(sample_seconds=1.0)  # computing is nearly all there is
ONE_SLOW = replace(EVEN, stragglers=1, straggle=5.0)


def test_one_slow_worker_slows_all_reduce_down_to_its_pace():
    even, slow = (seconds_of(AllReduce(), 8, 20, cluster) for cluster in (EVEN, ONE_SLOW))
    assert 4.8 < slow / even < 5.2


def test_one_slow_worker_costs_a_server_only_what_it_does_not_bring():
    def updates(cluster, seconds):
        run = small_run(
            ParameterServer(),
            8,
            task=Sized(train=8 * 10_000),
            minibatch=1,
            stop=Stop(epochs=1, seconds=seconds),
            cluster=cluster,
        )
        ended = next(e for e in play(run, timing_only=True).events if isinstance(e, Ended))
        assert ended.reason == "seconds"
        return ended.samples

    def throughput(cluster):  # in steady state
        return (updates(cluster, 400.5) - updates(cluster, 200.5)) / 200

    assert throughput(EVEN) == pytest.approx(8, rel=0.01)
    assert throughput(ONE_SLOW) == pytest.approx((8 - 0.8) / 8 * throughput(EVEN), rel=0.01)


@pytest.mark.parametrize("spec", ["all-reduce", "ring", "parameter-server"])
def test_thousands_of_ranks_are_timed(spec):
    task = Vectors(sizes=(8, 8), train=2 * 4096)
    run = Run(task=task, strategy=component("strategy", spec), workers=4096, minibatch=1,
              stop=Stop(epochs=2), cluster=ROUND)  # fmt: skip
    ended, _ = simulate(run, timing_only=True)
    workers = [each for each in ended if each.role == "worker"]
    assert len(workers) == 4096
    assert {each.turns for each in workers} == {4}
