"""Natural gradients: held to dense algebra, the same on every path, and each worker's own."""

from __future__ import annotations

import copy
import json
import math
import pickle
from dataclasses import replace

import pytest
import torch
from helpers import Pairs, Quadratic, play, play_from, small_run
from hypothesis import given
from hypothesis import strategies as some
from real import plan
from test_replica import a_replica
from test_resume import digests, kill_and_resume
from torch import nn
from torch.nn.functional import cross_entropy, unfold

from regatta import runs
from regatta.benchmarks.ng_sgd import ng_sgd
from regatta.benchmarks.world import Network
from regatta.config import Checkpointing, Run, Stop, assign, component, from_json, to_json
from regatta.data.order import Order
from regatta.folders import Plan
from regatta.learn import direct, natural
from regatta.learn.fisher import Fisher, _righted
from regatta.learn.natural import Natural, Plain
from regatta.learn.optimisers import Sgd
from regatta.tasks.vectors import Vectors


def numbers(*shape, seed=0, dtype=torch.float64):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=dtype)


def uneven(rows, dim, seed=0, dtype=torch.float64):
    """Some directions are far stronger than others, and not along the axes."""
    turn = torch.linalg.qr(numbers(dim, dim, seed=99))[0]
    strengths = torch.logspace(1, -1, dim, dtype=torch.float64)
    return ((numbers(rows, dim, seed=seed) * strengths) @ turn).to(dtype)


# -- one side of a layer ----------------------------------------------------------------------


class Dense:
    """The same estimate as whole matrices: every step as the paper defines it, none shortened."""

    def __init__(self, dim, rank, alpha, history):
        self.dim, self.alpha, self.history = dim, alpha, history
        self.basis = torch.zeros(rank, dim, dtype=torch.float64)
        for row in range(rank):
            places = list(range(row, dim, rank))
            values = [1.1] + [1.0] * (len(places) - 1)
            self.basis[row, places] = torch.tensor(values, dtype=torch.float64)
        self.basis /= self.basis.norm(dim=1, keepdim=True)
        self.strengths = torch.full((rank,), 1e-10, dtype=torch.float64)
        self.rest = 1e-10

    @property
    def matrix(self):
        low_rank = self.basis.t() @ self.strengths.diag() @ self.basis
        return low_rank + self.rest * torch.eye(self.dim, dtype=torch.float64)

    def precondition(self, rows):
        smoothing = self.alpha * self.matrix.trace() / self.dim
        smoothed = self.matrix + smoothing * torch.eye(self.dim, dtype=torch.float64)
        fitted = torch.linalg.solve(smoothed, rows.t()).t()
        return fitted * (rows.norm() / fitted.norm())

    def take_in(self, rows):
        eta = min(0.9, 1 - math.exp(-len(rows) / self.history))
        target = (1 - eta) * self.matrix + eta / len(rows) * rows.t() @ rows
        images = self.basis @ target
        squares, vectors = torch.linalg.eigh(images @ images.t())
        squares, vectors = squares.flip(0), vectors.flip(1)
        roots = squares.clamp_min((self.rest * (1 - eta)) ** 2).sqrt()
        self.basis = (vectors / roots).t() @ images
        least = max(1e-10, 5e-4 * roots.max().item())
        rest = (target.trace() - roots.sum()) / (self.dim - len(roots))
        self.rest = max(rest.item(), least)
        self.strengths = (roots - self.rest).clamp_min(least)


