"""Which samples a worker sees: everyone its own, nothing twice an epoch."""

import pytest
import torch

from regatta.data.order import Order, mixed_seed


def epoch_of(order, worker, epoch):
    first = epoch * order.batches_per_epoch
    turns = range(first, first + order.batches_per_epoch)
    return torch.cat([order.indices(worker, turn) for turn in turns]).tolist()


@pytest.mark.parametrize(
    ("samples", "minibatch", "workers"), [(24, 4, 1), (24, 4, 3), (103, 5, 4), (7, 1, 7)]
)
@pytest.mark.parametrize("epoch", [0, 1, 5])
def test_nothing_comes_twice_an_epoch(samples, minibatch, workers, epoch):
    order = Order(samples, minibatch, workers, seed=3)
    shares = [epoch_of(order, worker, epoch) for worker in range(workers)]
    everything = [index for share in shares for index in share]
    assert len(set(everything)) == len(everything)
    assert set(everything) <= set(range(samples))
    assert {len(share) for share in shares} == {samples // (minibatch * workers) * minibatch}


def test_an_epoch_that_divides_evenly_holds_everything():
    order = Order(24, 4, 3, seed=3)
    together = [index for worker in range(3) for index in epoch_of(order, worker, 2)]
    assert sorted(together) == list(range(24))


def test_every_batch_is_full():
    order = Order(103, 5, 4, seed=0)
    assert order.batches_per_epoch == 5
    assert {len(order.indices(w, t)) for w in range(4) for t in range(12)} == {5}


def test_epochs_and_seeds_differ_and_repeat():
    order = Order(100, 10, 1, seed=1)
    assert epoch_of(order, 0, 0) != epoch_of(order, 0, 1)
    assert epoch_of(order, 0, 0) != epoch_of(Order(100, 10, 1, seed=2), 0, 0)
    assert epoch_of(order, 0, 1) == epoch_of(Order(100, 10, 1, seed=1), 0, 1)


def test_an_order_leaves_the_global_generator_alone():
    torch.manual_seed(5)
    wanted = torch.rand(3)
    torch.manual_seed(5)
    Order(1000, 10, 1, seed=987).indices(0, 0)
    assert torch.equal(torch.rand(3), wanted)


def test_too_many_workers_are_refused_with_the_remedy():
    with pytest.raises(ValueError, match="3 workers x minibatch 10 need more than the 29 training"):
        Order(29, 10, 3, seed=0)
    with pytest.raises(ValueError, match="use fewer workers or a smaller minibatch"):
        Order(0, 1, 1, seed=0)
    assert Order(30, 10, 3, seed=0).batches_per_epoch == 1


def test_seeds_are_mixed_well():
    near = [mixed_seed(a, b) for a in range(30) for b in range(30)]
    assert len(set(near)) == 900
    assert mixed_seed(1, 2) != mixed_seed(2, 1)
    assert mixed_seed(1) != mixed_seed(1, 0)
    assert all(0 <= seed < 2**63 for seed in near)
    ones = [seed.bit_count() for seed in near]
    assert 30 < sum(ones) / len(ones) < 33  # about half of 63 bits
