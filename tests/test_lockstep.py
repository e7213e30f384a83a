"""Ranks of a virtual world that are in step share their vectors, and nobody can tell."""

from __future__ import annotations

import gc

import pytest
import torch
from helpers import Quadratic, Shard, small_run
from torch import nn

from regatta.cluster import Cluster
from regatta.config import Stop
from regatta.engine import Rank, Surroundings
from regatta.fingerprint import weights_digest
from regatta.learn.body import Body
from regatta.learn.optimisers import Adam, Sgd
from regatta.learn.part import Part
from regatta.learn.replica import Replica
from regatta.worlds.virtual import VirtualWorld

OPTIMISERS = {
    "plain": Sgd(lr=0.05),
    "momentum": Sgd(lr=0.02, momentum=0.9, weight_decay=0.01),
    "adam": Adam(lr=0.01),
}
every_optimiser = pytest.mark.parametrize("optimiser", OPTIMISERS.values(), ids=OPTIMISERS)


# -- whole runs -----------------------------------------------------------------------------


def replicas_of(run, shares=True):
    """Those of a simulated run, when it has ended."""
    around = Surroundings(world="virtual", data=run.task.open(), log=lambda event: None)
    groups = run.strategy.groups(run.workers, range(run.workers))
    world = VirtualWorld(run.num_ranks, run.cluster, groups, run.workers)
    ranks = [Rank(run, comm, comm.chance, around) for comm in world.comms]
    for body in around.bodies.values():
        body.is_shared = shares
    for rank in ranks:
        rank.begin()
    world.run(lambda comm: ranks[comm.rank].play())
    return [rank.replica for rank in ranks]


def addresses(replicas):
    return {replica.vector.data_ptr() for replica in replicas}


def remembered_addresses(replicas):
    return {v.data_ptr() for replica in replicas for v in replica._memory.vectors}


@pytest.mark.parametrize("bucket_bytes", [0, 1])
@every_optimiser
def test_workers_that_sum_their_gradients_hold_one_vector(optimiser, bucket_bytes):
    run = small_run(
        "all-reduce", 64, minibatch=1, optimiser=optimiser, stop=Stop(epochs=2),
        bucket_bytes=bucket_bytes,
    )  # fmt: skip
    together = replicas_of(run)
    assert len(addresses(together)) == 1
    assert len(remembered_addresses(together)) == len(optimiser.memory)
    apart = replicas_of(run, shares=False)
    assert len(addresses(apart)) == 64
    digests = {weights_digest(replica.weights) for replica in (*together, *apart)}
    assert len(digests) == 1
    for ours, theirs in zip(together, apart, strict=True):
        assert ours.version == theirs.version > 0
        for a, b in zip(ours._memory.vectors, theirs._memory.vectors, strict=True):
            assert torch.equal(a, b)


def test_workers_apart_hold_vectors_of_their_own():
    replicas = replicas_of(small_run("averaging:period=100", 3, stop=Stop(epochs=0.2)))
    assert len(addresses(replicas)) == 3  # each has divided the sum for itself


# -- step by step ---------------------------------------------------------------------------


def three(optimiser, shared=True):
    world = VirtualWorld(3, Cluster())
    torch.manual_seed(1)
    body = Body(nn.Linear(6, 5), shared=shared)
    return [
        Replica(body, lambda model, batch: batch, Shard([[]], 0), comm, optimiser)
        for comm in world.comms
    ]


def total(seed):
    generator = torch.Generator().manual_seed(seed)
    return torch.cat([torch.randn(35, generator=generator), torch.tensor([3.0])])


def alone(optimiser, *totals, start=None):
    """What one replica makes of it that shares with nobody."""
    replica = three(optimiser, shared=False)[0]
    if start is not None:
        replica.load(start)
    for each in totals:
        replica.step(each, of=3)
    return replica.weights