@pytest.mark.parametrize("factor", [1.0, 32.0])
@pytest.mark.parametrize(("dim", "rank"), [(2, 1), (5, 2), (12, 4), (12, 11)])
def test_it_is_the_inverse_of_the_dense_estimate(dim, rank, factor):
    """To 1e-6 of the largest number, over 30 minibatches, the ones that take nothing in too."""
    fisher, dense = Fisher(dim, rank, period=4), Dense(dim, rank, 4.0, 2000.0)
    for call in range(30):
        rows = uneven(32, dim, seed=call)
        if call == 0:
            for _ in range(3):
                dense.take_in(rows * factor)
        wanted = dense.precondition(rows)
        is_due = call < 10 or call % 4 == 0
        assert fisher.is_due is is_due
        if is_due:
            dense.take_in(rows * factor)
        found = fisher.precondition(rows, factor)
        assert found.ones is None
        torch.testing.assert_close(
            found.rows * found.scale, wanted, rtol=0, atol=1e-6 * wanted.abs().max().item()
        )
    assert fisher.calls == 30


def test_it_has_something_to_do():
    fisher, rows = Fisher(12, 4), uneven(32, 12)
    found = fisher.precondition(rows)
    assert (found.rows * found.scale - rows).norm() > 0.2 * rows.norm()


def test_few_rows_are_passed_over_once():
    fisher, dense = Fisher(12, 4), Dense(12, 4, 4.0, 2000.0)
    rows = uneven(4, 12)
    dense.take_in(rows)
    found = fisher.precondition(rows)
    torch.testing.assert_close(found.rows * found.scale, dense.precondition(rows))


def test_a_column_of_ones_need_not_be_there():
    with_ones, without = Fisher(6, 3, has_ones=True), Fisher(7, 3)
    for call in range(12):
        rows = uneven(16, 6, seed=call)
        found = with_ones.precondition(rows)
        wanted = without.precondition(torch.cat([rows, torch.ones(16, 1)], 1))
        together = torch.cat([found.rows, found.ones.unsqueeze(1)], 1) * found.scale
        torch.testing.assert_close(together, wanted.rows * wanted.scale)


def test_a_mean_is_known_as_its_sum_is():
    """Rows a thousandth as large, with the factor, are fitted alike and leave the same behind."""
    small, large = Fisher(12, 4), Fisher(12, 4)
    for call in range(5):
        rows = uneven(32, 12, seed=call) * 1e-4
        found, wanted = small.precondition(rows / 1024, 1024.0), large.precondition(rows)
        torch.testing.assert_close(found.rows * found.scale * 1024, wanted.rows * wanted.scale)
    torch.testing.assert_close(small.state()[0], large.state()[0])


@given(
    rows=some.integers(1, 70),
    dim=some.integers(1, 40),
    rank=some.integers(1, 45),
    size=some.sampled_from([1e-12, 1e-3, 1.0, 1e3, 1e12]),
    has_ones=some.booleans(),
)
def test_the_norm_is_kept(rows, dim, rank, size, has_ones):
    fisher = Fisher(dim, rank, has_ones)
    assert fisher.rank < max(2, fisher.dim)
    for call in range(3):
        given_rows = uneven(rows, dim, seed=call, dtype=torch.float32) * size
        found = fisher.precondition(given_rows)
        ones = [] if found.ones is None else [found.ones.double()]
        whole = torch.cat([found.rows.double().reshape(-1), *ones]).norm() * found.scale
        before = (given_rows.double().square().sum() + rows * has_ones).sqrt()
        assert abs(whole / before - 1) < 1e-5


def deficient(rows, dim):
    return numbers(rows, 1, dtype=torch.float32) @ numbers(1, dim, seed=1, dtype=torch.float32)


