"""A model as a flat vector: the same mathematics as plain PyTorch, and values that stay values."""

from __future__ import annotations

import math
from itertools import pairwise

import pytest
import torch
from helpers import ROUND, Crew, Normalised, Quadratic, Shard, play, small_run
from torch import nn

from regatta.cluster import Cluster
from regatta.comm import Load
from regatta.config import Stop
from regatta.learn.body import Body
from regatta.learn.buckets import cut
from regatta.learn.layout import LARGE, Layout, num_vector_bytes
from regatta.learn.optimisers import Adam, Sgd
from regatta.learn.replica import Replica
from regatta.strategies.all_reduce import AllReduce
from regatta.strategies.single import Single
from regatta.worlds.virtual import VirtualWorld


def lonely_comm():
    return VirtualWorld(1, Cluster()).comms[0]


def square_loss(model, batch):
    inputs, targets = batch
    return (model(inputs) - targets).square().mean()


def a_batch(seed=0, samples=8, inputs=4):
    generator = torch.Generator().manual_seed(seed)
    return (
        torch.randn(samples, inputs, generator=generator),
        torch.randn(samples, 1, generator=generator),
    )


def a_model(*extra):
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(4, 6), *extra, nn.Tanh(), nn.Linear(6, 1))


def a_replica(model=None, optimiser=None, loss=square_loss, **named):
    model = a_model() if model is None else model
    return Replica(
        Body(model), loss, Shard([[]], 0), lonely_comm(), optimiser or Sgd(lr=0.1), **named
    )


# -- layout ---------------------------------------------------------------------------------


def test_a_vector_is_parameters_buffers_and_a_count():
    model = nn.Sequential(nn.Linear(2, 3, bias=False), nn.BatchNorm1d(3))
    nn.init.constant_(model[0].weight, 5.0)
    vector = Layout(model).initial()
    # weight, then BatchNorm's weight and bias, its running mean and variance, and the count
    assert vector.tolist() == [5.0] * 6 + [1.0] * 3 + [0.0] * 3 + [0.0] * 3 + [1.0] * 3 + [1.0]
    assert vector.nbytes == num_vector_bytes(model)


def test_parameters_are_views_into_the_vector():
    model = a_model()
    layout = Layout(model)
    vector = layout.initial()
    before = [p.detach().clone() for p in model.parameters()]
    layout.point(vector)
    assert layout.points_to(vector)
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), before, strict=True))
    vector.add_(1.0)
    assert all(torch.equal(a, b + 1) for a, b in zip(model.parameters(), before, strict=True))


def test_lost_views_are_noticed():
    model = a_model()
    layout = Layout(model)
    vector = layout.initial()
    layout.point(vector)
    model[0].bias.data = model[0].bias.data.clone()
    assert not layout.points_to(vector)


class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder = nn.Linear(4, 4, bias=False)
        self.decoder = nn.Linear(4, 4, bias=False)
        self.decoder.weight = self.encoder.weight
        self.head = nn.Linear(4, 1)

    def forward(self, inputs):
        return self.head(self.decoder(torch.tanh(self.encoder(inputs))))


@pytest.mark.parametrize("bucket_bytes", [1, 2**20])
def test_tied_parameters_are_one_and_get_one_gradient(bucket_bytes):
    torch.manual_seed(0)
    plain = Tied()
    square_loss(plain, a_batch()).backward()
    torch.manual_seed(0)
    crew = Crew(AllReduce(), 1, Tied, square_loss, Sgd(lr=1.0), bucket_bytes=bucket_bytes)
    model = crew.replicas[0].model
    model.load_state_dict(plain.state_dict())
    crew.replicas[0].load(Layout(plain).initial())
    assert crew.holder.weights.numel() == 16 + 4 + 1 + 1
    crew.play([[a_batch()]])
    answer = crew.holder.named_answer()
    assert torch.equal(answer["encoder.weight"], plain.encoder.weight - plain.encoder.weight.grad)
    assert torch.equal(answer["encoder.weight"], answer["decoder.weight"])


def test_frozen_parameters_stay_outside():
    model = a_model()
    model[0].weight.requires_grad_(False)
    frozen = model[0].weight.detach().clone()
    crew = Crew(Single(), 1, lambda: model, square_loss, Sgd(lr=0.1))
    assert crew.holder.weights.numel() == 6 + 6 + 1 + 1
    assert num_vector_bytes(model) == 4 * crew.holder.weights.numel()
    crew.play([[a_batch(seed) for seed in range(3)]])
    assert torch.equal(crew.holder.named_answer()["0.weight"], frozen)
    assert not torch.equal(crew.holder.named_answer()["0.bias"], torch.zeros(6))