@every_optimiser
def test_a_rank_that_loads_other_weights_goes_its_own_way(optimiser):
    first, third, second = replicas = three(optimiser)
    sums = [total(n) for n in range(4)]
    for each in sums[:2]:
        for replica in replicas:
            replica.step(each, of=3)
    assert len(addresses(replicas)) == 1
    other = torch.ones(36)
    second.load(other)
    for each in sums[2:]:
        for replica in replicas:
            replica.step(each, of=3)
    assert first.vector is third.vector
    assert torch.equal(first.weights, alone(optimiser, *sums))
    assert not torch.equal(second.weights, first.weights)
    assert torch.equal(other, torch.ones(36))


@every_optimiser
def test_a_rank_with_another_sum_rate_or_count_goes_its_own_way(optimiser):
    same = total(0)
    for gradient, options in (
        (total(9), {"of": 3}),
        (same, {"of": 2}),
        (same, {"of": 3, "rate": 0.5}),
        (same.clone(), {"of": 3}),  # the same numbers, but who knows
    ):
        first, second, third = three(optimiser)
        first.step(same, of=3)
        second.step(gradient, **options)
        third.step(same, of=3)
        assert second.vector is not first.vector
        assert torch.equal(first.weights, alone(optimiser, same))
        assert torch.equal(third.weights, first.weights)


@every_optimiser
def test_what_is_shared_is_never_written_to(optimiser):
    """One rank runs ahead, steps alone, and comes back to the others' sums."""
    first, second, third = three(optimiser)
    sums = [total(n) for n in range(5)]
    first.step(sums[0], of=3)
    first.step(sums[1], of=3)  # in place: nobody shares it yet
    second.step(sums[0], of=3)
    third.step(sums[0], of=3)
    assert second.vector is third.vector is not first.vector
    kept = second.vector.clone()
    third.step(sums[4], of=3)
    assert torch.equal(second.vector, kept)
    for each in sums[1:3]:
        second.step(each, of=3)
    assert torch.equal(first.weights, alone(optimiser, *sums[:2]))
    assert torch.equal(second.weights, alone(optimiser, *sums[:3]))
    assert torch.equal(third.weights, alone(optimiser, sums[0], sums[4]))


def test_a_forgetful_rank_does_not_take_the_others_momentum():
    first, second, _ = three(optimiser := OPTIMISERS["momentum"])
    same = total(0)
    for each in (first, second):
        each.step(same, of=3)
    assert first.vector is second.vector
    second.reset_optimiser()
    start, later = first.weights, total(1)
    first.step(later, of=3)
    second.step(later, of=3)
    assert torch.equal(second.weights, alone(optimiser, later, start=start))
    assert not torch.equal(first.weights, second.weights)


def test_running_statistics_that_average_all_alike_depend_on_the_version():
    world = VirtualWorld(2, Cluster())
    body = Body(nn.Sequential(nn.BatchNorm1d(4, momentum=None)), shared=True)
    first, second = (
        Replica(body, lambda model, batch: batch, Shard([[]], 0), comm, Sgd(lr=0.1))
        for comm in world.comms
    )
    start, same = first.weights, torch.ones(17)
    first.load(start, version=9)
    second.load(start, version=1)
    first.step(same)
    second.step(same)
    assert not torch.equal(first.weights, second.weights)
    torch.testing.assert_close(first.weights[8:12], torch.full((4,), 0.1))
    torch.testing.assert_close(second.weights[8:12], torch.full((4,), 0.5))


def test_the_memory_of_a_step_keeps_no_vector_alive():
    first, second, third = three(OPTIMISERS["plain"])
    gradient = total(0)
    first.step(gradient, of=3)
    step = first.body.last_step
    assert step is not None
    del gradient, second, third
    assert step.start[2]() is None
    first.load(torch.ones(36))
    assert step.end[0]() is None


# -- who waits ------------------------------------------------------------------------------


