"""Gradients that linear layers write themselves: the same bits, and only where nothing is lost."""

from __future__ import annotations

import copy
import pickle

import pytest
import torch
from helpers import Crew
from torch import nn
from torch.func import functional_call, vmap
from torch.nn.utils import parametrizations
from torch.utils.checkpoint import checkpoint

from regatta.learn import direct
from regatta.learn.direct import Direct
from regatta.learn.layout import Layout
from regatta.learn.optimisers import Sgd
from regatta.strategies.all_reduce import AllReduce
from regatta.strategies.single import Single


@pytest.fixture(autouse=True)
def small_layers_too(monkeypatch):
    monkeypatch.setattr(direct, "LARGE", 0)
    monkeypatch.setattr(direct, "FEWEST", 0)


def seeded(make):
    torch.manual_seed(1)
    return make()


def numbers(*shape, dtype=torch.float32):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(2), dtype=dtype)


def mean_square(model, inputs):
    return model(inputs).square().mean()


def ordinary_gradient(make, loss, inputs):
    model = seeded(make)
    parameters = [p for p in model.parameters() if p.requires_grad]
    gradients = torch.autograd.grad(loss(model, inputs), parameters, allow_unused=True)
    return [torch.zeros_like(p) if g is None else g
            for p, g in zip(parameters, gradients, strict=True)]  # fmt: skip


class Seen(Direct):
    """Counts what layers have written themselves."""

    def __init__(self, model):
        self.layout = Layout(model)
        self.writes = 0
        super().__init__(model, self.layout)

    def _write(self, *arguments):
        self.writes += 1
        super()._write(*arguments)

    def of(self, loss, model, inputs):
        out = torch.full((self.layout.numel,), torch.nan, dtype=self.layout.dtype)
        with self:
            return self.gradient(loss(model, inputs), out)


def check(make, loss, inputs, writes, exactly=True):
    """Twice, because nothing may be left over from the first time."""
    model = seeded(make)
    seen = Seen(model)
    wanted = ordinary_gradient(make, loss, inputs)
    for turn in (1, 2):
        vector = seen.of(loss, model, inputs)
        found = [seen.layout.view(vector, n) for n in range(len(seen.layout.rooms))]
        for ours, theirs in zip(found, wanted, strict=True):
            if exactly:
                assert torch.equal(ours, theirs)
            else:
                torch.testing.assert_close(ours, theirs)
        assert vector[-1] == 1
        assert seen.writes == turn * writes


def three_layers(bias=True, dtype=torch.float32):
    layers = nn.Linear(16, 32, bias), nn.Tanh(), nn.Linear(32, 48, bias), nn.Tanh()
    return nn.Sequential(*layers, nn.Linear(48, 5, bias)).to(dtype)


# -- the same bits --------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("shape", [(8, 16), (1, 16), (64, 16), (4, 6, 16), (2, 3, 4, 16), (16,)])
def test_gradients_have_the_bits_of_autograds(shape, bias, dtype):
    flat = len(shape) == 1 and not bias  # a vector without a bias is squeezed, not viewed
    writes = 0 if flat else 3
    make = lambda: three_layers(bias, dtype)  # noqa: E731
    check(make, mean_square, numbers(*shape, dtype=dtype), writes)


def test_also_of_large_layers_and_of_inputs_that_want_gradients():
    inputs = numbers(64, 300).requires_grad_()
    check(lambda: nn.Sequential(nn.Linear(300, 400), nn.Linear(400, 16)), mean_square, inputs, 2)


def test_transposed_inputs_get_ordinary_gradients():
    check(three_layers, mean_square, numbers(16, 8).t(), 2)  # the later layers' inputs are fresh


class Twice(nn.Module):
    """One layer applied three times, and one that is left out."""

    def __init__(self):
        super().__init__()
        self.again, self.idle, self.last = nn.Linear(16, 16), nn.Linear(16, 16), nn.Linear(16, 1)

    def forward(self, inputs):
        for _ in range(3):
            inputs = torch.tanh(self.again(inputs))
        return self.last(inputs)


def test_a_layer_used_several_times_gets_the_sum():
    check(Twice, mean_square, numbers(8, 16), 4)