@pytest.mark.parametrize("has_ones", [False, True])
@pytest.mark.parametrize(
    "make",
    [
        lambda: torch.zeros(8, 6),
        lambda: torch.ones(8, 6),
        lambda: torch.full((8, 6), 1e-30),
        lambda: torch.full((8, 6), 1e15),
        lambda: torch.eye(8, 6) * 1e-12,
        lambda: numbers(1, 6, dtype=torch.float32),
        lambda: deficient(8, 6),
        lambda: deficient(8, 6) * 1e-9,
        lambda: numbers(8, 1, dtype=torch.float32),
        lambda: numbers(8, 2, dtype=torch.float32),
        lambda: torch.zeros(0, 6),
    ],
)
def test_odd_rows_are_survived(make, has_ones):
    """Many times, after ordinary rows and before them."""
    rows = make()
    fisher = Fisher(rows.shape[1], 3, has_ones)
    ordinary = numbers(8, rows.shape[1], seed=3, dtype=torch.float32)
    for each in [rows] * 40 + [ordinary] * 3 + [rows] * 40 + [ordinary]:
        found = fisher.precondition(each)
        assert found.rows.shape == each.shape
        assert torch.isfinite(found.rows).all()
        assert math.isfinite(found.scale)
        norm = (found.rows * found.scale).norm()
        if has_ones:
            norm = torch.hypot(norm, (found.ones * found.scale).norm())
            torch.testing.assert_close(norm, (each.square().sum() + len(each)).sqrt())
        else:
            torch.testing.assert_close(norm, each.norm())


def test_a_single_column_stays_as_it_is():
    fisher, rows = Fisher(1, 20), numbers(8, 1)
    found = fisher.precondition(rows)
    assert found.rows is rows
    assert found.scale == 1.0


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf, 3e38])
def test_rows_without_numbers_come_back_and_leave_nothing_behind(bad):
    fisher = Fisher(6, 3, has_ones=True)
    spoilt = numbers(8, 6, seed=4, dtype=torch.float32)
    spoilt[2, 3] = bad
    for _ in range(2):  # as the first rows, and later
        before = copy.deepcopy(fisher.state())
        found = fisher.precondition(spoilt)
        assert found.rows is spoilt
        assert found.scale == 1.0
        assert torch.equal(found.ones, torch.ones(8))
        tensors, counts = fisher.state()
        assert counts == before[1]
        assert all(torch.equal(tensors[name], before[0][name]) for name in tensors)
        fisher.precondition(numbers(8, 6, dtype=torch.float32))
    assert fisher.calls == 2


def test_directions_stay_orthonormal_for_a_thousand_updates():
    """In single precision, on data that are eight orders of magnitude apart and change in size."""
    fisher = Fisher(30, 10, period=1)
    unit = torch.eye(10, dtype=torch.float64)
    strengths = torch.logspace(-4, 4, 30)
    for call in range(1000):
        if call % 100 == 50:
            rows = deficient(16, 30)
        else:
            rows = numbers(16, 30, seed=call, dtype=torch.float32) * strengths
        fisher.precondition(rows * 10 ** (2 * math.sin(call)))
        off = (fisher.basis @ fisher.basis.t() - unit).abs().max()
        assert off < 2e-3, call


def test_directions_that_lean_are_righted():
    straight = torch.linalg.qr(numbers(20, 4))[0].t()
    shares = torch.tensor([0.9, 0.5, 0.2, 0.1], dtype=torch.float64)
    lengths = shares.sqrt().unsqueeze(1)
    leaning = straight + 0.05 * numbers(4, 20)  # Cholesky's case
    fallen = straight.clone()
    fallen[3] = fallen[2] + 1e-9 * fallen[3]  # Gram and Schmidt's
    lost = straight.clone()
    lost[1] = 0.0
    for basis in (leaning, fallen, lost):
        righted = _righted(basis * lengths, shares) / lengths
        unit = torch.eye(4, dtype=torch.float64)
        torch.testing.assert_close(righted @ righted.t(), unit)
        torch.testing.assert_close(righted[0], basis[0] / basis[0].norm())
    kept = straight * lengths
    assert _righted(kept, shares) is kept


@pytest.mark.parametrize("period", [1, 3, 4])
def test_the_first_ten_calls_take_in_and_then_one_in_a_period(period):
    fisher, moved = Fisher(6, 2, period=period), []
    for call in range(26):
        before = fisher.state()[0].get("directions")
        fisher.precondition(uneven(8, 6, seed=call))
        if fisher.state()[0]["directions"] is not before:
            moved.append(call)
    assert moved == [call for call in range(26) if call < 10 or call % period == 0]


