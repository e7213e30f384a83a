"""Which samples a worker sees: everyone its own, nothing twice an epoch."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

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


# -- minibatches of their own in the first epochs -------------------------------------------


@st.composite
def orders(draw, most_early=4):
    workers = draw(st.integers(1, 4))
    sizes = st.integers(1, 9)
    early = tuple(draw(st.lists(sizes, max_size=most_early)))
    minibatch = draw(sizes)
    samples = draw(st.integers(workers * max(*early, minibatch, 1), 120))
    return Order(samples, minibatch, workers, seed=5, early=early)


def batches_in(order, epoch):
    """By hand: of one worker."""
    sizes = (*order.early, order.minibatch)
    return order.samples // (sizes[min(epoch, len(order.early))] * order.workers)


@given(orders())
def test_early_epochs_have_their_minibatches_and_nothing_twice(order):
    turn = 0
    for epoch in range(len(order.early) + 2):
        wanted = order.early[epoch] if epoch < len(order.early) else order.minibatch
        seen = []
        for _ in range(batches_in(order, epoch)):
            assert order.minibatch_at(turn) == wanted
            batches = [order.indices(worker, turn) for worker in range(order.workers)]
            assert {len(batch) for batch in batches} == {wanted}
            seen += torch.cat(batches).tolist()
            turn += 1
        assert len(set(seen)) == len(seen)
        assert order.samples - len(seen) < wanted * order.workers, "no batch more would fit"


@given(orders(), st.integers(0, 300))
def test_turns_and_epochs_are_each_others_inverse(order, turn):
    assert order.turns(order.epochs(turn)) == turn
    assert order.epochs(turn) < order.epochs(turn + 0.5) < order.epochs(turn + 1)


@given(orders())
def test_whole_epochs_begin_where_their_batches_do(order):
    begin = 0
    for epoch in range(len(order.early) + 3):
        assert order.turns(epoch) == begin
        assert order.epochs(begin) == epoch
        assert abs(order.turns(epoch + 0.5) - (begin + batches_in(order, epoch) / 2)) <= 0.5
        begin += batches_in(order, epoch)


@given(orders(), st.integers(0, 60), st.data())
def test_samples_are_those_of_the_batches(order, turns, data):
    lengths = [len(order.indices(w, t)) for t in range(turns) for w in range(order.workers)]
    some = data.draw(st.integers(0, len(lengths)))  # also in the middle of a turn
    assert order.samples_in(some) == sum(lengths[:some])
    assert order.turns(order.epochs_of(sum(lengths))) == turns


@given(orders(most_early=0), st.integers(0, 10_000), st.floats(0, 500))
def test_without_early_minibatches_all_is_as_simple_as_it_was(order, number, epochs):
    batches = order.samples // (order.minibatch * order.workers)
    assert order.turns(epochs) == round(epochs * batches)
    assert order.epochs(number) == number / batches
    assert order.samples_in(number) == number * order.minibatch
    assert order.epochs_of(number) == number / (batches * order.minibatch * order.workers)


def test_early_minibatches_that_are_too_large_are_refused():
    with pytest.raises(ValueError, match="2 workers x minibatch 16 need more than the 30 training"):
        Order(30, 4, 2, seed=0, early=(4, 16))