def test_mixed_types_are_refused():
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2).double())
    with pytest.raises(ValueError, match="must share one dtype and device"):
        Layout(model)


def test_a_model_without_parameters_is_refused():
    with pytest.raises(ValueError, match="no parameters to learn"):
        Layout(nn.Tanh())


def test_a_run_of_a_model_without_parameters_is_refused_likewise():
    class Nothing(Quadratic):
        def model(self):
            return nn.Tanh()

    with pytest.raises(ValueError, match="no parameters to learn"):
        play(small_run("single", task=Nothing()))


def test_integer_buffers_stay_local():
    model = nn.Sequential(nn.BatchNorm1d(4), nn.Linear(4, 1))
    crew = Crew(Single(), 1, lambda: model, square_loss, Sgd(lr=0.1))
    crew.play([[a_batch(seed) for seed in range(3)]])
    assert crew.holder.named_answer()["0.num_batches_tracked"].item() == 3


# -- buckets --------------------------------------------------------------------------------


@pytest.mark.parametrize("most", [1, 3, 5, 8, 12, 100])
@pytest.mark.parametrize("sizes", [[4], [1, 2, 3], [5, 5, 5, 5], [100, 1, 1, 1], [1, 1, 100]])
def test_buckets_cover_the_vector_from_its_end(sizes, most):
    numel = sum(sizes) + 3  # two of buffers, one count
    slices = cut(sizes, numel, most)
    assert slices[0][1] == numel
    assert slices[-1][0] == 0
    assert all(left[0] == right[1] for left, right in pairwise(slices))
    edges = {sum(sizes[:n]) for n in range(len(sizes))}
    for start, stop in slices:
        assert start in edges
        parameters = sum(start <= edge < stop for edge in edges)
        assert stop - start <= most or parameters == 1


def test_buckets_as_written_down():
    assert cut([10, 20, 30], 61, most=31) == [(30, 61), (0, 30)]
    assert cut([10, 20, 30], 61, most=30) == [(30, 61), (0, 30)]
    assert cut([10, 20, 30], 61, most=29) == [(30, 61), (10, 30), (0, 10)]
    assert cut([10, 20, 30], 61, most=61) == [(0, 61)]


def trained_by_buckets(bucket_bytes, make_model=a_model, workers=3, turns=4, cluster=ROUND):
    batches = [[a_batch(10 * w + t) for t in range(turns)] for w in range(workers)]
    optimiser = Sgd(lr=0.1, momentum=0.9)
    crew = Crew(AllReduce(), workers, make_model, square_loss, optimiser, cluster, bucket_bytes)
    return crew.play(batches)


@pytest.mark.parametrize("bucket_bytes", [1, 30, 60, 100])
def test_many_buckets_give_the_same_bits_as_one(bucket_bytes):
    def with_batch_norm():
        return a_model(nn.BatchNorm1d(6))

    whole = trained_by_buckets(2**20, with_batch_norm)
    pieces = trained_by_buckets(bucket_bytes, with_batch_norm)
    assert pieces.exchanged[0] > whole.exchanged[0]  # there were several indeed
    assert pieces.exchanged[1] == whole.exchanged[1]
    assert pieces.final == whole.final


def test_buckets_overlap_backward():
    """Long messages started inside backward end earlier than those that wait for its end."""
    cluster = Cluster(sample_seconds=1.0, latency=0.0, bandwidth=1000.0)
    pieces, whole = (trained_by_buckets(size, cluster=cluster) for size in (1, 2**20))
    assert pieces.world.now < whole.world.now


@pytest.mark.parametrize(
    ("bandwidth", "pays"), [(1000.0, True), (math.inf, False)], ids=["slow network", "no network"]
)
def test_overlap_is_chosen_where_it_pays(bandwidth, pays, monkeypatch):
    monkeypatch.setattr("regatta.learn.buckets.BUCKET_BYTES", 30)
    # Without a network both ways take as long, and then one sum it is.
    cluster = Cluster(sample_seconds=1.0, latency=0.0, bandwidth=bandwidth)
    chosen = trained_by_buckets(-1, turns=20, cluster=cluster)
    assert [replica.counters["overlaps"] for replica in chosen.replicas] == [int(pays)] * 3
    assert chosen.final == trained_by_buckets(2**20, turns=20).final, "either way the same bits"


