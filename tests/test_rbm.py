"""Pretraining: exact small machines, learning, the guard, and interruptions that leave no trace."""

import itertools
import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import asdict, replace
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from regatta.learn.machine import Machine
from regatta.learn.rbm import Pretrained, Rbm, load, pretrain
from regatta.models import dnn, initialise

# -- one step, held to sums over all states ---------------------------------------------------

VISIBLE, HIDDEN = 3, 2
BINARY_ROWS = torch.tensor(list(itertools.product((0.0, 1.0), repeat=VISIBLE)))
HIDDEN_STATES = torch.tensor(list(itertools.product((0.0, 1.0), repeat=HIDDEN)))


def tiny(seed: int, gaussian: bool, minibatch: int) -> Machine:
    draws = torch.Generator().manual_seed(seed)
    machine = Machine(VISIBLE, HIDDEN, minibatch, gaussian)
    for tensor in machine.weights().values():
        tensor.normal_(0, 0.7, generator=draws)
    return machine


def expected_cd(machine: Machine, rows: torch.Tensor) -> dict[str, torch.Tensor]:
    """The mean CD-1 update of each row: a sum over every state of the hidden units."""
    weight, hidden_bias, visible_bias = (t.double() for t in machine.weights().values())
    total = {name: torch.zeros_like(t).double() for name, t in machine.weights().items()}
    for row in rows.double():
        hidden = torch.sigmoid(weight @ row + hidden_bias)
        for state in HIDDEN_STATES.double():
            chance = torch.prod(torch.where(state == 1, hidden, 1 - hidden))
            again = state @ weight + visible_bias
            again = again if machine.gaussian else torch.sigmoid(again)
            hidden_again = torch.sigmoid(weight @ again + hidden_bias)
            total["weight"] += chance * (hidden.outer(row) - hidden_again.outer(again))
            total["hidden_bias"] += chance * (hidden - hidden_again)
            total["visible_bias"] += chance * (row - again)
    return {name: t / len(rows) for name, t in total.items()}


def exact_gradient(machine: Machine, rows: torch.Tensor) -> dict[str, torch.Tensor]:
    """Of the mean log-likelihood of binary rows: everything enumerated."""
    weights = [t.double().requires_grad_() for t in machine.weights().values()]
    weight, hidden_bias, visible_bias = weights

    def unnormalised(visible: torch.Tensor) -> torch.Tensor:
        energies = (
            visible @ weight.T @ HIDDEN_STATES.double().T
            + HIDDEN_STATES.double() @ hidden_bias
            + (visible @ visible_bias)[:, None]
        )
        return torch.logsumexp(energies, 1)

    partition = torch.logsumexp(unnormalised(BINARY_ROWS.double()), 0)
    (unnormalised(rows.double()).mean() - partition).backward()
    return {name: t.grad for name, t in zip(machine.weights(), weights, strict=True)}


@pytest.mark.parametrize("gaussian", [False, True])
@pytest.mark.parametrize("seed", range(3))
def test_a_step_is_the_expected_update_over_many_draws(seed, gaussian):
    copies = 20_000
    draws = torch.Generator().manual_seed(100 + seed)
    rows = torch.randn(4, VISIBLE, generator=draws) if gaussian else BINARY_ROWS[[0, 3, 5, 6]]
    machine = tiny(seed, gaussian, copies * len(rows))
    before = {name: tensor.clone() for name, tensor in machine.weights().items()}
    expected = expected_cd(machine, rows)
    machine.rows.copy_(rows.repeat(copies, 1))
    machine.learn(1.0, 0.0, 0.0, draws)
    assert machine.guards == 0
    for name, tensor in machine.weights().items():
        assert torch.allclose((tensor - before[name]).double(), expected[name], atol=0.01), name


@pytest.mark.parametrize("seed", range(8))
def test_the_expected_update_climbs_the_likelihood(seed):
    machine = tiny(seed, False, 1)
    draws = torch.Generator().manual_seed(seed)
    rows = BINARY_ROWS[torch.randint(len(BINARY_ROWS), (3,), generator=draws)]
    update, gradient = expected_cd(machine, rows), exact_gradient(machine, rows)
    assert sum((update[name] * gradient[name]).sum() for name in update) > 0


