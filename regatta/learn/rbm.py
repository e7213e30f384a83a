"""Pretraining: layer after layer of a sigmoid network learns as a restricted Boltzmann machine.

    FOLDER/layer-1.safetensors     weights, biases and, until it is done, momentum; its header says
                                   how far it is and of what
    FOLDER/rbm.json                what each layer came to, for people

Everything drawn is a function of seed, layer and step. So a layer that was interrupted goes on from
its file and ends with the same bits.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field, fields
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from regatta.aside import write_aside
from regatta.data.order import Order
from regatta.data.seeds import mixed_seed
from regatta.learn.layer_file import read_layer, write_layer
from regatta.learn.machine import Machine

_RAMP_STEPS = 40  # as in Kaldi
_PROBE_ROWS = 4096
_RECORD = "rbm.json"

Inputs = Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class Rbm:
    """How to pretrain; the first layer has Gaussian inputs, the others have binary ones."""

    epochs_gaussian: int = 2
    epochs: int = 1
    lr_gaussian: float = 0.01
    lr: float = 0.4
    momentum: float = 0.5
    final_momentum: float = 0.9
    ramp: float = 0.5  # share of a layer's steps until the final momentum
    l2: float = 2e-4
    minibatch: int = 128
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ("epochs_gaussian", "epochs", "minibatch"):
            if getattr(self, name) < 1:
                raise ValueError(f"rbm: {name} must be 1 or more, not {getattr(self, name)}")
        for name in ("lr_gaussian", "lr"):
            if not 0 < getattr(self, name) < math.inf:
                raise ValueError(f"rbm: {name} must be more than 0, not {getattr(self, name)}")
        for name in ("momentum", "final_momentum"):
            if not 0 <= getattr(self, name) < 1:
                raise ValueError(
                    f"rbm: {name} must be from 0 to below 1, not {getattr(self, name)}"
                )
        if not 0 <= self.ramp <= 1:
            raise ValueError(f"rbm: ramp is a share of a layer's steps, 0 to 1, not {self.ramp}")
        if not 0 <= self.l2 < math.inf:
            raise ValueError(f"rbm: l2 must be 0 or more, not {self.l2}")

    def momentum_at(self, step: int, steps: int) -> float:
        """Rises in 40 equal steps, over a share of the layer instead of Kaldi's 20 million frames.

        A small corpus has fewer frames than that and would end with little more than the first.
        """
        if step >= self.ramp * steps:
            return self.final_momentum
        risen = int(_RAMP_STEPS * step / (self.ramp * steps))
        return self.momentum + (self.final_momentum - self.momentum) * risen / _RAMP_STEPS


@dataclass
class LayerRecord:
    """What a layer has come to. Errors are mean squared differences from reconstructions."""

    visible: int
    hidden: int
    gaussian: bool
    steps: int
    step: int = 0
    start_error: float | None = None  # on fixed rows
    end_error: float | None = None  # on the same
    epoch_errors: list[float] = field(default_factory=list)  # means over minibatches
    epoch_sum: float = 0.0  # of the epoch under way
    free_energy_gaps: list[float] = field(default_factory=list)  # held-out rows less fixed ones
    weight_norm: float = 0.0
    guards: int = 0  # how often weights were about to explode
    lr_scale: float = 1.0  # what the guard has left of the learning rate
    seconds: float = 0.0


@dataclass(frozen=True)
class Progress:
    """Where pretraining is; the error is the mean of the epoch so far."""

    layer: int
    layers: int
    step: int
    steps: int
    error: float
    guards: int


@dataclass(frozen=True)
class Pretrained:
    """Weights and biases for the first linear layers of a network, in their shapes."""

    weights: tuple[Tensor, ...]
    biases: tuple[Tensor, ...]
    records: tuple[LayerRecord, ...]


@torch.no_grad()
def pretrain(
    sizes: Sequence[int],
    inputs: Inputs,
    samples: int,
    rbm: Rbm,
    folder: Path,
    progress: Callable[[Progress], None] | None = None,
    *,
    identity: str,
    held_out: Tensor | None = None,
    every: int = 500,
) -> Pretrained:
    """Pretrain the layers between these sizes: inputs, then hidden layers, without the output.

    `inputs(indices)` gives rows of mean 0 and variance 1. `identity` names the data; a folder that
    was begun with others, or with other options, is refused. A finished folder is only loaded.
    Every so many steps are saved and told to `progress`. It computes on the processor.
    """
    _check(sizes, samples, rbm, every)
    folder.mkdir(parents=True, exist_ok=True)
    about = {"data": identity, "sizes": list(sizes), "samples": samples} | {
        f"rbm.{f.name}": getattr(rbm, f.name) for f in fields(rbm)
    }
    below = _Below(inputs, sizes, rbm.minibatch)
    records: list[LayerRecord] = []

    for number, path in _files(folder, sizes):
        layer = _Layer(number, path, sizes, samples, rbm)
        layer.open(about)
        if layer.record.step < layer.record.steps:
            probe, held = below.probe(samples), None
            if held_out is not None:
                held = below.up(below.checked(held_out, len(held_out)))
            for _ in layer.learn(below, probe, held, every):
                layer.save(about)
                _tell(folder, about, [*records, layer.record])
                if progress is not None:
                    progress(layer.progress(len(sizes) - 1))
        records.append(layer.record)
        below.weights.append(layer.machine.weight)
        below.biases.append(layer.machine.hidden_bias)
    _tell(folder, about, records)  # it may have been killed between a layer's end and its telling
    return Pretrained(tuple(below.weights), tuple(below.biases), tuple(records))


def load(model: nn.Module, pretrained: Pretrained) -> None:
    """Put pretrained layers into a model's first linear layers; the others, the head, stay."""
    linear = [(n, m) for n, m in model.named_modules() if isinstance(m, nn.Linear)]
    if len(linear) <= len(pretrained.weights):
        raise ValueError(
            f"{len(pretrained.weights)} pretrained layers and a head need a model with more than "
            f"its {len(linear)} linear layers: leave the output out of the pretrained sizes"
        )
    for (name, module), weight in zip(linear, pretrained.weights, strict=False):
        if module.weight.shape != weight.shape or module.bias is None:
            has = f"{tuple(module.weight.shape)}{'' if module.bias is not None else ' and no bias'}"
            raise ValueError(
                f"linear layer {name!r} of the model is {has}, the pretrained one is "
                f"{tuple(weight.shape)} and a bias: give both the same sizes"
            )
    with torch.no_grad():
        for (_, module), weight, bias in zip(
            linear, pretrained.weights, pretrained.biases, strict=False
        ):
            module.weight.copy_(weight)
            module.bias.copy_(bias)