def test_a_vector_of_one_bucket_needs_no_trial():
    chosen = trained_by_buckets(-1, turns=20)
    assert not any(replica.counters for replica in chosen.replicas)
    assert chosen.exchanged == trained_by_buckets(0, turns=20).exchanged


class Unused(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.idle, self.last = nn.Linear(4, 3), nn.Linear(3, 3), nn.Linear(3, 1)

    def forward(self, inputs):
        return self.last(self.first(inputs))


@pytest.mark.parametrize("bucket_bytes", [1, 2**20])
def test_an_unused_parameter_gets_zero(bucket_bytes):
    crew = Crew(AllReduce(), 2, Unused, square_loss, Sgd(lr=0.1), bucket_bytes=bucket_bytes)
    before = crew.holder.named_answer()
    crew.play([[a_batch(seed)] for seed in range(2)])
    after = crew.holder.named_answer()
    assert torch.equal(before["idle.weight"], after["idle.weight"])
    assert not torch.equal(before["first.weight"], after["first.weight"])


def test_hooks_do_not_pile_up_over_segments():
    crew = trained_by_buckets(1, workers=1, turns=1)
    for _ in range(3):
        crew.play([[a_batch()]])
    parameter = next(crew.holder.model.parameters())
    assert len(parameter._post_accumulate_grad_hooks) == 1


# -- optimisers -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("optimiser", "plain"),
    [
        (Sgd(lr=0.1), lambda p: torch.optim.SGD(p, lr=0.1)),
        (Sgd(lr=0.1, momentum=0.9), lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9)),
        (
            Sgd(lr=0.1, momentum=0.9, weight_decay=0.01, nesterov=True),
            lambda p: torch.optim.SGD(
                p, lr=0.1, momentum=0.9, weight_decay=0.01, nesterov=True
            ),
        ),
        (Adam(lr=0.01), lambda p: torch.optim.AdamW(p, lr=0.01, weight_decay=0.0)),
        (
            Adam(lr=0.01, beta1=0.8, beta2=0.99, eps=1e-3, weight_decay=0.1),
            lambda p: torch.optim.AdamW(
                p, lr=0.01, betas=(0.8, 0.99), eps=1e-3, weight_decay=0.1
            ),
        ),
    ],
)  # fmt: skip
def test_a_step_of_the_flat_vector_is_that_of_each_parameter(optimiser, plain):
    model = a_model()
    optimizer = plain(model.parameters())
    for seed in range(5):
        optimizer.zero_grad()
        square_loss(model, a_batch(seed)).backward()
        optimizer.step()
    crew = Crew(Single(), 1, a_model, square_loss, optimiser)
    crew.play([[a_batch(seed) for seed in range(5)]])
    answer = crew.holder.named_answer()
    assert all(torch.equal(answer[name], p) for name, p in model.named_parameters())


# -- values ---------------------------------------------------------------------------------


def ones_like(vector):
    return torch.ones_like(vector)


def test_weights_handed_out_do_not_change():
    replica = a_replica()
    handed_out = replica.weights
    before = handed_out.clone()
    for _ in range(3):
        replica.step(ones_like(before))
        replica.bind()
    assert torch.equal(handed_out, before)
    assert not torch.equal(replica.weights, before)


def test_loading_adopts_without_writing():
    replica = a_replica()
    given = torch.full_like(replica.weights, 0.5)
    given[-1] = 1.0
    before = given.clone()
    replica.load(given, version=7)
    assert torch.equal(replica.weights, before)
    assert replica.version == 7
    for _ in range(2):
        replica.forward(a_batch())  # points the model at them
        replica.step(ones_like(before))
    assert torch.equal(given, before)
    assert (replica.steps, replica.version) == (2, 9)


def test_loaded_weights_are_what_forward_uses():
    """Through every turn of handing out, loading, stepping and binding."""
    replica = a_replica()
    handed_out = []
    for number in range(4):
        given = torch.full_like(replica.weights, 0.1 * number)
        replica.load(given)
        loss = replica.forward(a_batch()).item()
        reference = a_model()
        Layout(reference).point(given)
        assert loss == square_loss(reference, a_batch()).item()
        handed_out.append((replica.weights, given.clone()))
        replica.step(ones_like(given))
        replica.forward(a_batch())
    assert all(torch.equal(vector, copy) for vector, copy in handed_out)