def test_free_energies_are_those_of_enumeration():
    binary, rows = tiny(5, False, 1), BINARY_ROWS
    energy = [binary.free_energy(row[None]) for row in rows]
    weight, hidden_bias, visible_bias = binary.weights().values()
    exact = torch.logsumexp(
        rows @ weight.T @ HIDDEN_STATES.T
        + HIDDEN_STATES @ hidden_bias
        + (rows @ visible_bias)[:, None],
        1,
    )
    assert torch.allclose(-torch.tensor(energy), exact, atol=1e-5)
    gaussian = tiny(5, True, 1)
    for row in torch.randn(4, VISIBLE, generator=torch.Generator().manual_seed(0)):
        weight, hidden_bias, visible_bias = gaussian.weights().values()
        quadratic = (row - visible_bias).square().sum() / 2
        states = HIDDEN_STATES @ (weight @ row + hidden_bias)
        exact = quadratic - torch.logsumexp(states, 0)
        assert gaussian.free_energy(row[None]) == pytest.approx(exact.item(), abs=1e-5)


@pytest.mark.parametrize("gaussian", [False, True])
def test_steps_are_those_of_a_plain_loop(gaussian):
    """Momentum and l2 as Kaldi has them, over several steps."""
    draws, plain_draws = (torch.Generator().manual_seed(1) for _ in range(2))
    machine = Machine(6, 5, 16, gaussian)
    rows = torch.rand(10, 16, 6, generator=torch.Generator().manual_seed(2))
    machine.begin(rows[0], torch.Generator().manual_seed(3))
    w, c, b = (t.clone() for t in machine.weights().values())
    dw, dc, db = (torch.zeros_like(t) for t in (w, c, b))
    rate, momentum, l2 = 0.3, 0.6, 0.05
    for v in rows:
        machine.rows.copy_(v)
        error = machine.learn(rate, momentum, l2, draws)
        h = torch.sigmoid(v @ w.T + c)
        again = (torch.rand(16, 5, generator=plain_draws) < h).float() @ w + b
        again = again if gaussian else torch.sigmoid(again)
        h_again = torch.sigmoid(again @ w.T + c)
        dw = momentum * dw + rate * ((h.T @ v - h_again.T @ again) / 16 - l2 * w)
        dc = momentum * dc + rate * (h - h_again).mean(0)
        db = momentum * db + rate * (v - again).mean(0)
        assert error == pytest.approx((v - again).square().mean().item(), rel=1e-4)
        w, c, b = w + dw, c + dc, b + db
    assert machine.guards == 0
    for ours, plain in zip(machine.weights().values(), (w, c, b), strict=True):
        assert torch.allclose(ours, plain, atol=1e-5)


# -- learning ---------------------------------------------------------------------------------


def factors(samples: int, seed: int = 0, visible: int = 20) -> torch.Tensor:
    """A few binary causes and noise: mean 0, variance 1."""
    mixing = torch.randn(5, visible, generator=torch.Generator().manual_seed(77))
    draws = torch.Generator().manual_seed(seed)
    causes = (torch.rand(samples, 5, generator=draws) < 0.5).float()
    rows = causes @ mixing + 0.3 * torch.randn(samples, visible, generator=draws)
    return (rows - rows.mean(0)) / rows.std(0)


QUICK = Rbm(epochs_gaussian=6, epochs=6, minibatch=32)
SIZES = (20, 16, 12)
ROWS = factors(512)


def run(
    folder: Path, rows: torch.Tensor = ROWS, sizes=SIZES, rbm: Rbm = QUICK, **words
) -> Pretrained:
    words = {"identity": "factors"} | words
    return pretrain(sizes, lambda at: rows[at], len(rows), rbm, folder, **words)