class _Below:
    """Rows as the layer that learns sees them: through all that have learnt."""

    def __init__(self, inputs: Inputs, sizes: Sequence[int], minibatch: int) -> None:
        self._inputs = inputs
        self._sizes = sizes
        self._buffers = [torch.empty(minibatch, size) for size in sizes[1:-1]]
        self.weights: list[Tensor] = []
        self.biases: list[Tensor] = []

    def write(self, indices: Tensor, out: Tensor) -> None:
        """A minibatch of rows, into `out`."""
        rows = self.checked(self._inputs(indices), len(indices))
        if not self.weights:
            out.copy_(rows)
        last = len(self.weights) - 1
        for at, (weight, bias) in enumerate(zip(self.weights, self.biases, strict=True)):
            into = out if at == last else self._buffers[at]
            rows = torch.addmm(bias, rows, weight.t(), out=into).sigmoid_()

    def probe(self, samples: int) -> Tensor:
        """Some rows from everywhere."""
        count = min(samples, _PROBE_ROWS)
        indices = torch.arange(count) * samples // count
        rows = self.checked(self._inputs(indices), count)
        mean, deviation = rows.mean().item(), rows.std(correction=0).item()
        if not (abs(mean) <= 1 and 0.25 <= deviation <= 4):
            raise ValueError(
                f"the inputs have mean {mean:.3g} and standard deviation {deviation:.3g}, but "
                "pretraining takes mean 0 and variance 1: normalise them, without rows that are "
                "not finite"
            )
        return self.up(rows)

    def up(self, rows: Tensor) -> Tensor:
        for weight, bias in zip(self.weights, self.biases, strict=True):
            rows = torch.addmm(bias, rows, weight.t()).sigmoid_()
        return rows

    def checked(self, rows: Tensor, count: int) -> Tensor:
        if rows.shape != (count, self._sizes[0]):
            raise ValueError(
                f"inputs gave {tuple(rows.shape)} where {count} rows of sizes[0] = "
                f"{self._sizes[0]} were asked for: let both agree"
            )
        return rows.detach().to("cpu", torch.float32)