def test_a_step_leaves_its_gradient_alone():
    replica = a_replica(optimiser=Sgd(lr=0.1, momentum=0.9, weight_decay=0.1))
    gradient = torch.ones_like(replica.weights)
    for _ in range(3):
        replica.step(gradient)
    assert torch.equal(gradient, torch.ones_like(gradient))


def test_ages_are_counted():
    replica = a_replica()
    for born in (0, 0, 2):
        replica.step(replica.nothing, born=born)
    replica.step(replica.nothing)  # of unknown age
    assert replica.comm.traffic.staleness == {0: 2, 1: 1}


# -- statistics -----------------------------------------------------------------------------


@pytest.mark.parametrize("momentum", [0.1, 0.5, 1.0, None])
def test_folded_observations_are_the_running_statistics_of_plain_batch_norm(momentum):
    task = Normalised(momentum=momentum)
    data = task.open()
    batches = [data.batch(slice(n, n + 16)) for n in range(0, 240, 16)]
    torch.manual_seed(3)  # as Crew does
    plain = task.model()
    optimizer = torch.optim.SGD(plain.parameters(), lr=0.01)
    for batch in batches:
        optimizer.zero_grad()
        data.loss(plain, batch).backward()
        optimizer.step()
    crew = Crew(Single(), 1, task.model, data.loss, Sgd(lr=0.01)).play([batches])
    answer = crew.holder.named_answer()
    for name, value in plain.state_dict().items():
        torch.testing.assert_close(answer[name], value, atol=1e-6, rtol=1e-6)


def test_evaluation_uses_the_statistics_and_does_not_change_them():
    task = Normalised()
    data = task.open()
    crew = Crew(Single(), 1, task.model, data.loss, Sgd(lr=0.01))
    crew.play([[data.batch(slice(n, n + 16)) for n in range(0, 240, 16)]])
    before = crew.holder.weights.clone()
    results = crew.holder.look(data.evaluate)
    again = task.model()
    again.load_state_dict(crew.holder.named_answer())
    assert results == data.evaluate(again.eval())
    assert torch.equal(crew.holder.weights, before)
    assert crew.holder.model.training