def test_reconstructions_come_nearer_to_structured_data(tmp_path):
    rbm = replace(QUICK, epochs_gaussian=20)
    gaussian, binary = run(tmp_path, factors(2048), rbm=rbm, held_out=factors(256, 1)).records
    for record, share in ((gaussian, 0.2), (binary, 0.1)):
        assert record.end_error < share * record.start_error
        assert record.epoch_errors[-1] < record.epoch_errors[0]
        assert len(record.free_energy_gaps) == len(record.epoch_errors)
        assert record.guards == 0
    assert abs(gaussian.free_energy_gaps[-1]) < 0.5  # as probable as what was learnt from


def test_the_guard_bounds_weights_under_a_silly_rate(tmp_path):
    silly = replace(QUICK, lr_gaussian=3.0)
    record, _ = run(tmp_path / "silly", rbm=silly).records
    assert record.guards > 0
    assert record.lr_scale == pytest.approx(0.9**record.guards)
    assert record.weight_norm < 100
    told = json.loads((tmp_path / "silly" / "rbm.json").read_text())
    assert told["layers"][0]["guards"] == record.guards
    assert run(tmp_path / "sound").records[0].guards == 0


def test_the_guard_scales_weights_forgets_momentum_and_skips_the_step():
    machine = Machine(8, 6, 16, gaussian=True)
    draws = torch.Generator().manual_seed(0)
    machine.rows.normal_(generator=draws)
    machine.weight.fill_(0.01)
    machine.learn(0.1, 0.5, 0.0, draws)
    assert any(t.count_nonzero() for t in machine.increments().values())
    machine.weight.copy_(5.0 * torch.randn(6, 8, generator=draws))
    before = machine.weight.clone()
    machine.learn(0.1, 0.5, 0.0, draws)
    assert machine.guards == 1
    assert machine.lr_scale == 0.9
    assert not any(t.count_nonzero() for t in machine.increments().values())
    ratio = machine.weight / before
    assert torch.allclose(ratio, ratio[0, 0].expand_as(ratio))
    assert ratio[0, 0] < 0.5
    machine.learn(0.1, 0.5, 0.0, draws)
    assert machine.guards == 1  # once was enough


def test_a_wide_first_layer_is_set_right_once_and_learns(tmp_path):
    rows = factors(1024, visible=40)
    wide = replace(QUICK, epochs_gaussian=2)
    (record,) = run(tmp_path, rows, (40, 1600), wide).records
    assert record.guards == 1  # 1600 x 0.1^2 / 2 = 8 times the variance of the data
    assert record.end_error < 0.2 < 2 < record.start_error


def test_l2_pulls_weights_to_zero(tmp_path):
    norms = []
    for l2 in (0.0, 0.05, 0.5):
        records = run(tmp_path / str(l2), rbm=replace(QUICK, l2=l2)).records
        norms.append([record.weight_norm for record in records])
    for loose, pulled in itertools.pairwise(norms):
        assert all(b < a for a, b in zip(loose, pulled, strict=True))


