"""Gossip: traces by hand, what averaging in pairs conserves, and that nobody waits for ever."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import replace
from itertools import pairwise

import pytest
import torch
from helpers import ROUND, Crew, Normalised, Sized, Weight, play, small_run
from test_golden import Traced, log_of, traced_slope

from regatta.cluster import Cluster
from regatta.comm import Deadlock
from regatta.config import Stop
from regatta.learn.optimisers import Sgd
from regatta.strategies.gossip import Gossip

ROUGH = Cluster(jitter=1.0, stragglers=1, straggle=7.0)  # every wait takes another time


def own(crew):
    """Every worker's own model, which it has put aside."""
    return [replica.slots["own"][0].item() for replica in crew.replicas]


# -- by hand ---------------------------------------------------------------------------------


def test_the_log_of_two():
    assert log_of(Gossip(), [[2, 2], [4, 4]]) == [
        "1.000 rank 0 sends -1 v1 to 1",  # and computes its second minibatch at -1
        "2.000 rank 1 sends -3 v1 to 0",  # between two minibatches; stands at -2, steps to -6
        "2.625 rank 0 takes -3 v1 from 1",  # stands at -2
        "2.875 rank 0 sends -4 v2 to 1",  # merged, and stepped with what it computed at -1
        "3.500 rank 1 takes -4 v2 from 0",  # out of data, it waits; stands at -5
        "3.500 rank 1 sends -6 v2 to 0",
        "4.125 rank 0 takes -6 v2 from 1",
        "4.375 rank 0 sends nothing v0 to 1",
        "4.500 rank 1 takes nothing v0 from 0",
    ]


def test_the_trace_of_two():
    crew = Crew(Gossip(), 2, Traced, traced_slope).play([[2, 2], [4, 4]])
    assert [replica.model.seen for replica in crew.replicas] == [[1, -1], [1, -3]]
    assert own(crew) == [-5, -5]
    assert crew.final == [[-5, 1]] * 2
    assert crew.world.now == 4.5 + 0.75


def test_the_trace_of_three_of_whom_one_answers():
    crew = Crew(Gossip(period=2), 3, Traced, traced_slope).play([[2, 2], [4, 4, 4], [8]])
    # Rank 2 never comes to ask: it makes one step, to -7. Rank 0 asks with -3 at 2.0; rank 1, at -7
    # by then, answers at 3.0. They meet at -5, and rank 1 steps to -9.
    assert [replica.model.seen for replica in crew.replicas] == [[1, -1], [1, -3, -7], [1]]
    assert own(crew) == [-5, -9, -7]
    assert crew.final == [[-7, 1]] * 3


def test_own_models_survive_a_meeting():
    crew = Crew(Gossip(period=5), 2, Traced, traced_slope).play([[2], [4]])
    assert (own(crew), crew.final) == ([-1, -3], [[-2, 1]] * 2)
    crew.play([[2], [4]])
    assert [replica.model.seen for replica in crew.replicas] == [[1, -1], [1, -3]]
    assert (own(crew), crew.final) == ([-3, -7], [[-5, 1]] * 2)


# -- what is conserved -----------------------------------------------------------------------


@pytest.mark.parametrize("workers", [1, 2, 3, 6, 9])
def test_the_answer_contains_every_gradient_once(workers):
    """Gradients here are the same everywhere: only averaging could lose or double some."""
    shards = [[float(worker + 1)] * (20 - worker) for worker in range(workers)]
    crew = Crew(Gossip(), workers, cluster=ROUGH, optimiser=Sgd(lr=0.01)).play(shards)
    wanted = 1 - 0.01 * sum(map(sum, shards)) / workers
    assert crew.final[0][0] == pytest.approx(wanted, abs=1e-5)


def spread_after(turns, workers):
    """Start apart, take steps of no length; how far apart they end, and their mean."""
    crew = Crew(Gossip(), workers, cluster=ROUGH)
    for replica in crew.replicas:
        replica.load(torch.tensor([float(replica.comm.rank), 1.0]))
    crew.play([[0.0] * turns] * workers)
    return max(own(crew)) - min(own(crew)), crew.final[0][0]