@pytest.mark.parametrize("spec", ["", "servers=2", "mode=mixed,group=2", "mode=sync,backup=1"])
@every_optimiser
def test_who_waits_for_a_server_holds_no_weights(spec, optimiser, monkeypatch):
    run = small_run(
        f"parameter-server:{spec}", 6, minibatch=4, optimiser=optimiser, stop=Stop(epochs=1)
    )
    gone: list[int] = []
    let_go = Replica.let_go

    def watched(replica):
        let_go(replica)
        gone.append(replica.comm.rank)
        assert replica.vector is replica.body.nowhere

    monkeypatch.setattr(Replica, "let_go", watched)
    alone = [weights_digest(replica.vector) for replica in replicas_of(run)]
    assert set(gone) == ({0, 2, 4} if "mixed" in spec else set(range(6)))  # leaders push
    monkeypatch.setattr(Replica, "let_go", lambda replica: None)
    assert [weights_digest(replica.vector) for replica in replicas_of(run)] == alone


QUICK, SLOW = 1e12, 1e4  # bytes a second: a reply arrives before the next step, or long after it


@pytest.mark.parametrize("bandwidth", [QUICK, SLOW])
@pytest.mark.parametrize("spec", ["", "servers=2", "mode=sync", "damp=staleness"])
@every_optimiser
def test_weights_on_loan_are_stepped_in_place_when_they_are_back(
    spec, bandwidth, optimiser, monkeypatch
):
    """Whoever keeps them instead ends with the same bits."""
    run = small_run(
        f"parameter-server:{spec}", 6, minibatch=4, optimiser=optimiser, stop=Stop(epochs=1),
        cluster=Cluster(bandwidth=bandwidth, merge_bandwidth=1e6),
    )  # fmt: skip
    is_held = Part._is_held.fget
    held: list[bool] = []
    monkeypatch.setattr(
        Part, "_is_held", property(lambda part: held.append(is_held(part)) or held[-1])
    )
    lent = [weights_digest(replica.vector) for replica in replicas_of(run)]
    if bandwidth == QUICK:
        assert sum(held) < len(held) / 2  # the first step leaves what all ranks began with
    elif spec != "mode=sync":
        assert sum(held) > len(held) / 2
    monkeypatch.setattr(Part, "loan", Part.weights)
    assert [weights_digest(replica.vector) for replica in replicas_of(run)] == lent


# -- what a simulation holds ------------------------------------------------------------------


def vectors_held(spec, workers, monkeypatch, **changes):
    """The most vectors of the model's length that were there at once, beside those that last."""
    run = small_run(
        spec, workers, task=Quadratic(inputs=1000, train=12 * workers), minibatch=4,
        stop=Stop(epochs=1), **changes,
    )  # fmt: skip
    counts: list[int] = []
    forward = Replica.forward

    def counted(replica, batch):
        if replica.comm.rank in (workers // 2, workers - 1):
            # Views of one vector are one; gradients by parameter are smaller.
            storages = {
                tensor.untyped_storage().data_ptr()
                for tensor in gc.get_objects()
                if type(tensor) is torch.Tensor and tensor.numel() == replica.layout.numel
            }
            counts.append(len(storages))
        return forward(replica, batch)

    monkeypatch.setattr(Replica, "forward", counted)
    replicas_of(run)
    return max(counts)


@pytest.mark.parametrize("bucket_bytes", [0, 1])
@pytest.mark.parametrize("per_host", [1, 4])
def test_gradients_that_have_been_added_are_let_go(per_host, bucket_bytes, monkeypatch):
    """Workers that step alike take the memory of a few, however many they are."""
    cluster = Cluster(per_host=per_host)
    held = vectors_held("all-reduce", 32, monkeypatch, cluster=cluster, bucket_bytes=bucket_bytes)
    assert held <= 10


def test_who_waits_for_an_earlier_rank_is_held(monkeypatch):
    """The control: where the first rank comes last, all gradients wait for it."""
    cluster = Cluster(paces=(50.0,))
    assert vectors_held("all-reduce", 20, monkeypatch, cluster=cluster, bucket_bytes=0) >= 20


@pytest.mark.parametrize("spec", ["averaging:period=2", "ring", "parameter-server"])
def test_memory_goes_by_versions_where_workers_go_apart(spec, monkeypatch):
    """A version of the weights for each, and a gradient that waits, but no more than that."""
    held = vectors_held(spec, 16, monkeypatch)
    assert 16 <= held <= 3 * 16