def clusters(samples: int, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Eight classes of four clusters each in 20 dimensions, seen in 100 with much noise."""
    world = torch.Generator().manual_seed(1234)
    centres = torch.randn(32, 20, generator=world)
    seen = torch.randn(20, 100, generator=world) / 20**0.5
    draws = torch.Generator().manual_seed(seed)
    which = torch.randint(32, (samples,), generator=draws)
    inner = centres[which] + 0.3 * torch.randn(samples, 20, generator=draws)
    rows = inner @ seen + 0.5 * torch.randn(samples, 100, generator=draws)
    return (rows - rows.mean(0)) / rows.std(0), which % 8


def test_a_deep_sigmoid_network_learns_from_pretrained_weights_alone(tmp_path):
    """What it is for: equal steps afterwards, and only the pretrained network leaves chance."""
    rows, labels = clusters(4096, 1)
    test_rows, test_labels = clusters(1024, 2)
    sizes = (100, 48, 48, 48, 48, 48)
    pretrained = run(tmp_path, rows, sizes, Rbm(epochs_gaussian=8, epochs=6))
    accuracies = {}
    for how in ("rbm", "xavier", "torch"):
        torch.manual_seed(0)
        model = dnn((*sizes, 8), "sigmoid")
        if how == "rbm":
            load(model, pretrained)
        else:
            initialise(model, how)
        sgd = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        for batch in torch.randperm(4096).repeat(5).split(64):
            sgd.zero_grad()
            nn.functional.cross_entropy(model(rows[batch]), labels[batch]).backward()
            sgd.step()
        right = model(test_rows).argmax(1) == test_labels
        accuracies[how] = right.float().mean().item()
    assert accuracies["rbm"] > 0.9
    assert max(accuracies["xavier"], accuracies["torch"]) < 0.5


# -- the schedule -----------------------------------------------------------------------------


def test_momentum_rises_in_forty_steps_over_its_share_of_a_layer():
    rbm = Rbm(ramp=0.5)
    rising = [rbm.momentum_at(step, 8000) for step in range(8000)]
    assert rising[0] == 0.5
    assert rising[100] == pytest.approx(0.51)
    assert rising[99] == rising[0]
    assert len(set(rising)) == 41
    assert rising[3999] < rising[4000] == rising[-1] == 0.9
    assert Rbm(ramp=0.0).momentum_at(0, 10) == 0.9


def test_the_learning_rate_is_less_by_what_momentum_adds(tmp_path, monkeypatch):
    seen, learn = [], Machine.learn

    def spy(machine, rate, momentum, l2, draws):
        seen.append((machine.gaussian, rate / (1 - momentum), l2))
        return learn(machine, rate, momentum, l2, draws)

    monkeypatch.setattr(Machine, "learn", spy)
    run(tmp_path)
    assert len(seen) == 2 * 96
    for gaussian, rate, l2 in seen:
        assert rate == pytest.approx(0.01 if gaussian else 0.4)
        assert l2 == 2e-4


@given(
    ramp=st.floats(0, 1), steps=st.integers(1, 300), first=st.floats(0, 0.9), more=st.floats(0, 0.1)
)
def test_momentum_never_falls_and_stays_between_its_ends(ramp, steps, first, more):
    rbm = Rbm(ramp=ramp, momentum=first, final_momentum=min(first + more, 0.99))
    rising = [rbm.momentum_at(step, steps) for step in range(steps)]
    assert rising == sorted(rising)
    assert first <= rising[0]
    assert rising[-1] <= rbm.final_momentum + 1e-12


# -- folders ----------------------------------------------------------------------------------


def same(one: Pretrained, other: Pretrained) -> bool:
    tensors = [(*p.weights, *p.biases) for p in (one, other)]
    records = [[asdict(r) | {"seconds": 0} for r in p.records] for p in (one, other)]
    return all(map(torch.equal, *tensors)) and records[0] == records[1]


@pytest.fixture(scope="module")
def straight(tmp_path_factory) -> Pretrained:
    return run(tmp_path_factory.mktemp("straight"))


class Interrupted(Exception):
    pass


def interrupted_run(folder: Path, calls: int, every: int, rbm: Rbm = QUICK) -> None:
    left = iter(range(calls))

    def inputs(at: torch.Tensor) -> torch.Tensor:
        if next(left, None) is None:
            raise Interrupted
        return ROWS[at]

    with pytest.raises(Interrupted):
        pretrain(SIZES, inputs, len(ROWS), rbm, folder, identity="factors", every=every)


@pytest.mark.parametrize("calls", [0, 1, 8, 40, 95, 97, 98, 99, 130, 193])
def test_an_interrupted_pretraining_ends_with_the_same_bits(calls, straight, tmp_path):
    """A layer has 96 steps, and a call more for the rows that it is measured on."""
    interrupted_run(tmp_path, calls, every=7)
    assert same(run(tmp_path), straight)


def test_it_may_be_interrupted_again_and_again(straight, tmp_path):
    for calls in (9, 2, 30, 5, 60, 40):
        interrupted_run(tmp_path, calls, every=3)
    assert same(run(tmp_path, every=10), straight)


def test_what_the_guard_did_is_not_forgotten_by_an_interruption(tmp_path):
    silly = replace(QUICK, lr_gaussian=30.0)
    whole = run(tmp_path / "whole", rbm=silly)
    assert whole.records[0].guards > 1
    interrupted_run(tmp_path / "parts", 60, 4, silly)
    assert same(run(tmp_path / "parts", rbm=silly), whole)


CHILD = """
import sys, time, torch
from pathlib import Path
sys.path.insert(0, sys.argv[2])
torch.set_num_threads(1)
from test_rbm import QUICK, ROWS, SIZES
from regatta.learn.rbm import pretrain
calls = 0
def inputs(at):
    global calls
    calls += 1
    time.sleep(0.03 if calls > 97 else 0)  # time to be killed in the second layer
    return ROWS[at]
pretrain(SIZES, inputs, len(ROWS), QUICK, Path(sys.argv[1]), identity="factors", every=1)
"""


def steps_told(folder: Path) -> list[int]:
    told = folder / "rbm.json"
    return (
        [layer["step"] for layer in json.loads(told.read_text())["layers"]] if told.exists() else []
    )


def test_a_killed_process_leaves_a_folder_that_ends_with_the_same_bits(straight, tmp_path):
    words = [sys.executable, "-c", CHILD, str(tmp_path), str(Path(__file__).parent)]
    child = subprocess.Popen(words)
    try:
        limit = time.monotonic() + 45
        while len(steps_told(tmp_path)) < 2:
            assert child.poll() is None
            assert time.monotonic() < limit
            time.sleep(0.01)
        time.sleep(0.1)
    finally:
        os.kill(child.pid, signal.SIGKILL)
        child.wait()
    first, second = steps_told(tmp_path)
    assert first == 96
    assert 0 < second < 96
    assert same(run(tmp_path), straight)


def test_a_finished_folder_is_loaded_without_data(straight, tmp_path):
    run(tmp_path)
    (tmp_path / "rbm.json").unlink()

    def inputs(at: torch.Tensor) -> torch.Tensor:
        raise AssertionError("nothing is left to learn")

    again = pretrain(SIZES, inputs, len(ROWS), QUICK, tmp_path, identity="factors")
    assert same(again, straight)
    told = json.loads((tmp_path / "rbm.json").read_text())
    assert [layer["hidden"] for layer in told["layers"]] == [16, 12]
    assert not list(tmp_path.glob("*.partial"))


def test_seeds_differ_and_the_global_generator_is_not_touched(straight, tmp_path):
    state = torch.get_rng_state()
    other = run(tmp_path, rbm=replace(QUICK, seed=1))
    assert not torch.equal(other.weights[0], straight.weights[0])
    assert torch.equal(state, torch.get_rng_state())


def test_progress_is_told(tmp_path):
    seen = []
    run(tmp_path, progress=seen.append, every=32)
    assert [(p.layer, p.step) for p in seen] == [(n, s) for n in (1, 2) for s in (32, 64, 96)]
    assert all(p.layers == 2 and p.steps == 96 and p.error > 0 and p.guards == 0 for p in seen)


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ({"identity": "others"}, r"data = 'factors', not 'others'"),
        ({"sizes": (20, 16, 11)}, r"sizes = \[20, 16, 12\], not \[20, 16, 11\]"),
        ({"rows": ROWS[:500]}, "samples = 512, not 500"),
        ({"rbm": replace(QUICK, lr=0.3)}, r"rbm.lr = 0.4, not 0.3.*another folder"),
    ],
)
def test_a_folder_of_something_else_is_refused(words, told, tmp_path):
    interrupted_run(tmp_path, 20, every=5)
    with pytest.raises(ValueError, match=told):
        run(tmp_path, **words)


def test_a_damaged_or_foreign_file_is_refused_by_name(tmp_path):
    interrupted_run(tmp_path, 20, every=5)
    path = tmp_path / "layer-1.safetensors"
    whole = path.read_bytes()
    path.write_bytes(whole[:-100])
    with pytest.raises(ValueError, match=r"layer-1.safetensors cannot be read .*delete it"):
        run(tmp_path)
    path.write_bytes(whole[:-5] + bytes([whole[-5] ^ 1]) + whole[-4:])
    with pytest.raises(ValueError, match=r"layer-1.safetensors is damaged: delete it"):
        run(tmp_path)


# -- misuse -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "words",
    [
        {"epochs": 0}, {"epochs_gaussian": 0}, {"lr": 0.0}, {"lr_gaussian": float("nan")},
        {"momentum": 1.0}, {"final_momentum": -0.1}, {"ramp": 1.5}, {"l2": -1.0}, {"minibatch": 0},
    ],
)  # fmt: skip
def test_options_out_of_range_are_named(words):
    with pytest.raises(ValueError, match=f"rbm: {next(iter(words))} "):
        Rbm(**words)


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ({"sizes": (20,)}, "sizes must be"),
        ({"sizes": (20, 0)}, "sizes must be"),
        ({"rows": ROWS[:31]}, "rbm.minibatch 32 is more than the 31 samples"),
        ({"sizes": (19, 4)}, r"inputs gave \(512, 20\) where 512 rows of sizes\[0\] = 19"),
        ({"held_out": ROWS[:, :5]}, r"inputs gave \(512, 5\)"),
        ({"rows": 50 * ROWS}, "normalise"),
        ({"rows": ROWS + 9}, "mean 9 "),
        ({"rows": ROWS * float("nan")}, "mean nan"),
        ({"every": 0}, "every must be"),
    ],
)
def test_dead_simple_misuse_is_told(words, told, tmp_path):
    with pytest.raises(ValueError, match=told):
        run(tmp_path, **words)


def test_rows_that_are_not_finite_are_told_of(tmp_path):
    def inputs(at: torch.Tensor) -> torch.Tensor:
        return ROWS[at] if len(at) == len(ROWS) else ROWS[at] / 0  # the first look is good

    with pytest.raises(ValueError, match=r"inputs of layer 1, step 0 hold NaN or infinity"):
        pretrain(SIZES, inputs, len(ROWS), QUICK, tmp_path, identity="factors")


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ({"lr_gaussian": 1e38}, r"layer 1.*lower rbm.lr_gaussian \(1e\+38\)"),
        ({"lr": 1e38, "l2": 1.0}, r"layer 2.*lower rbm.lr \(1e\+38\)"),
    ],
)
def test_weights_that_are_not_finite_name_what_to_lower(words, told, tmp_path):
    with pytest.raises(ValueError, match=told):
        run(tmp_path, rbm=replace(QUICK, **words))


# -- loading ----------------------------------------------------------------------------------


def test_loading_fills_the_first_layers_and_leaves_the_head(straight):
    model = dnn((*SIZES, 4), "sigmoid")
    head = [p.clone() for p in model[-1].parameters()]
    load(model, straight)
    assert torch.equal(model[0].weight, straight.weights[0])
    assert torch.equal(model[2].bias, straight.biases[1])
    assert all(map(torch.equal, head, model[-1].parameters()))
    assert all(p.requires_grad and p.is_leaf for p in model.parameters())
    with torch.no_grad():
        model[0].weight.zero_()
    assert straight.weights[0].count_nonzero()  # a copy


@pytest.mark.parametrize(
    ("model", "told"),
    [
        (dnn(SIZES), "leave the output out of the pretrained sizes"),
        (dnn((20, 16, 13, 4)), r"'2' of the model is \(13, 16\).*is \(12, 16\).*same sizes"),
        (nn.Sequential(nn.Linear(20, 16, bias=False), nn.Linear(16, 12), nn.Linear(12, 2)),
         r"'0' of the model is \(16, 20\) and no bias"),
    ],
)  # fmt: skip
def test_a_model_that_does_not_fit_is_told_and_left_alone(model, told, straight):
    before = [p.clone() for p in model.parameters()]
    with pytest.raises(ValueError, match=told):
        load(model, straight)
    assert all(map(torch.equal, before, model.parameters()))
