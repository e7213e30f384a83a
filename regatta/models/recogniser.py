"""The recogniser of Baunsgaard et al.: a convolution over time, recurrent layers, a linear layer.

Utterances of a batch are padded to one length. Padding is outside of everything: the convolution
sees whole windows only, normalisation counts and changes frames of speech alone, and what runs
backwards in time begins at an utterance's own end. So what is put out for an utterance does not
depend on how much padding stands behind it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import log_softmax

from regatta.models.initial import KNOWN, initialise

CELLS = ("lstm", "gru")
NORMS = ("batch", "layer", "none")


@dataclass(frozen=True)
class Network:
    """Sizes of a recogniser; the defaults are small, `PAPER` has those of the paper."""

    channels: int = 192  # of the convolution
    kernel: int = 11  # frames that it sees at once
    stride: int = 2  # and how far it moves on
    hidden: int = 256  # units of a recurrent layer
    layers: int = 2  # recurrent ones
    cell: str = "lstm"  # or gru
    bidirectional: bool = False  # then both directions are added, and streams are impossible
    norm: str = "batch"  # between layers; layer: each frame by itself; none
    dropout: float = 0.05  # between layers
    init: str = "xavier"  # lecun, torch

    def __post_init__(self) -> None:
        for name in ("channels", "kernel", "stride", "hidden", "layers"):
            if getattr(self, name) < 1:
                raise ValueError(f"network.{name} must be 1 or more, not {getattr(self, name)}")
        for name, known in (("cell", CELLS), ("norm", NORMS), ("init", KNOWN)):
            if getattr(self, name) not in known:
                given = getattr(self, name)
                raise ValueError(f"network.{name} must be one of {', '.join(known)}, not {given}")
        if not 0 <= self.dropout < 1:
            raise ValueError(f"network.dropout must be from 0 to below 1, not {self.dropout}")


PAPER = Network(channels=600, hidden=800, layers=5)


class Valid(NamedTuple):
    """Which frames of a padded batch, [frame, utterance], are speech."""

    frames: Tensor  # of each utterance
    places: Tensor | None = None  # of those frames in the flattened batch; None: no matter

    def located(self, longest: int) -> Valid:
        inside = torch.arange(longest, device=self.frames.device)[:, None] < self.frames
        if inside.all():
            return self
        return self._replace(places=inside.flatten().nonzero().squeeze(1))


class Between(nn.Module):
    """What stands between two layers: normalisation and dropout, on frames of speech alone."""

    def __init__(self, size: int, network: Network, rectify: bool = False) -> None:
        super().__init__()
        kinds = {"batch": nn.BatchNorm1d, "layer": nn.LayerNorm}
        kind = kinds.get(network.norm)
        self.norm = nn.Identity() if kind is None else kind(size)
        self.rectify = nn.ReLU() if rectify else nn.Identity()
        self.dropout = nn.Dropout(network.dropout)

    def forward(self, states: Tensor, valid: Valid) -> Tensor:
        """[frame, utterance, unit] -> the same."""
        flat = states.flatten(0, 1)
        if valid.places is None:
            return self._each(flat).view(states.shape)
        spoken = self._each(flat.index_select(0, valid.places))
        return torch.zeros_like(flat).index_copy(0, valid.places, spoken).view(states.shape)

    def _each(self, rows: Tensor) -> Tensor:
        normed = self.norm(rows)
        outputs: Tensor = self.dropout(self.rectify(normed))
        return outputs


class Recurrent(nn.Module):
    """One recurrent layer; if it has two directions, their sum, as in Deep Speech 2."""

    def __init__(self, inputs: int, network: Network) -> None:
        super().__init__()
        self.forwards = _cell(network.cell, inputs, network.hidden)
        self.backwards: nn.Module | None = None
        if network.bidirectional:
            self.backwards = _cell(network.cell, inputs, network.hidden)

    def forward(self, inputs: Tensor, frames: Tensor) -> Tensor:
        states: Tensor = self.forwards(inputs)[0]
        if self.backwards is None:
            return states
        ways = _reversed(inputs, frames)
        back: Tensor = self.backwards(inputs.gather(0, ways.expand(inputs.shape)))[0]
        return states + back.gather(0, ways.expand(back.shape))


def _cell(kind: str, inputs: int, hidden: int) -> nn.RNNBase:
    return nn.LSTM(inputs, hidden) if kind == "lstm" else nn.GRU(inputs, hidden)


def _reversed(inputs: Tensor, frames: Tensor) -> Tensor:
    """For every frame and utterance the frame that stands there in reversed time; padding stays."""
    times = torch.arange(inputs.shape[0], device=inputs.device)[:, None]
    return torch.where(times < frames, frames - 1 - times, times)[..., None]


class Recogniser(nn.Module):
    def __init__(self, features: int, outputs: int, network: Network = Network()) -> None:  # noqa: B008
        super().__init__()
        self.network = network
        self.conv = nn.Conv1d(features, network.channels, network.kernel, network.stride)
        self.first = Between(network.channels, network, rectify=True)
        sizes = [network.channels] + [network.hidden] * (network.layers - 1)
        self.recurrent = nn.ModuleList(Recurrent(size, network) for size in sizes)
        self.between = nn.ModuleList(Between(network.hidden, network) for _ in sizes)
        self.head = nn.Linear(network.hidden, outputs)
        initialise(self, network.init)

    def frames(self, frames: Tensor) -> Tensor:
        """That are put out for so many frames of features."""
        return (frames - self.network.kernel).div(self.network.stride, rounding_mode="floor") + 1

    def forward(self, features: Tensor, frames: Tensor) -> Tensor:
        """[utterance, frame, feature] -> log probabilities, [frame put out, utterance, symbol]."""
        states = self.conv(features.transpose(1, 2)).permute(2, 0, 1)
        valid = Valid(self.frames(frames))
        if self.training:  # in use every frame is normalised by itself: padding is only in vain
            valid = valid.located(states.shape[0])
        states = self.first(states, valid)
        for layer, between in zip(self.recurrent, self.between, strict=True):
            states = between(layer(states, valid.frames), valid)
        return log_softmax(self.head(states), -1)


class Ear:
    """A recogniser in the middle of a stream: features come in pieces, outputs as soon as can be.

    All outputs together are those of the whole. Only for a network that looks forward in time.
    """

    def __init__(self, model: Recogniser) -> None:
        if model.network.bidirectional:
            raise ValueError(
                "this recogniser looks at an utterance from both ends (bidirectional): it cannot "
                "hear a stream, only whole recordings"
            )
        self._model = model.eval()
        self._rest = torch.zeros(0, model.conv.in_channels)
        self._states: list[object | None] = [None] * len(model.recurrent)

    @torch.no_grad()
    def step(self, features: Tensor) -> Tensor:
        """Further frames, [frame, feature] -> what can be put out now, [frame put out, symbol]."""
        model = self._model
        heard = torch.cat([self._rest, features])
        count = max(0, int(model.frames(torch.tensor(len(heard)))))
        self._rest = heard[count * model.network.stride :].clone()
        if not count:
            return torch.zeros(0, model.head.out_features)
        states = model.conv(heard.T[None]).permute(2, 0, 1)
        valid = Valid(torch.tensor([count]))
        states = model.first(states, valid)
        for number, between in enumerate(model.between):
            layer = model.recurrent[number].get_submodule("forwards")
            states, self._states[number] = layer(states, self._states[number])
            states = between(states, valid)
        return log_softmax(model.head(states), -1)[:, 0]