def test_a_call_that_the_loss_does_not_depend_on_adds_nothing():
    def loss(model, inputs):
        model.again(inputs)
        model.idle(inputs)
        return mean_square(model, inputs)

    check(Twice, loss, numbers(8, 16), 4)


def test_other_layers_are_gathered_as_before():
    def make():
        return nn.Sequential(
            nn.BatchNorm1d(16), nn.Linear(16, 16), nn.BatchNorm1d(16), nn.Linear(16, 4), nn.PReLU()
        )

    check(make, mean_square, numbers(8, 16), 2)


# -- what is out of the ordinary -------------------------------------------------------------


def with_penalty(model, inputs):
    return mean_square(model, inputs) + 0.1 * model[2].weight.square().sum()


def with_penalty_on_a_bias(model, inputs):
    return mean_square(model, inputs) + model[0].bias.square().sum()


def with_steepness(model, inputs):
    """A penalty on the gradient itself: weights matter by a second way."""
    inputs = inputs.detach().requires_grad_()
    (slope,) = torch.autograd.grad(model(inputs).sum(), inputs, create_graph=True)
    return mean_square(model, inputs) + slope.square().sum()


def against_an_adversary(model, inputs):
    inputs = inputs.detach().requires_grad_()
    (slope,) = torch.autograd.grad(mean_square(model, inputs), inputs)
    return mean_square(model, inputs + 0.1 * slope.sign())


def after_an_inner_step(model, inputs):
    names = dict(model.named_parameters())
    slopes = torch.autograd.grad(mean_square(model, inputs), names.values(), create_graph=True)
    moved = {n: p - 0.1 * g for (n, p), g in zip(names.items(), slopes, strict=True)}
    return functional_call(model, moved, (inputs,)).square().mean()


def by_functional_call(model, inputs):
    halves = {name: p / 2 for name, p in model.named_parameters()}
    return functional_call(model, halves, (inputs,)).square().mean()


def by_vmap(model, inputs):
    return vmap(model)(inputs).square().mean()


def in_half_precision(model, inputs):
    with torch.autocast("cpu", torch.bfloat16):
        return model(inputs).float().square().mean()


def by_checkpoint(model, inputs):
    return checkpoint(model, inputs, use_reentrant=False).square().mean()


def with_a_hooked_weight(model, inputs):
    handle = model[2].weight.register_hook(lambda gradient: 2 * gradient)
    model.handles = [*getattr(model, "handles", []), handle]
    for old in model.handles[:-1]:
        old.remove()
    return mean_square(model, inputs)


def written_over(model, inputs):
    """The outputs, not the inputs: those are still needed."""
    hidden = model[0](inputs)
    hidden.mul_(2.0)
    return mean_square(model[2:], torch.tanh(hidden))


def through_a_sum(model, inputs):
    return model(inputs).sum()  # its gradient is one number, expanded


@pytest.mark.parametrize(
    ("loss", "writes"),
    [
        (with_penalty, 2), (with_penalty_on_a_bias, 2), (with_steepness, 0),
        (against_an_adversary, 3), (after_an_inner_step, 0), (by_functional_call, 0),
        (in_half_precision, 0), (by_checkpoint, 3), (with_a_hooked_weight, 2), (written_over, 3),
        (through_a_sum, 3),
    ],
)  # fmt: skip
def test_whatever_a_loss_does_the_gradient_is_autograds(loss, writes):
    check(three_layers, loss, numbers(8, 16), writes)


def test_transforms_of_functions_go_their_own_way():
    check(three_layers, by_vmap, numbers(8, 16), 0, exactly=False)


@pytest.mark.parametrize("shape", [(8, 16), (4, 6, 16)])
def test_outputs_written_over_are_no_trap(shape):
    def make():
        return nn.Sequential(nn.Linear(16, 32), nn.ReLU(inplace=True), nn.Linear(32, 4))

    model = seeded(make)
    seen = Seen(model)
    vector = seen.of(mean_square, model, numbers(*shape))
    wanted = ordinary_gradient(make, mean_square, numbers(*shape))
    assert torch.equal(vector[:-1], torch.cat([g.reshape(-1) for g in wanted]))


