"""A person's own loop joins a strategy."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import nn

import regatta

pytestmark = pytest.mark.real
EXAMPLE = Path(__file__).parent.parent / "examples" / "own_loop.py"


@pytest.mark.parametrize(
    ("strategy", "processes"),
    [("all-reduce", 2), ("averaging:period=10", 2), ("ring", 2), ("parameter-server", 3)],
)
def test_the_example_learns_under_torchrun(strategy, processes):
    done = subprocess.run(
        [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", str(processes),
         "--standalone", "--local-addr", "127.0.0.1", EXAMPLE, strategy],
        capture_output=True, text=True, timeout=50, check=False,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    said = re.findall(r"accuracy (\d\.\d{4})", done.stdout)
    assert len(said) == processes
    assert len(set(said)) == 1, "all ranks hold the same model"
    assert float(said[0]) > 0.85


def _model():
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Tanh(), nn.Linear(8, 2))


def _train(model, optimizer, step, schedule=None):
    generator = torch.Generator().manual_seed(1)
    for _ in range(12):
        inputs = torch.randn(16, 4, generator=generator)
        optimizer.zero_grad()
        (model(inputs).sum(1) - inputs.sum(1)).square().mean().backward()
        step()
        if schedule is not None:
            schedule.step()


def _optimizer(model):
    """Two groups and a schedule: what a person may well have."""
    weights, biases = (
        [p for p in model.parameters() if (p.dim() > 1) is wide] for wide in (True, False)
    )
    optimizer = torch.optim.SGD(
        [{"params": weights, "weight_decay": 0.01}, {"params": biases, "lr": 0.02}],
        lr=0.05, momentum=0.9,
    )  # fmt: skip
    return optimizer, torch.optim.lr_scheduler.StepLR(optimizer, 5, 0.5)


@pytest.mark.parametrize("strategy", ["single", "all-reduce", "averaging:period=3", "ring"])
def test_alone_it_is_the_plain_loop_bit_for_bit(strategy):
    plain = _model()
    optimizer, schedule = _optimizer(plain)
    _train(plain, optimizer, optimizer.step, schedule)

    joined = _model()
    optimizer, schedule = _optimizer(joined)
    with regatta.join(strategy, joined, optimizer) as crew:
        _train(joined, optimizer, crew.step, schedule)
    for (name, ours), theirs in zip(
        joined.state_dict().items(), plain.state_dict().values(), strict=True
    ):
        if "running" in name:  # folded by us, not by the layer: the same sum in another order
            assert torch.allclose(ours, theirs, rtol=1e-5), name
        else:
            assert torch.equal(ours, theirs), name
    assert joined[1].momentum == plain[1].momentum, "the layer gets its momentum back"


def test_moved_parameters_are_noticed():
    model = _model()
    optimizer, _ = _optimizer(model)
    with regatta.join("single", model, optimizer) as crew:
        model[0].weight.data = model[0].weight.data.clone()
        with pytest.raises(RuntimeError, match=r"do that before regatta\.join"):
            crew.step()


def test_a_server_needs_a_process_of_its_own():
    model = _model()
    with pytest.raises(ValueError, match="needs 1 process for its server"):
        regatta.join("parameter-server", model, torch.optim.SGD(model.parameters(), lr=0.1))
    assert not torch.distributed.is_initialized()


def test_a_joined_model_is_left_and_given_back_as_it_came():
    joined = nn.Sequential(nn.Linear(1024, 512), nn.BatchNorm1d(512, momentum=0.3))
    attributes = [list(vars(layer)) for layer in joined]
    optimizer, _ = _optimizer(joined)
    with regatta.join("single", joined, optimizer) as crew:
        for _ in range(2):
            joined(torch.randn(4, 1024)).sum().backward()
            crew.step()
        assert "forward" not in vars(joined[0])  # the loop's own backward writes nothing for us
    assert [list(vars(layer)) for layer in joined] == attributes
    assert joined[1].momentum == 0.3
