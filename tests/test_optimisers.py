"""Optimisers on flat vectors: the bits of torch.optim, whole or in chunks, shared or not."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch
from helpers import Crew, Shard
from torch import nn

from regatta.cluster import Cluster
from regatta.learn import part
from regatta.learn.body import Body
from regatta.learn.optimisers import AdaDelta, Adam, RmsProp, Sgd
from regatta.learn.replica import Replica
from regatta.strategies.single import Single
from regatta.worlds.virtual import VirtualWorld

KINDS = {
    "plain": (Sgd(lr=0.1), lambda p: torch.optim.SGD(p, lr=0.1)),
    "decay": (
        Sgd(lr=0.1, weight_decay=0.03),
        lambda p: torch.optim.SGD(p, lr=0.1, weight_decay=0.03),
    ),
    "momentum": (Sgd(lr=0.1, momentum=0.9), lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9)),
    "momentum and decay": (
        Sgd(lr=0.1, momentum=0.9, weight_decay=0.03),
        lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, weight_decay=0.03),
    ),
    "nesterov": (
        Sgd(lr=0.1, momentum=0.9, weight_decay=0.03, nesterov=True),
        lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, weight_decay=0.03, nesterov=True),
    ),
    "adam": (Adam(lr=0.01), lambda p: torch.optim.AdamW(p, lr=0.01, weight_decay=0.0)),
    "adam and decay": (
        Adam(lr=0.01, beta1=0.8, beta2=0.99, eps=1e-4, weight_decay=0.1),
        lambda p: torch.optim.AdamW(p, lr=0.01, betas=(0.8, 0.99), eps=1e-4, weight_decay=0.1),
    ),
    "adadelta": (AdaDelta(), lambda p: torch.optim.Adadelta(p, lr=1.0, rho=0.95, eps=1e-6)),
    "adadelta and decay": (
        AdaDelta(lr=0.5, rho=0.8, eps=1e-3, weight_decay=0.1),
        lambda p: torch.optim.Adadelta(p, lr=0.5, rho=0.8, eps=1e-3, weight_decay=0.1),
    ),
}
every_kind = pytest.mark.parametrize("kind", KINDS)
SIZE = 1003  # not of whole vector registers


class Numbers(nn.Module):
    def __init__(self, size=SIZE, dtype=torch.float32):
        super().__init__()
        generator = torch.Generator().manual_seed(5)
        self.numbers = nn.Parameter(torch.randn(size, generator=generator, dtype=dtype))


def a_replica(optimiser, dtype=torch.float32):
    comm = VirtualWorld(1, Cluster()).comms[0]
    body = Body(Numbers(dtype=dtype))
    return Replica(body, lambda model, batch: batch, Shard([[]], 0), comm, optimiser)


def a_gradient(seed, dtype=torch.float32):
    generator = torch.Generator().manual_seed(100 + seed)
    return torch.cat([torch.randn(SIZE, generator=generator, dtype=dtype), torch.ones(1)])


def torchs_own(kind, gradients, dtype=torch.float32, rate=1.0):
    model = Numbers(dtype=dtype)
    optimizer = KINDS[kind][1](model.parameters())
    optimizer.param_groups[0]["lr"] *= rate
    for gradient in gradients:
        model.numbers.grad = gradient[:-1]
        optimizer.step()
    return model.numbers.detach()


@pytest.mark.parametrize("chunk", [64, 2**18])
@pytest.mark.parametrize("rate", [1.0, 0.3])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@every_kind
def test_steps_have_the_bits_of_torchs_own(kind, dtype, rate, chunk, monkeypatch):
    monkeypatch.setattr(part, "CHUNK", chunk)
    gradients = [a_gradient(seed, dtype) for seed in range(6)]
    replica = a_replica(KINDS[kind][0], dtype)
    for gradient in gradients:
        replica.step(gradient, rate=rate)
    assert torch.equal(replica.weights[:-1], torchs_own(kind, gradients, dtype, rate))


@every_kind
def test_handing_out_between_steps_changes_no_bits(kind):
    """In place or into new memory, with a copied memory or the own one."""
    gradients = [a_gradient(seed) for seed in range(6)]
    replica = a_replica(KINDS[kind][0])
    handed_out = []
    for number, gradient in enumerate(gradients):
        if number in (1, 2, 4):
            handed_out.append((replica.weights, replica.weights.clone()))
        if number in (2, 3):
            replica._memory_handed_out = True
        replica.step(gradient)
    assert torch.equal(replica.weights[:-1], torchs_own(kind, gradients))
    assert all(torch.equal(vector, copy) for vector, copy in handed_out)


@every_kind
def test_a_step_with_a_sum_is_one_with_its_mean(kind):
    optimiser = KINDS[kind][0]
    of_sums, of_means = a_replica(optimiser), a_replica(optimiser)
    for seed in range(4):
        total = 3.0 * a_gradient(seed)
        of_sums.step(total, of=3)
        of_means.step(total / 3)
    if optimiser.is_plain:  # the division is part of the factor there, so it rounds elsewhere
        torch.testing.assert_close(of_sums.weights, of_means.weights)
    else:
        assert torch.equal(of_sums.weights, of_means.weights)


@every_kind
def test_a_sum_is_never_written_to(kind):
    replica = a_replica(KINDS[kind][0])
    total = a_gradient(0)
    before = total.clone()
    for _ in range(3):
        replica.step(total, of=2)
    assert torch.equal(total, before)


@pytest.mark.parametrize("kind", ["momentum", "adam"])
def test_a_loaded_memory_is_gone_on_with_and_not_written_to(kind):
    optimiser = KINDS[kind][0]
    first, second = a_replica(optimiser), a_replica(optimiser)
    for seed in range(3):
        first.step(a_gradient(seed))
    memory = first.optimiser_state
    before = memory.clone()
    second.load(first.weights)
    second.load_optimiser_state(memory)
    for replica in (first, second):
        replica.step(a_gradient(3))
        replica.step(a_gradient(4))
    assert torch.equal(first.weights, second.weights)
    assert torch.equal(first.optimiser_state, second.optimiser_state)
    assert torch.equal(memory, before)
    assert not torch.equal(first.optimiser_state, before)


@pytest.mark.parametrize("kind", ["momentum", "adam"])
def test_a_reset_optimiser_starts_anew(kind):
    optimiser = KINDS[kind][0]
    old, new = a_replica(optimiser), a_replica(optimiser)
    old.step(a_gradient(0))
    new.load(old.weights)
    old.reset_optimiser()
    assert torch.equal(old.optimiser_state, new.optimiser_state)
    for replica in (old, new):
        replica.step(a_gradient(1))
    assert torch.equal(old.weights, new.weights)


def test_an_optimiser_without_memory_has_no_state():
    replica = a_replica(Sgd(lr=0.1, weight_decay=0.1))
    replica.step(a_gradient(0))
    assert replica.optimiser_state is None


@pytest.mark.parametrize(
    ("make", "complaint"),
    [
        (lambda: Sgd(lr=-1.0), "sgd: lr must be 0 or more, not -1.0"),
        (lambda: Sgd(momentum=float("nan")), "sgd: momentum must be 0 or more, not nan"),
        (lambda: Adam(eps=-1e-8), "adam: eps must be 0 or more"),
        (lambda: Adam(beta2=1.0), "adam: beta2 must be below 1, not 1.0"),
        (lambda: AdaDelta(rho=1.0), "adadelta: rho must be below 1, not 1.0"),
        (lambda: RmsProp(decay=1.0), "rmsprop: decay must be below 1, not 1.0"),
        (lambda: RmsProp(eps=-1.0), "rmsprop: eps must be 0 or more, not -1.0"),
        (lambda: a_replica(Sgd(nesterov=True)).step(a_gradient(0)), "nesterov=true needs"),
    ],
)
def test_options_that_make_no_sense_are_refused(make, complaint):
    with pytest.raises(ValueError, match=complaint):
        make()


def test_training_does_not_import_torchs_compiler():
    """It would take longer than many a small run."""
    code = (
        "import sys; sys.path.insert(0, 'tests')\n"
        "from test_optimisers import KINDS, a_gradient, a_replica\n"
        "for optimiser, _ in KINDS.values(): a_replica(optimiser).step(a_gradient(0))\n"
        "sys.exit('torch._dynamo' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False, timeout=50).returncode == 0


def test_the_vector_that_a_step_makes_comes_from_the_comm():
    """A world may have memory that is cheaper to hand over."""

    class Counting:
        def __init__(self, comm):
            self._comm, self.made = comm, []

        def __getattr__(self, name):
            return getattr(self._comm, name)

        def empty(self, numel, dtype, device):
            self.made.append(self._comm.empty(numel, dtype, device))
            return self.made[-1]

    crew = Crew(Single(), 1)
    replica = crew.replicas[0]
    replica.comm = comm = Counting(replica.comm)
    assert len(replica.weights) == 2  # handed out: a step must leave them alone
    replica.step(torch.tensor([2.0, 1.0]))
    assert replica.weights is comm.made[-1]
    whole = (
        replica._gradient(2.0),
        replica.nothing,
        replica.spliced(replica.weights, replica.weights),
        replica.joined(replica.cut(replica.weights, 2)),
    )
    for vector in (*whole, *replica.cut(replica.weights, 2)):
        assert any(vector is made for made in comm.made)


# -- RMSProp, which torch has in another form ---------------------------------------------------


@pytest.mark.parametrize("momentum", [0.0, 0.9])
@pytest.mark.parametrize("decay", [0.0, 1e-2])
def test_rmsprop_is_tensorflows(momentum, decay):
    """ms = 0.9 ms + 0.1 g^2, from 1 on; change = momentum * change + lr g / sqrt(ms + eps)."""
    optimiser = RmsProp(lr=0.1, decay=0.9, eps=1.0, momentum=momentum, weight_decay=decay)
    replica = a_replica(optimiser, torch.float64)
    weights = replica.vector[:SIZE].clone()
    squares, change = torch.ones_like(weights), torch.zeros_like(weights)
    for seed in range(5):
        gradient = a_gradient(seed, torch.float64)
        replica.step(gradient)
        penalised = gradient[:SIZE] + decay * weights
        squares = 0.9 * squares + 0.1 * penalised**2
        change = momentum * change + 0.1 * penalised / torch.sqrt(squares + 1.0)
        weights = weights - change
    torch.testing.assert_close(replica.vector[:SIZE], weights, rtol=1e-12, atol=1e-12)


def test_rmsprop_in_chunks_has_the_same_bits(monkeypatch):
    ends = []
    for chunk in (64, 2**18):
        monkeypatch.setattr(part, "CHUNK", chunk)
        replica = a_replica(RmsProp(momentum=0.9))
        for seed in range(3):
            replica.step(a_gradient(seed))
        ends.append(replica.vector.clone())
    assert torch.equal(*ends)


def test_the_first_step_of_rmsprop_is_small_where_torchs_is_large():
    """Because mean squares begin at 1 and eps is 1: lr g / sqrt(0.9 + 0.1 g^2 + 1)."""
    replica = a_replica(RmsProp())
    before, gradient = replica.vector[:SIZE].clone(), a_gradient(0)
    replica.step(gradient)
    steps = before - replica.vector[:SIZE]
    expected = 0.1 * gradient[:SIZE] / torch.sqrt(1.9 + 0.1 * gradient[:SIZE] ** 2)
    torch.testing.assert_close(steps, expected, rtol=1e-4, atol=1e-6)
