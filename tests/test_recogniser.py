"""The recogniser's network: its sizes, what padding may not do to it, streams."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from regatta.models.initial import initialise
from regatta.models.recogniser import PAPER, Ear, Network, Recogniser

CLOSE = 1e-5  # of a log probability: other batch sizes are added up in another order
KINDS = {
    "lstm": Network(channels=6, hidden=8),
    "gru": Network(channels=6, hidden=8, cell="gru"),
    "both ways": Network(channels=6, hidden=8, bidirectional=True),
    "both ways, gru": Network(channels=6, hidden=8, bidirectional=True, cell="gru"),
    "layer": Network(channels=6, hidden=8, norm="layer"),
    "none": Network(channels=6, hidden=8, norm="none", layers=3),
    "stride 3": Network(channels=6, hidden=8, kernel=5, stride=3),
}
every_kind = pytest.mark.parametrize("kind", KINDS)


def a_recogniser(kind: str = "lstm", **changes: object) -> Recogniser:
    torch.manual_seed(3)
    model = Recogniser(4, 5, replace(KINDS[kind], dropout=0.0, **changes))
    for module in model.modules():  # as after some training
        if isinstance(module, nn.BatchNorm1d):
            module.running_mean.normal_()
            module.running_var.uniform_(0.5, 2.0)
    return model


def padded(frames: list[int], longest: int, filling: float, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    batch = torch.full((len(frames), longest, 4), filling)
    for row, count in enumerate(frames):
        batch[row, :count] = torch.randn(count, 4, generator=generator)
    return batch


def apart(model: Recogniser, one: torch.Tensor, other: torch.Tensor, frames: torch.Tensor) -> float:
    """The largest difference between outputs that count."""
    counts = model.frames(frames).tolist()
    one, other = one.detach(), other.detach()
    return max(float((one[:n, row] - other[:n, row]).abs().max()) for row, n in enumerate(counts))


def test_the_papers_network_has_the_papers_size():
    model = Recogniser(93, 30, PAPER)
    assert sum(p.numel() for p in model.parameters()) == 25_639_630
    assert model.conv.weight.shape == (600, 93, 11)
    assert [tuple(layer.forwards.weight_hh_l0.shape) for layer in model.recurrent] == [
        (3200, 800)
    ] * 5


@every_kind
def test_an_utterance_alone_and_in_a_padded_batch(kind):
    model = a_recogniser(kind).eval()
    frames = torch.tensor([12, 40, 25, 31])
    batch = padded(frames.tolist(), 40, filling=0.0)
    together = model(batch, frames)
    for row, count in enumerate(frames.tolist()):
        alone = model(batch[row : row + 1, :count], frames[row : row + 1])
        assert len(alone) == int(model.frames(torch.tensor(count)))
        assert float((alone[:, 0] - together[: len(alone), row]).detach().abs().max()) < CLOSE


@every_kind
def test_what_stands_behind_an_utterance_does_not_matter_in_training(kind):
    """Utterances share the statistics of batch normalisation, but never with padding."""
    model = a_recogniser(kind).train()
    frames = torch.tensor([12, 40, 25])
    outputs = model(padded([12, 40, 25], 40, filling=0.0), frames)
    longer = model(padded([12, 40, 25], 67, filling=1e3), frames)
    assert apart(model, outputs, longer, frames) < CLOSE


@every_kind
def test_nor_does_it_matter_for_gradients_and_statistics(kind):
    found = []
    for longest, filling in ((40, 0.0), (55, 1e3)):
        model = a_recogniser(kind).train()
        frames = torch.tensor([12, 40, 25])
        outputs = model(padded([12, 40, 25], longest, filling), frames)
        counts = model.frames(frames).tolist()
        sum(outputs[:n, row, 0].sum() for row, n in enumerate(counts)).backward()
        found.append([p.grad for p in model.parameters()] + [b.float() for b in model.buffers()])
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("kind", ["layer", "none"])
def test_without_batch_normalisation_utterances_are_alone_even_in_training(kind):
    model = a_recogniser(kind).train()
    frames = torch.tensor([12, 40])
    batch = padded([12, 40], 40, filling=0.0)
    together, alone = model(batch, frames), model(batch[:1, :12], frames[:1])
    assert float((alone[:, 0] - together[: len(alone), 0]).detach().abs().max()) < CLOSE


def test_in_training_the_same_utterance_twice_is_as_once():
    model = a_recogniser().train()
    once = padded([30], 30, filling=0.0)
    twice = torch.cat([once, torch.zeros(1, 20, 4)], dim=1).expand(2, -1, -1)
    alone, both = model(once, torch.tensor([30])), model(twice, torch.tensor([30, 30]))
    assert float((alone[:, 0] - both[: len(alone), 1]).detach().abs().max()) < CLOSE


@settings(max_examples=25, deadline=None)
@given(
    cuts=st.lists(st.integers(0, 60), max_size=8),
    kind=st.sampled_from(["lstm", "gru", "layer", "stride 3"]),
)
def test_pieces_of_a_stream_give_the_whole(cuts, kind):
    model = a_recogniser(kind).eval()
    whole = padded([60], 60, filling=0.0)[0]
    ear, bounds = Ear(model), [0, *sorted(cuts), 60]
    pieces = [ear.step(whole[a:b]) for a, b in pairwise(bounds)]
    with torch.no_grad():
        expected = model(whole[None], torch.tensor([60]))[:, 0]
    torch.testing.assert_close(torch.cat(pieces), expected, rtol=0, atol=CLOSE)


def test_who_looks_from_both_ends_hears_no_stream():
    with pytest.raises(ValueError, match="bidirectional"):
        Ear(a_recogniser("both ways"))


def test_outputs_are_probabilities_of_so_many_frames():
    model = a_recogniser()
    outputs = model(padded([11, 12, 13], 13, 0.0), torch.tensor([11, 12, 13]))
    assert model.frames(torch.tensor([10, 11, 12, 13])).tolist() == [0, 1, 1, 2]
    assert outputs.shape == (2, 3, 5)
    torch.testing.assert_close(outputs.exp().sum(-1), torch.ones(2, 3))


def test_recurrent_layers_begin_with_glorots_weights_and_remember():
    torch.manual_seed(0)
    layer = nn.LSTM(30, 50)
    initialise(nn.Sequential(layer), "xavier")
    bound = (6 / (200 + 30)) ** 0.5
    assert float(layer.weight_ih_l0.detach().abs().max()) <= bound
    assert float(layer.weight_ih_l0.detach().std()) == pytest.approx(bound / 3**0.5, rel=0.03)
    assert layer.bias_ih_l0[50:100].eq(1).all()
    assert layer.bias_ih_l0.sum() == 50
    assert not layer.bias_hh_l0.any()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"hidden": 0}, "network.hidden must be 1 or more, not 0"),
        ({"cell": "rnn"}, "network.cell must be one of lstm, gru, not rnn"),
        ({"norm": "group"}, "network.norm must be one of batch, layer, none, not group"),
        ({"dropout": 1.0}, "network.dropout must be from 0 to below 1"),
    ],
)
def test_a_network_that_cannot_be_is_refused(options, message):
    with pytest.raises(ValueError, match=message):
        Network(**options)