@pytest.mark.parametrize("workers", [2, 3, 5, 8])
def test_averaging_in_pairs_keeps_the_mean_and_brings_all_together(workers):
    spreads = [workers - 1.0]  # at the start
    for turns in (1, 10, 100):
        spread, mean = spread_after(turns, workers)
        assert mean == pytest.approx((workers - 1) / 2, abs=1e-5)
        spreads.append(spread)
    assert all(after <= before for before, after in pairwise(spreads))
    assert spreads[-1] < 1e-3


def test_all_agree_on_the_mean_of_what_each_would_like():
    def distance(model, wanted):
        return (model.weight - wanted).square().sum() / 2

    crew = Crew(Gossip(), 5, Weight, distance, Sgd(lr=0.01), Cluster(jitter=0.5))
    crew.play([[float(worker)] * 800 for worker in range(5)])
    assert crew.final[0][0] == pytest.approx(2.0, abs=0.1)
    assert max(own(crew)) - min(own(crew)) < 0.2  # they would be 4 apart without gossip


@pytest.mark.parametrize("counts", [(30, 30, 30), (5, 25, 0), (0, 1, 30), (0, 0, 9)])
def test_statistics_are_the_mean_of_all_batches_however_they_were_dealt(counts):
    task = Normalised(train=2400, momentum=None)
    data = task.open()
    batches = iter([data.batch(slice(start, start + 16)) for start in range(0, 2400, 16)])
    crew = Crew(Gossip(), 3, task.model, data.loss, Sgd(lr=0.01), Cluster(jitter=0.5))
    crew.play([[next(batches) for _ in range(count)] for count in counts])
    wanted = data.inputs[: 16 * sum(counts)].mean(0)
    answer = crew.holder.named_answer()
    torch.testing.assert_close(answer["0.running_mean"], wanted, atol=1e-5, rtol=1e-5)


# -- waiting ---------------------------------------------------------------------------------