class MovingMean(nn.Module):
    """Puts a new tensor in its buffer's place, as many layers found in the wild do."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 1)
        self.register_buffer("mean", torch.zeros(4))

    def forward(self, inputs):
        self.mean = 0.5 * self.mean + 0.5 * inputs.detach().mean(0)
        return self.linear(inputs - self.mean)


def test_a_buffer_that_forward_replaces_travels_too():
    crew = Crew(AllReduce(), 2, MovingMean, square_loss, Sgd(lr=0.01))
    batches = [a_batch(seed) for seed in range(2)]
    crew.play([[batch] for batch in batches])
    # The mean of what the two workers observed, each half of its batch's mean.
    wanted = torch.stack([0.5 * inputs.mean(0) for inputs, _ in batches]).mean(0)
    torch.testing.assert_close(crew.holder.weights[5:9], wanted)


# -- what outlives the process ---------------------------------------------------------------


@pytest.mark.parametrize("optimiser", [Sgd(lr=0.1), Sgd(lr=0.1, momentum=0.9), Adam(lr=0.01)])
def test_a_restored_replica_goes_on_as_if_nothing_had_been(optimiser):
    def with_batch_norm():
        return a_model(nn.BatchNorm1d(6))

    first, later = [[a_batch(n) for n in range(start, start + 4)] for start in (0, 4)]
    crew = Crew(Single(), 1, with_batch_norm, square_loss, optimiser).play([first])
    crew.holder.slot("centre").fill_(3.0)
    tensors, numbers = crew.holder.state()
    tensors = {name: tensor.clone() for name, tensor in tensors.items()}  # as a file would
    crew.play([later])

    other = Crew(Single(), 1, with_batch_norm, square_loss, optimiser)
    other.holder.restore(tensors, numbers)
    assert (other.holder.turns, other.holder.steps, other.holder.version) == (4, 4, 4)
    assert torch.equal(other.holder.slot("centre"), torch.full_like(crew.holder.weights, 3.0))
    other.play([later])
    assert other.final == crew.final
    assert other.holder.named_answer()["1.num_batches_tracked"].item() == 8


def test_a_slot_starts_with_zeros_and_keeps_what_is_written():
    replica = a_replica()
    assert torch.equal(replica.slot("momentum"), replica.nothing)
    replica.slot("momentum").add_(1.0)
    assert replica.slot("momentum").sum() == replica.nothing.numel()


def test_a_checkpoint_of_another_model_is_refused():
    tensors, numbers = a_replica().state()
    other = a_replica(nn.Linear(4, 1))
    with pytest.raises(ValueError, match=r"38 numbers of torch\.float32, this one 6 of"):
        other.restore(tensors, numbers)


# -- chance ---------------------------------------------------------------------------------


def dropped(rank=0, seed=0, turn=0, disturb=False):
    """Which units a turn leaves out."""
    world = VirtualWorld(rank + 1, Cluster())
    model = nn.Sequential(nn.Linear(8, 64), nn.Dropout(0.5))
    nn.init.ones_(model[0].weight)
    left_out = []

    def loss(model, batch):
        left_out.append((model(batch) == 0).tolist())
        return model(batch).sum()

    comm = world.comms[rank]
    replica = Replica(Body(model), loss, Shard([[]], 0), comm, Sgd(), seed=seed)
    replica.turns = turn
    if disturb:
        torch.rand(100)
    replica.forward(torch.ones(1, 8))
    return left_out


def test_dropout_follows_seed_rank_and_turn_alone():
    assert dropped() == dropped(disturb=True)
    assert dropped() != dropped(seed=1)
    assert dropped() != dropped(rank=1)
    assert dropped() != dropped(turn=1)


def test_a_replica_charges_its_work():
    world = VirtualWorld(1, Cluster(sample_seconds=0.5))
    replica = Replica(Body(a_model()), square_loss, Shard([[a_batch()]], 0), world.comms[0], Sgd())
    assert replica.merging == Load(nbytes=replica.weights.nbytes)

    async def one_turn(comm):
        async for _ in replica:
            pass
        return comm.now()

    assert world.run(one_turn) == [0.5]
    assert replica.turns == 1


def test_seeds_shape_a_run():
    def digest(seed):
        return play(small_run("single", seed=seed, stop=Stop(epochs=0.2))).digests

    assert digest(0) == digest(0)
    assert digest(0) != digest(1)


def _odd_sized():
    """Its second weight matrix is large and follows a bias of 12 elements."""
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(8, 12), nn.ReLU(), nn.Linear(12, 8192), nn.Linear(8192, 3))


def test_large_parameters_begin_at_a_cache_line_and_gaps_stay_zero():
    model = _odd_sized()
    layout = Layout(model)
    begins = [layout.offset(number) for number in range(len(layout.parameters))]
    assert all(
        begin % 16 == 0
        for begin, p in zip(begins, layout.parameters, strict=True)
        if p.numel() >= LARGE
    )
    assert layout.num_parameters > sum(p.numel() for p in model.parameters()), "there is a gap"
    assert layout.nbytes == num_vector_bytes(model)
    initial = layout.initial()
    assert torch.equal(initial[begins[1] : begins[1] + 12], model[0].bias)
    gap = slice(begins[1] + 12, begins[2])
    assert torch.count_nonzero(initial[gap]) == 0
    gradients = [torch.ones_like(p) for p in layout.parameters]
    vector = layout.gradient(gradients, layout.empty().fill_(7.0))
    assert torch.count_nonzero(vector[gap]) == 0
    written = layout.empty().fill_(7.0)
    layout.gradient([None, None, *gradients[2:]], written, written={0, 1})
    assert torch.count_nonzero(written[gap]) == 0, "also where a layer has written by itself"


@pytest.mark.parametrize("stripes", [1, 2, 3, 7])
def test_rows_of_all_stripes_cover_a_vector_with_gaps(stripes):
    layout = Layout(_odd_sized())
    for number in range(stripes):
        stripe = layout.stripe(number, stripes)
        assert sum(rows * columns for rows, columns in stripe.matrices) == stripe.num_parameters


def test_who_loads_lets_go_of_the_weights_before():
    """Their memory is free for the next step; the model's layers look as they did."""
    replica = a_replica()
    parameters = list(replica.model.parameters())
    before, shapes = replica.weights, [p.shape for p in parameters]
    assert parameters[0].data_ptr() == before.data_ptr()
    replica.load(before.clone())
    here = range(before.data_ptr(), before.data_ptr() + before.nbytes)
    assert not any(p.data_ptr() in here for p in parameters)
    assert [p.shape for p in parameters] == shapes
    replica.bind()
    assert parameters[0].data_ptr() == replica.vector.data_ptr()