def test_inputs_written_over_are_an_error_as_ever():
    def loss(model, inputs):
        hidden = torch.tanh(model[0](inputs))
        outputs = model[2](hidden)
        hidden.add_(1.0)
        return outputs.square().mean()

    model = seeded(three_layers)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        Seen(model).of(loss, model, numbers(8, 16))


def test_a_backward_that_fails_leaves_nothing_behind():
    def no_loss(model, inputs):
        model(inputs)
        raise KeyError("bad batch")

    model = seeded(three_layers)
    seen = Seen(model)
    with pytest.raises(KeyError):
        seen.of(no_loss, model, numbers(8, 16))
    assert direct._noting is None


# -- which layers -----------------------------------------------------------------------------


class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.one, self.other, self.free = nn.Linear(16, 16), nn.Linear(16, 16), nn.Linear(16, 16)
        self.other.weight = self.one.weight

    def forward(self, inputs):
        return self.free(self.other(torch.tanh(self.one(inputs))))


class OfOnesOwn(nn.Linear):
    def forward(self, inputs):
        return 2 * super().forward(inputs)


def one_frozen():
    model = three_layers()
    model[2].weight.requires_grad_(False)
    return model


def one_computed():
    model = three_layers()
    parametrizations.weight_norm(model[2])
    return model


@pytest.mark.parametrize(
    ("make", "writes"),
    [
        (Tied, 1),
        (lambda: nn.Sequential(OfOnesOwn(16, 16), nn.Linear(16, 1)), 1),
        (one_frozen, 2),
        (one_computed, 2),
    ],
)
def test_only_plain_layers_that_share_nothing_are_taken(make, writes):
    check(make, mean_square, numbers(8, 16), writes)


def taken(model):
    Seen(model)
    return ["forward" in vars(layer) for layer in model if isinstance(layer, nn.Linear)]


def test_layers_whose_place_no_cache_line_begins_with_are_left_alone():
    # The second begins after 51 numbers, the third after 115, the fourth after 400.
    layers = nn.Linear(16, 3), nn.Linear(3, 16), nn.Linear(16, 17, False), nn.Linear(17, 16)
    assert taken(nn.Sequential(*layers)) == [True, False, False, False]
    assert taken(nn.Sequential(nn.Linear(16, 16), nn.Linear(16, 16))) == [True, True]


def test_small_layers_are_left_alone_and_small_models_altogether(monkeypatch):
    monkeypatch.setattr(direct, "LARGE", 512)
    assert taken(three_layers()) == [True, True, False]
    monkeypatch.setattr(direct, "FEWEST", 512 + 1536)
    assert taken(three_layers()) == [True, True, False]
    monkeypatch.setattr(direct, "FEWEST", 512 + 1536 + 1)
    assert taken(three_layers()) == [False, False, False]


# -- the model itself --------------------------------------------------------------------------


def test_a_model_can_be_copied_pickled_and_hooked():
    model = seeded(three_layers)
    names = list(model.state_dict())
    seen = Seen(model)
    inputs = numbers(8, 16)
    for other in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        assert list(other.state_dict()) == names
        assert torch.equal(other(inputs), model(inputs))
        nn.init.zeros_(other[4].weight)  # its own, not the first one's
        assert not torch.equal(other(inputs), model(inputs))
        with seen:  # a stranger's calls are none of ours
            mean_square(other, inputs).backward()
    came = []
    model[0].register_forward_hook(lambda module, inputs, output: came.append(output.shape))
    seen.of(mean_square, model, inputs)
    assert came == [(8, 32)]


def test_direct_scattered_and_in_buckets_a_crew_has_the_same_bits():
    batches = [[numbers(8, 16) + n for n in range(3)], [numbers(8, 16) - n for n in range(3)]]

    def final(strategy, workers, bucket_bytes):
        crew = Crew(strategy, workers, three_layers, mean_square, Sgd(lr=0.1),
                    bucket_bytes=bucket_bytes)  # fmt: skip
        crew.play(batches[:workers])
        is_direct = isinstance(strategy, AllReduce) and bucket_bytes == 2**20
        assert ("forward" in vars(crew.holder.model[0])) is is_direct
        return crew.final

    assert final(AllReduce(), 2, 2**20) == final(AllReduce(), 2, 100)
    assert final(Single(), 1, 2**20) == final(AllReduce(), 1, 2**20)