class _Layer:
    """One layer that learns, and its file."""

    def __init__(
        self, number: int, path: Path, sizes: Sequence[int], samples: int, rbm: Rbm
    ) -> None:
        gaussian = number == 1
        visible, hidden = sizes[number - 1 : number + 1]
        epochs = rbm.epochs_gaussian if gaussian else rbm.epochs
        self._number, self._path, self._rbm = number, path, rbm
        self._order = Order(samples, rbm.minibatch, 1, mixed_seed(rbm.seed, number))
        self._rate = rbm.lr_gaussian if gaussian else rbm.lr
        self.machine = Machine(visible, hidden, rbm.minibatch, gaussian)
        steps = epochs * self._order.batches_per_epoch
        self.record = LayerRecord(visible, hidden, gaussian, steps)

    def open(self, about: dict[str, Any]) -> None:
        """Go on from the file, if there is one."""
        if not self._path.exists():
            return
        tensors, state = read_layer(self._path, about)
        self.record = LayerRecord(**state)
        self.machine.guards, self.machine.lr_scale = self.record.guards, self.record.lr_scale
        into = self.machine.weights() | self.machine.increments()
        for name, tensor in tensors.items():
            into[name].copy_(tensor)  # into memory that lies as it lay before: sums keep their bits

    def save(self, about: dict[str, Any]) -> None:
        done = self.record.step == self.record.steps
        tensors = self.machine.weights() | ({} if done else self.machine.increments())
        write_layer(self._path, tensors, about, asdict(self.record))

    def progress(self, layers: int) -> Progress:
        record, per_epoch = self.record, self._order.batches_per_epoch
        done = record.step % per_epoch
        error = record.epoch_sum / done if done else record.epoch_errors[-1]
        return Progress(self._number, layers, record.step, record.steps, error, record.guards)

    def learn(
        self, below: _Below, probe: Tensor, held_out: Tensor | None, every: int
    ) -> Iterator[None]:
        """Learn to the end; comes back whenever it is time to save."""
        record, machine, per_epoch = self.record, self.machine, self._order.batches_per_epoch
        draws = torch.Generator()
        since = time.perf_counter()
        if record.step == 0:
            # Steps count from 0, so -1 is free for the first weights.
            machine.begin(probe, draws.manual_seed(mixed_seed(self._rbm.seed, self._number, -1)))
            record.start_error = machine.error(probe)
        while record.step < record.steps:
            below.write(self._order.indices(0, record.step), machine.rows)
            self._step(draws)
            if record.step % per_epoch == 0:
                self._end_epoch(probe, held_out)
            if record.step % every == 0 or record.step == record.steps:
                now = time.perf_counter()
                record.seconds += now - since
                since = now
                yield

    def _step(self, draws: torch.Generator) -> None:
        rbm, record, machine = self._rbm, self.record, self.machine
        momentum = rbm.momentum_at(record.step, record.steps)
        draws.manual_seed(mixed_seed(rbm.seed, self._number, record.step))
        error = machine.learn(self._rate * (1 - momentum), momentum, rbm.l2, draws)
        self._finite(error)
        record.step += 1
        record.epoch_sum += error
        record.guards, record.lr_scale = machine.guards, machine.lr_scale

    def _end_epoch(self, probe: Tensor, held_out: Tensor | None) -> None:
        record, machine = self.record, self.machine
        record.epoch_errors.append(record.epoch_sum / self._order.batches_per_epoch)
        record.epoch_sum = 0.0
        record.weight_norm = machine.weight.norm().item()
        if held_out is not None:
            gap = machine.free_energy(held_out) - machine.free_energy(probe)
            record.free_energy_gaps.append(gap)
        record.end_error = machine.error(probe)
        self._finite(record.end_error)

    def _finite(self, error: float) -> None:
        if math.isfinite(error):
            return
        where = f"layer {self._number}, step {self.record.step}"
        if not self.machine.rows.isfinite().all():
            raise ValueError(f"the inputs of {where} hold NaN or infinity: leave such rows out")
        option = "lr_gaussian" if self.record.gaussian else "lr"
        raise ValueError(
            f"the weights of {where} are no longer finite: lower rbm.{option} "
            f"({self._rate:g}) and pretrain into another folder"
        )


def _tell(folder: Path, about: dict[str, Any], records: list[LayerRecord]) -> None:
    text = json.dumps(about | {"layers": [asdict(record) for record in records]}, indent=1)
    write_aside(folder / _RECORD, (text + "\n").encode())


def _files(folder: Path, sizes: Sequence[int]) -> Iterator[tuple[int, Path]]:
    for number, _ in enumerate(pairwise(sizes), 1):
        yield number, folder / f"layer-{number}.safetensors"


def _check(sizes: Sequence[int], samples: int, rbm: Rbm, every: int) -> None:
    if len(sizes) < 2 or min(sizes) < 1:
        raise ValueError(
            f"sizes must be the number of inputs and of each hidden layer's units, not {sizes}"
        )
    if samples < rbm.minibatch:
        raise ValueError(
            f"rbm.minibatch {rbm.minibatch} is more than the {samples} samples: make it smaller"
        )
    if every < 1:
        raise ValueError(f"every must be 1 step or more, not {every}")