# -- layers -------------------------------------------------------------------------------------

HOW = Natural(rank_in=3, rank_out=4, period=2, history=100.0)


def fitted_by_hand(fishers, inputs, derivatives):
    """The product of both sides' fitted rows, with a one beside every row of inputs."""
    into, out = fishers
    rows = into.precondition(torch.cat([inputs, inputs.new_ones(len(inputs), 1)], 1))
    fitted = out.precondition(derivatives, factor=len(derivatives))
    whole = (fitted.rows * fitted.scale).t() @ (rows.rows * rows.scale)
    return whole[:, :-1], whole[:, -1]


def by_hand(inputs, outputs):
    in_rank, out_rank = min(3, (inputs + 1) // 2), min(4, (outputs + 1) // 2)
    return Fisher(inputs + 1, in_rank, period=2, history=100.0), Fisher(
        outputs, out_rank, period=2, history=100.0
    )


def mean_square(model, inputs):
    return model(inputs).square().mean()


def natural_model(make, how=HOW):
    torch.manual_seed(1)
    model = make().double()
    preconditioner = how.preconditioner(model)
    natural.take_up(preconditioner)
    return model, preconditioner


@pytest.fixture(autouse=True)
def nobody_present():
    yield
    natural.take_up(None)


@pytest.mark.parametrize("shape", [(16, 6), (4, 3, 6), (6,)])
def test_a_linear_layers_gradient_is_the_product_of_fitted_rows(shape):
    model, _ = natural_model(lambda: nn.Linear(6, 5))
    plain = nn.Linear(6, 5).double()
    plain.load_state_dict(model.state_dict())
    fishers = by_hand(6, 5)
    for call in range(14):
        inputs = uneven(math.prod(shape) // 6, 6, seed=call).view(shape).requires_grad_()
        weight, bias, into = torch.autograd.grad(
            mean_square(model, inputs), [model.weight, model.bias, inputs]
        )
        output = plain(inputs)
        derivatives, of_inputs = torch.autograd.grad(output.square().mean(), [output, inputs])
        rows = inputs.detach().reshape(-1, 6), derivatives.reshape(-1, 5)
        wanted = fitted_by_hand(fishers, *rows)
        torch.testing.assert_close((weight, bias), wanted)
        torch.testing.assert_close(into, of_inputs)


@pytest.mark.parametrize(
    ("make", "kernel", "how"),
    [
        (lambda: nn.Conv1d(3, 4, 5, stride=2), (1, 5), {"stride": (1, 2)}),
        (lambda: nn.Conv1d(3, 4, 3, padding=1, dilation=2), (1, 3),
         {"padding": (0, 1), "dilation": (1, 2)}),
        (lambda: nn.Conv2d(3, 4, (3, 2), padding=(1, 0), stride=(1, 2)), (3, 2),
         {"padding": (1, 0), "stride": (1, 2)}),
    ],
)  # fmt: skip
def test_a_convolutions_gradient_is_the_same_on_unfolded_patches(make, kernel, how):
    model, _ = natural_model(make)
    plain = make().double()
    plain.load_state_dict(model.state_dict())
    fishers = by_hand(3 * math.prod(kernel), 4)
    shape = (2, 3, 12) if isinstance(model, nn.Conv1d) else (2, 3, 6, 7)
    for call in range(12):
        inputs = numbers(*shape, seed=call).requires_grad_()
        weight, bias, into = torch.autograd.grad(
            mean_square(model, inputs), [model.weight, model.bias, inputs]
        )
        output = plain(inputs)
        derivatives, of_inputs = torch.autograd.grad(output.square().mean(), [output, inputs])
        image = inputs.detach() if len(shape) == 4 else inputs.detach().unsqueeze(2)
        patches = unfold(image, kernel, **how).transpose(1, 2).reshape(-1, 3 * math.prod(kernel))
        rows = derivatives.flatten(2).transpose(1, 2).reshape(-1, 4)
        wanted = fitted_by_hand(fishers, patches, rows)
        torch.testing.assert_close((weight.flatten(1), bias), wanted)
        torch.testing.assert_close(into, of_inputs)


@pytest.mark.parametrize(
    "make",
    [
        lambda: nn.Conv1d(2, 4, 4, padding="same"),
        lambda: nn.Conv1d(2, 4, 3, padding=2, padding_mode="circular"),
        lambda: nn.Conv2d(2, 4, (2, 3), padding="same", padding_mode="reflect"),
        lambda: nn.Conv2d(2, 4, 3, padding=1),
        lambda: nn.Conv2d(2, 4, 3, bias=False),
        lambda: nn.Linear(9, 4, bias=False),
    ],
)
def test_outputs_and_derivatives_of_inputs_are_those_of_a_plain_layer(make):
    model, _ = natural_model(make)
    plain = make().double()
    plain.load_state_dict(model.state_dict())
    shape = (3, 9) if isinstance(model, nn.Linear) else (3, 2, *[9] * (model.weight.dim() - 2))
    inputs = numbers(*shape).requires_grad_()
    assert torch.equal(model(inputs), plain(inputs))
    (found,) = torch.autograd.grad(mean_square(model, inputs), inputs)
    (wanted,) = torch.autograd.grad(mean_square(plain, inputs), inputs)
    torch.testing.assert_close(found, wanted)
    (fitted,) = torch.autograd.grad(mean_square(model, inputs), model.weight)
    (ordinary,) = torch.autograd.grad(mean_square(plain, inputs), plain.weight)
    assert fitted.shape == ordinary.shape
    assert not torch.allclose(fitted, ordinary)
    assert (fitted * ordinary).sum() > 0, "it does not lead downhill"


def gradients(model, inputs):
    parameters = [p for p in model.parameters() if p.requires_grad]
    return torch.autograd.grad(mean_square(model, inputs), parameters)


def frozen(name):
    def make():
        layer = nn.Linear(6, 5)
        getattr(layer, name).requires_grad_(False)
        return layer

    return make


class OfOnesOwn(nn.Linear):
    def forward(self, inputs):
        return 2 * super().forward(inputs)


@pytest.mark.parametrize(
    ("make", "shape"),
    [
        (lambda: nn.Conv1d(4, 6, 3, groups=2), (2, 4, 8)),
        (lambda: nn.Conv3d(1, 2, 2), (2, 1, 3, 3, 3)),
        (lambda: nn.LayerNorm(6), (4, 6)),
        (lambda: nn.Conv1d(4, 6, 3), (4, 8)),  # without a batch
        (lambda: OfOnesOwn(6, 5), (8, 6)),
        (frozen("weight"), (8, 6)),
    ],
)
def test_other_layers_have_their_ordinary_gradients(make, shape):
    model, _ = natural_model(make)
    plain = make().double()
    plain.load_state_dict(model.state_dict())
    inputs = numbers(*shape)
    torch.testing.assert_close(gradients(model, inputs), gradients(plain, inputs))


def test_a_frozen_bias_is_no_part_of_it():
    model, _ = natural_model(frozen("bias"))
    without, _ = natural_model(lambda: nn.Linear(6, 5, bias=False))
    without.weight.data.copy_(model.weight)
    inputs = numbers(8, 6)
    natural.take_up(HOW.preconditioner(model))
    (found,) = gradients(model, inputs)
    natural.take_up(HOW.preconditioner(without))
    (wanted,) = torch.autograd.grad((without(inputs) + model.bias).square().mean(), without.weight)
    torch.testing.assert_close(found, wanted)


def test_nothing_is_learnt_where_no_gradient_is_wanted_or_nobody_computes():
    model, preconditioner = natural_model(lambda: nn.Linear(6, 5))
    (sides,) = preconditioner.layers.values()
    with torch.no_grad():
        model(numbers(8, 6))
    assert sides.inputs.calls == sides.outputs.calls == 0
    natural.take_up(None)
    mean_square(model, numbers(8, 6)).backward()
    assert sides.inputs.calls == 0
    natural.take_up(preconditioner)
    mean_square(model, numbers(8, 6)).backward()
    assert sides.inputs.calls == sides.outputs.calls == 1


def test_second_derivatives_are_refused():
    model, _ = natural_model(lambda: nn.Linear(6, 5))
    inputs = numbers(8, 6).requires_grad_()
    (slope,) = torch.autograd.grad(model(inputs).square().sum(), inputs, create_graph=True)
    with pytest.raises(RuntimeError, match="once_differentiable"):
        slope.square().sum().backward()


def test_a_model_can_be_copied_and_pickled():
    model, preconditioner = natural_model(lambda: nn.Sequential(nn.Linear(6, 5), nn.Tanh()))
    (sides,) = preconditioner.layers.values()
    inputs = numbers(8, 6)
    for other in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        mean_square(other, inputs).backward()
        assert torch.equal(other(inputs), model(inputs))
    assert sides.inputs.calls == 0, "a stranger's gradients are none of ours"


def test_what_is_not_a_number_stays_visible():
    model, _ = natural_model(lambda: nn.Linear(6, 5))
    inputs = numbers(8, 6)
    inputs[0, 0] = math.nan
    assert all(g.isnan().any() for g in gradients(model, inputs))
    assert all(g.isfinite().all() for g in gradients(model, numbers(8, 6)))


# -- the same on every path ---------------------------------------------------------------------


def deep():
    torch.manual_seed(4)
    return nn.Sequential(
        nn.Linear(4, 16), nn.Tanh(), nn.Linear(16, 16), nn.Tanh(), nn.Linear(16, 1)
    )


def a_batch(seed, samples=8):
    inputs = numbers(samples, 4, seed=seed, dtype=torch.float32) * torch.logspace(1, -1, 4)
    return inputs, inputs.sum(1, keepdim=True)


def natural_replica(**named):
    return a_replica(deep(), Sgd(lr=0.05), gradient=HOW, **named)


def test_direct_and_scattered_gradients_are_alike(monkeypatch):
    monkeypatch.setattr(direct, "LARGE", 0)
    monkeypatch.setattr(direct, "FEWEST", 0)
    written, scattered, plain = (
        natural_replica(),
        natural_replica(),
        a_replica(deep(), Sgd(lr=0.05)),
    )
    for turn in range(14):
        batch = a_batch(turn)
        written.step(written._gradient(batch))
        scattered.step(scattered._scattered(batch))
        plain.step(plain._gradient(batch))
    assert torch.equal(written.vector, scattered.vector)
    assert not torch.equal(written.vector, plain.vector)
    assert all("forward" in vars(layer) for layer in plain.model[::2]), "the control is direct"


@pytest.mark.parametrize("strategy", ["all-reduce", "parameter-server", "gossip"])
def test_buckets_and_one_sum_come_to_the_same(strategy):
    ways = [
        play(small_run(strategy, 2, task=Quadratic(inputs=6), gradient=HOW, bucket_bytes=nbytes))
        for nbytes in (0, 8)
    ]
    assert ways[0].digests == ways[1].digests
    plain = play(small_run(strategy, 2, task=Quadratic(inputs=6)))
    assert plain.digests != ways[0].digests


class Deep(Quadratic):
    """Least squares by a network of several layers."""

    name = "deep"

    def model(self):
        return deep()

    def open(self) -> Pairs:
        inputs = numbers(240, 4, dtype=torch.float32) * torch.logspace(1, -1, 4)
        return Pairs(inputs, torch.tanh(inputs).sum(1, keepdim=True))


@pytest.mark.parametrize("schedule", ["1f1b", "gpipe"])
def test_stages_learn_as_the_whole_does(schedule):
    """Two stages, two minibatches a turn: each layer meets the same rows in the same order."""
    run = small_run(f"pipeline:schedule={schedule}", 2, task=Deep(), gradient=HOW)
    piped = play(replace(run, stop=Stop(epochs=0.2)))
    turns = piped.ranks[0].turns
    data, order = Deep().open(), Order(240, 4, 2, run.seed)
    replica = a_replica(deep(), Sgd(lr=0.05), loss=data.loss, gradient=HOW)
    for turn in range(turns):
        both = [
            replica._gradient(data.batch(order.indices(worker, turn))).clone() for worker in (0, 1)
        ]
        replica.step(both[0] + both[1], of=2)
    assert turns > 4
    wanted = data.evaluate(replica.model)["loss"]
    assert piped.losses[-1] == pytest.approx(wanted, rel=1e-4)


def test_micro_batches_are_minibatches_to_it():
    run = small_run("pipeline:micro=2", 2, task=Deep(), gradient=HOW)
    assert all(math.isfinite(loss) for loss in play(run).losses)


# -- each worker's own --------------------------------------------------------------------------


def learnt(replica):
    return replica._preconditioner.state()


def test_what_was_learnt_is_saved_and_restored():
    first, second = natural_replica(), natural_replica()
    for turn in range(5):
        first.step(first._gradient(a_batch(turn)))
    tensors, counts = copy.deepcopy(first.state())
    second.restore(tensors, json.loads(json.dumps(counts)))
    for turn in range(5, 16):
        for each in (first, second):
            each.step(each._gradient(a_batch(turn)))
    assert torch.equal(first.vector, second.vector)
    assert any(name.startswith("preconditioner.0/in") for name in tensors)


def test_it_is_forgotten_with_the_optimisers_memory():
    replica, fresh = natural_replica(), natural_replica()
    for turn in range(12):
        replica.step(replica._gradient(a_batch(turn)))
    replica.reset_optimiser()
    fresh.load(replica.weights)
    assert torch.equal(replica._gradient(a_batch(20)), fresh._gradient(a_batch(20)))


@pytest.mark.parametrize("options", ["period=3", "period=3,state=reset", "period=3,drop=1"])
def test_a_resumed_run_ends_as_if_undisturbed(tmp_path, options):
    run = small_run(
        f"averaging:{options}", 3, task=Deep(), gradient=HOW,
        checkpointing=Checkpointing(every=0.5, keep=10),
    )  # fmt: skip
    ended, _ = runs.simulate(run, Plan("teacher", run, tmp_path))
    whole = [rank.digest for rank in ended]
    again = play_from(run, resume_from=tmp_path / "checkpoints" / "000002")
    assert again.digests == whole
    plain = play_from(
        replace(run, gradient=Plain()), resume_from=tmp_path / "checkpoints" / "000002"
    )
    assert plain.digests != whole


def test_workers_that_start_afresh_differ_from_those_that_remember():
    kept, reset = (
        play(small_run(f"averaging:period=3,state={state}", 3, task=Deep(), gradient=HOW))
        for state in ("local", "reset")
    )
    assert kept.digests != reset.digests


def test_a_timing_only_run_takes_no_notice():
    run = small_run("averaging", 3, task=Deep())
    timed, plain = (
        play(replace(run, gradient=how), timing_only=True).ranks for how in (HOW, Plain())
    )
    assert timed == plain


@pytest.mark.real
@pytest.mark.parametrize("spec", ["averaging:period=3", "all-reduce", "pipeline:micro=2"])
def test_replay_is_identical(spec, tmp_path):
    """Processes have models of their own, virtual ranks share one."""
    made = plan(tmp_path / "run", spec, 3, ("gradient=natural:rank_out=4", "stop.epochs=1"))
    runs.train(made)
    assert runs.replay(made.folder).identical


@pytest.mark.real
def test_a_killed_run_goes_on_exactly(tmp_path, monkeypatch):
    often = ("checkpointing.every=0.25", "stop.epochs=1.5", "gradient=natural:rank_out=4")
    monkeypatch.setattr("test_resume.OFTEN", often)
    runs.train(plan(tmp_path / "whole", "averaging", 2, often))
    kill_and_resume(tmp_path / "broken", tmp_path, "averaging", 2, turn=25)
    assert digests(tmp_path / "broken") == digests(tmp_path / "whole")


# -- configuration ------------------------------------------------------------------------------


def test_it_can_be_set_stored_and_read_back():
    run = assign(Run(), ["gradient=natural", "gradient.period=8"])
    assert run.gradient == Natural(period=8)
    assert from_json(json.loads(json.dumps(to_json(run))), Run()) == run
    assert from_json(to_json(Run()), run).gradient == Plain()
    assert component("gradient", "natural:rank_in=5,alpha=2") == Natural(rank_in=5, alpha=2.0)
    stored = to_json(Run())
    del stored["gradient"]  # of a run from before there was a choice
    assert from_json(stored, Run()).gradient == Plain()


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (["gradient=natrual"], r"unknown gradient 'natrual': did you mean natural\?"),
        (["gradient=natural:rank=3"], "unknown natural option 'rank'"),
        (["gradient.period=8"], "unknown part of gradient.period"),
        (["gradient=natural:period=0"], "natural: period must be 1 or more, not 0"),
        (["gradient=natural:rank_in=0"], "natural: rank_in must be 1 or more"),
        (["gradient=natural:alpha=0"], "natural: alpha must be more than 0"),
        (["gradient=natural:history=nan"], "natural: history must be more than 0"),
    ],
)
def test_mistakes_are_named(settings, message):
    with pytest.raises(ValueError, match=message):
        assign(Run(), settings)


