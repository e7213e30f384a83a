"""A gradient that is gathered in no vector steps as one that is: bit for bit."""

from __future__ import annotations

import asyncio

import pytest
import torch
from test_replica import a_replica
from torch import nn

from regatta.comm import Unwritten
from regatta.learn.layout import CHUNK, Layout
from regatta.learn.optimisers import Adam, Sgd
from regatta.learn.replica import Replica

OPTIMISERS = [
    Sgd(lr=0.1),
    Sgd(lr=0.1, momentum=0.9, weight_decay=0.01, nesterov=True),
    Adam(lr=0.01, weight_decay=0.1),
]


class Odd(nn.Module):
    """Sizes that leave gaps, a matrix of more than one piece, statistics, and an idle parameter."""

    def __init__(self):
        super().__init__()
        self.first = nn.Linear(7, 521)
        self.norm = nn.BatchNorm1d(521)
        self.idle = nn.Parameter(torch.ones(3))
        self.wide = nn.Linear(521, 523)
        self.last = nn.Linear(523, 1)

    def forward(self, inputs):
        return self.last(torch.tanh(self.wide(self.norm(self.first(inputs)))))


def odd_replica(optimiser):
    torch.manual_seed(3)
    return a_replica(Odd(), optimiser)


def batches(number):
    generator = torch.Generator().manual_seed(5)
    return [
        (torch.randn(8, 7, generator=generator), torch.randn(8, 1, generator=generator))
        for _ in range(number)
    ]


def test_the_model_is_as_odd_as_it_says():
    layout = Layout(Odd())
    assert sum(layout.rooms) > sum(p.numel() for p in layout.parameters)
    assert max(layout.rooms) > CHUNK


@pytest.mark.parametrize("optimiser", OPTIMISERS, ids=["plain", "momentum", "adam"])
@pytest.mark.parametrize("holds", [False, True], ids=["in place", "into new memory"])
def test_steps_have_the_bits_of_written_gradients(optimiser, holds):
    written, scattered = odd_replica(optimiser), odd_replica(optimiser)
    held = []
    for batch in batches(5):
        if holds:
            held.append((scattered.weights, scattered.weights.clone()))
        written.step(written._gradient(batch))
        scattered.step(scattered._scattered(batch))
        assert torch.equal(written.weights if holds else written.vector, scattered.vector)
    ours, theirs = scattered.state()[0], written.state()[0]
    assert ours.keys() == theirs.keys()
    assert all(torch.equal(ours[name], theirs[name]) for name in ours)
    assert all(torch.equal(then, copy) for then, copy in held), "a value was written to"


def test_both_kinds_take_turns_as_they_come():
    alike, mixed = odd_replica(OPTIMISERS[1]), odd_replica(OPTIMISERS[1])
    for number, batch in enumerate(batches(6)):
        alike.step(alike._gradient(batch))
        mixed.step(mixed._scattered(batch) if number % 2 else mixed._gradient(batch))
    assert torch.equal(alike.vector, mixed.vector)


@pytest.mark.parametrize("longest", [1000, CHUNK, 10**9])
def test_pieces_cover_the_parameters_once(longest):
    layout = Layout(Odd())
    gradients = [None if p.shape == (3,) else torch.randn_like(p) for p in layout.parameters]
    vector = torch.full((layout.num_parameters,), torch.nan)
    for piece, here in layout.pieces(gradients, longest):
        assert piece.numel() <= longest
        assert vector[here].isnan().all(), "written twice"
        vector[here] = piece
    assert torch.equal(vector, layout.gradient(gradients, layout.empty())[: len(vector)])


def test_the_statistics_are_those_of_its_own_batch():
    replica = odd_replica(Sgd(lr=0.0))
    first, second = batches(2)
    gradient = replica._scattered(first)
    observed = replica.model.norm.running_mean.clone()
    replica._scattered(second)
    replica.step(gradient)
    momentum = 0.1
    kept = replica.layout.statistics(replica.vector)[0]
    assert torch.allclose(kept, momentum * observed)


def test_only_the_count_is_known():
    gradient = odd_replica(Sgd())._scattered(batches(1)[0])
    assert isinstance(gradient, Unwritten)
    assert gradient[-1] == 1
    with pytest.raises(IndexError, match="only the last element"):
        gradient[0]


def test_turns_end_with_the_data():
    replica = odd_replica(Sgd())
    assert isinstance(replica, Replica)

    async def all_of_them():
        return [gradient async for gradient in replica.unwritten]

    assert asyncio.run(all_of_them()) == []