@pytest.mark.parametrize("workers", range(2, 10))
def test_nobody_waits_for_ever(workers):
    for seed in range(2):
        cluster = replace(ROUGH, stragglers=workers // 3, jitter_seed=seed)
        run = small_run(
            "gossip", workers, task=Sized(train=2000 * workers), minibatch=1, cluster=cluster,
            stop=Stop(epochs=1),
        )  # fmt: skip
        assert [rank.turns for rank in play(run, timing_only=True).ranks] == [2000] * workers


async def _left_behind(comm):
    return await comm.poll()


@pytest.mark.parametrize("workers", range(2, 10))
def test_nobody_waits_for_ever_with_uneven_data(workers):
    chance = random.Random(workers)
    crew = Crew(Gossip(period=chance.choice((1, 2))), workers, cluster=ROUGH)
    for _ in range(8):  # segments
        counts = [chance.choice((0, 1, 2, 40)) for _ in range(workers)]
        steps = crew.used
        crew.play([[0.5] * count for count in counts])
        assert crew.used == crew.computed == steps + sum(counts)
        assert crew.world.run(_left_behind) == [None] * workers
        assert all(weights == crew.final[0] for weights in crew.final)


class Naive(Gossip):
    """Everybody asks anybody and waits for the answer, answering between its own minibatches."""

    def role(self, rank, workers):
        return self.peer

    async def peer(self, comm, replica):
        async for gradient in replica:
            while (request := await comm.poll(tag=0)) is not None:
                await comm.send(request.src, replica.weights, tag=7)
            replica.step(gradient)
            neighbour = (comm.rank + 1 + replica.pick(comm.size - 1)) % comm.size
            await comm.send(neighbour, replica.weights)
            await comm.recv(neighbour, tag=7)


@pytest.mark.parametrize("workers", [2, 3, 5, 9])
def test_without_the_two_sides_they_do_wait_for_ever(workers):
    """The control: what makes gossip safe is that those who answer never ask."""
    with pytest.raises(Deadlock, match="waits for a message from rank"):
        Crew(Naive(), workers, cluster=ROUGH).play([[0.5] * 1000] * workers)


class Clocked:
    """A rank's communication that tells how long every receive was waited for."""

    def __init__(self, comm, waits):
        self._comm, self._waits = comm, waits

    def __getattr__(self, name):
        return getattr(self._comm, name)

    def recv(self, *source_and_tag):
        return _ClockedOp(self._comm.recv(*source_and_tag), self._comm, self._waits)


class _ClockedOp:
    def __init__(self, op, comm, waits):
        self._op, self._comm, self._waits = op, comm, waits

    def __await__(self):
        began = self._comm.now()
        message = yield from self._op.__await__()
        self._waits.append((self._comm.rank, message.src, self._comm.now() - began))
        return message


def test_an_active_worker_waits_for_one_minibatch_of_its_neighbour_at_most():
    waits = []
    slow = replace(ROUND, stragglers=1, straggle=5.0)  # rank 3, who answers
    crew = Crew(Gossip(), 4, cluster=slow, wrap=lambda comm: Clocked(comm, waits))
    crew.play([[0.0] * 200, [0.0] * 400, [0.0] * 200, [0.0] * 400])
    # Two messages, each behind one of the other active worker, and the merge of its model.
    exchange = 2 * (0.125 + 0.5 + 0.5)
    for neighbour, minibatch, merge in ((1, 1.0, 0.25), (3, 5.0, 1.25)):
        times = [t for rank, src, t in waits if rank in (0, 2) and src == neighbour]
        assert len(times) > 50
        assert max(times) <= minibatch + merge + exchange
        assert max(times) > minibatch / 2, "it does have to wait"


def test_who_has_data_and_answers_waits_for_nobody():
    run = small_run(
        "gossip", 4, task=Sized(train=4000), minibatch=1, stop=Stop(epochs=1),
        cluster=Cluster(sample_seconds=1e-3, merge_bandwidth=1e12),
    )  # fmt: skip
    straggling = replace(run, cluster=replace(run.cluster, stragglers=2))  # ranks 2 and 3
    even, uneven = (play(r, timing_only=True).ranks for r in (run, straggling))
    # Rank 1 has done its part as early as ever: it waits only after that, for the end.
    for rank in (even[1], uneven[1]):
        assert rank.computing == pytest.approx(1.0, rel=0.01)
    assert even[1].waiting < 0.01
    assert uneven[1].waiting == pytest.approx(uneven[1].time - 1.0, rel=0.01)


# -- who asks whom ---------------------------------------------------------------------------


def test_every_answering_worker_is_asked_about_as_often():
    asked = Counter()
    for line in log_of(Gossip(), [[0.0] * 300] * 5):
        _, _, rank, verb, what, _, _, other = line.split()
        if verb == "sends" and what != "nothing" and int(rank) % 2 == 0:
            asked[int(rank), int(other)] += 1
    assert set(asked) == {(rank, other) for rank in (0, 2, 4) for other in (1, 3)}
    assert all(120 < times < 180 for times in asked.values())


def test_one_worker_asks_nobody():
    crew = Crew(Gossip(), 1).play([[2.0] * 7])
    assert crew.exchanged == (1, 8)  # the mean of one, at the end
    assert crew.final == [[-13, 1]]


def test_a_period_below_one_is_refused():
    with pytest.raises(ValueError, match="gossip: period must be 1 or more, not 0"):
        Gossip(period=0)


def test_a_timing_only_run_takes_as_long_and_sends_as_much():
    run = small_run("gossip", 5, cluster=Cluster(jitter=0.3, stragglers=1))
    real, timed = play(run), play(run, timing_only=True)
    for one, other in zip(real.ranks, timed.ranks, strict=True):
        assert replace(one, digest=None) == replace(other, digest=None)