# -- what it is good for ------------------------------------------------------------------------


def steps_to(loss, how, rate):
    """Until a linear classifier hears what is told softly beside loud noise in two directions."""
    soft = numbers(1024, 64, dtype=torch.float32)
    noise = numbers(1024, 2, seed=1) @ numbers(2, 64, seed=2) * 4
    inputs = soft + noise.float()
    labels = (soft @ numbers(64, 5, seed=3, dtype=torch.float32)).argmax(1)
    torch.manual_seed(5)
    replica = a_replica(
        nn.Linear(64, 5), Sgd(lr=rate), gradient=how,
        loss=lambda model, batch: cross_entropy(model(batch[0]), batch[1]),
    )  # fmt: skip
    for step in range(1, 301):
        picked = torch.randperm(1024, generator=torch.Generator().manual_seed(step))[:64]
        replica.step(replica._scattered((inputs[picked], labels[picked])))
        if step % 5 == 0:
            replica.bind()
            with torch.no_grad():
                if cross_entropy(replica.model(inputs), labels) <= loss:
                    return step
    return math.inf


def test_it_needs_far_fewer_steps_where_directions_are_uneven():
    """Each at the best of five rates; plain descent cannot go faster than the noise allows."""
    rates = (0.003, 0.01, 0.03, 0.1, 0.3)
    natural_steps = min(steps_to(1.2, Natural(), rate) for rate in rates)
    plain_steps = min(steps_to(1.2, Plain(), rate) for rate in rates)
    assert plain_steps < math.inf, "the control gets there too"
    assert natural_steps < 0.4 * plain_steps, (natural_steps, plain_steps)


@pytest.mark.real
def test_the_benchmark_times_both_sides():
    tiny = Network("tiny", Vectors(sizes=(8, 16, 4), train=256), 32, steps=4, repeats=2)
    (case,) = ng_sgd(2, (tiny,)).cases
    assert len(case.ratios) == 2
    assert all(0 < ratio < math.inf for ratio in case.ratios)
    assert case.at_most, "less is better"
