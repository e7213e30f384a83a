"""Crops and flips made beside training, against a bare loop that finds everything in memory."""

from __future__ import annotations

import struct
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from regatta.aboard import aboard, play
from regatta.aside import write_aside
from regatta.benchmarks import Case, Result
from regatta.benchmarks.duel import duel
from regatta.benchmarks.peers import BareLoop, Place
from regatta.benchmarks.world import Network, measured_run
from regatta.config import Run
from regatta.data.frames import locked
from regatta.data.images.augment import Augmentation
from regatta.learn.optimisers import Sgd
from regatta.tasks.images import Images
from regatta.tasks.spoken import cache, keeping
from regatta.worlds.launch import launch

_BAR = 0.9
_MOST_WAITING = 0.03  # of a trainer's time
_WORKERS = 2
_IMAGES, _PIXELS, _CLASSES = 8192, 28, 10
_WARM_UP = 3


def images(pairs: int) -> Result:
    task = Images(train=str(_random_images()), augmentation=Augmentation(margin=2, flip=True))
    task.prepare()  # before anything is timed
    optimiser = Sgd(lr=0.01, momentum=0.9)
    network = Network("small network", task, 64, steps=4, repeats=6, optimiser=optimiser)
    return Result(
        "images",
        "one worker, crops and flips beside it / a bare loop on tensors in memory (or: shares)",
        [
            duel("single", network, InMemory, pairs, workers=1).case(network.name, _BAR),
            *(_waiting(network, workers, pairs) for workers in (1, _WORKERS)),
        ],
    )


class InMemory(BareLoop):
    """On images that were cropped, turned and scaled once and for all."""

    def __init__(self, place: Place) -> None:
        super().__init__(replace(place, data=_Ready(place.data)))


class _Ready:
    """A task's data, all made before training."""

    def __init__(self, data: Any) -> None:
        self.train_samples = data.train_samples
        self._data = data
        self._images, self._labels = data.batch(torch.arange(data.train_samples))

    def batch(self, indices: Tensor) -> tuple[Tensor, Tensor]:
        numbers = indices % self.train_samples
        return self._images[numbers], self._labels[numbers]

    def loss(self, model: nn.Module, batch: Any) -> Tensor:
        loss: Tensor = self._data.loss(model, batch)
        return loss

    def evaluate(self, model: nn.Module) -> dict[str, float]:
        results: dict[str, float] = self._data.evaluate(model)
        return results


def _waiting(network: Network, workers: int, pairs: int) -> Case:
    """The share of a trainer's time in which it asks for its next batch and has not got it."""
    strategy = "single" if workers == 1 else "all-reduce"
    run = measured_run(strategy, network, workers)
    steps = network.steps * network.repeats
    starts = [launch(workers, _wait, (run, steps)) for _ in range(pairs)]
    shares = [median(waited / whole for waited, whole in told) for told in starts]
    milliseconds = 1000 * median(waited for told in starts for waited, _ in told) / steps
    step = 1000 * median(whole for told in starts for _, whole in told) / steps
    said = "a worker waits" if workers == 1 else f"{workers} workers wait"
    return Case(
        said, shares, _MOST_WAITING, f"{milliseconds:.2f} ms", f"{step:.1f} ms a step", at_most=True
    )


def _wait(rank: int, size: int, init_method: str, run: Run, steps: int) -> tuple[float, float]:
    """Seconds of asking for batches, and of everything."""
    with aboard(rank, size, init_method, run) as player:
        asking = _Asking(player.stream, steps)
        player.replica.stream = asking
        play(player)
    return asking.waited, asking.whole


class _Asking:
    """A stream that tells how long its batches were waited for."""

    def __init__(self, stream: Any, steps: int) -> None:
        self.samples = stream.samples
        self.waited = self.whole = 0.0
        self._stream = stream
        self._course = self._turns(steps)

    def next(self, number: int | None = None) -> Any | None:
        return next(self._course, None)

    def _turns(self, steps: int) -> Iterator[Any]:
        for _ in range(_WARM_UP):
            yield self._stream.next()
        began = time.perf_counter()
        for _ in range(steps):
            asked = time.perf_counter()
            batch = self._stream.next()
            self.waited += time.perf_counter() - asked
            yield batch
        self.whole = time.perf_counter() - began


def _random_images() -> Path:
    """Files of MNIST's form, kept for the next time."""
    folder = cache() / "bench" / f"images-{_IMAGES}-{_PIXELS}"
    random = np.random.default_rng(0)
    with keeping(), locked(folder):
        for part, count in (("train", _IMAGES), ("t10k", 512)):
            pixels = random.integers(0, 256, (count, _PIXELS, _PIXELS), np.uint8)
            labels = random.integers(0, _CLASSES, count, np.uint8)
            for kind, array in (("images-idx3", pixels), ("labels-idx1", labels)):
                path = folder / f"{part}-{kind}-ubyte"
                if not path.exists():
                    head = struct.pack(f">HBB{array.ndim}I", 0, 8, array.ndim, *array.shape)
                    write_aside(path, head + array.tobytes())
    return folder
