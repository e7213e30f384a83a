"""`images`: what a picture shows; the classifier of Campos et al., and a small one."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from regatta.data.frames import locked
from regatta.data.images.augment import Augmentation, augmented, middle
from regatta.data.images.source import DIGITS, TEST, TRAIN, Shape, source_of
from regatta.data.seeds import mixed_seed
from regatta.models.normalisation import NORMS
from regatta.models.resnet import ResNet50, SmallResNet
from regatta.tasks import Metric, device_of
from regatta.tasks.spoken import Tell, cache, digest_of, keeping, silent

if TYPE_CHECKING:
    from regatta.data.images.packed import Packed  # pyarrow takes its time

_TOGETHER = 256  # images that are evaluated at once
_TOP = 5
_LEAST_OF_LARGE = 32  # pixels: ResNet-50 halves them five times
NETWORKS = ("small", "resnet-50")

Batch = tuple[Tensor, Tensor]  # images, labels


@dataclass(frozen=True)
class Network:
    kind: str = "small"  # or resnet-50
    width: int = 16  # small: channels of the first stage; each further one has twice as many
    blocks: tuple[int, ...] = (1, 1, 1)  # small: of two convolutions, by stage

    def __post_init__(self) -> None:
        if self.kind not in NETWORKS:
            known = ", ".join(NETWORKS)
            raise ValueError(f"task.network.kind must be one of {known}, not {self.kind}")
        if self.width < 1 or not self.blocks or min(self.blocks) < 1:
            raise ValueError("task.network needs a width and blocks of 1 or more in every stage")

    def built(self, classes: int, channels: int, statistics: str) -> nn.Module:
        norm = NORMS[statistics]
        if self.kind == "resnet-50":
            return ResNet50(classes, channels, norm)
        return SmallResNet(classes, channels, self.width, self.blocks, norm)


class LabelledImages:
    """Images to train with and to evaluate with."""

    head = "fc"

    def __init__(self, task: Images, train: Packed, dev: Packed) -> None:
        self.task, self._train, self._dev = task, train, dev
        self.train_samples, self.eval_samples = len(train), len(dev)
        self.symbols = train.classes
        self.channels, self.size = train.shape[0], task.crop or train.shape[1]
        self.identity = digest_of([train.identity, dev.identity])
        spread = [each or 1.0 for each in train.deviation]  # a channel that never changes
        self._scale = torch.tensor([1 / (255 * each) for each in spread]).view(-1, 1, 1)
        shifts = [-m / s for m, s in zip(train.mean, spread, strict=True)]
        self._shift = torch.tensor(shifts).view(-1, 1, 1)
        self._ahead = _Ahead(self._made)

    # -- training -----------------------------------------------------------------------------

    def deal(self, minibatch: int, workers: int, seed: int, epoch: int) -> Tensor:
        """By worker and number of the batch. An index tells the epoch too: every epoch an image is
        augmented anew."""
        generator = torch.Generator().manual_seed(mixed_seed(seed, epoch))
        order = torch.randperm(self.train_samples, generator=generator)
        batches = self.train_samples // (minibatch * workers)
        dealt = order[: batches * minibatch * workers].view(batches, workers, minibatch)
        return dealt.transpose(0, 1) + epoch * self.train_samples

    def batch(self, indices: Tensor) -> Batch:
        return self._ahead.take(indices)

    def expect(self, indices: Tensor) -> None:
        """These will be asked for next: begin with them, beside training."""
        self._ahead.begin(indices)

    def _made(self, indices: Tensor) -> Batch:
        epochs, numbers = np.divmod(indices.numpy(), self.train_samples)
        images, how = self._train.pixels(numbers), self.task.augmentation
        images = augmented(images, numbers, int(epochs[0]), self.size, how, self.task.seed)
        return self._normalised(images), self._train.labels[torch.from_numpy(numbers)]

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        """Cross-entropy, and half the squares of all matrices and kernels, weighed."""
        images, labels = batch
        loss = cross_entropy(model(images), labels)
        if self.task.l2:
            squares = sum(p.square().sum() for p in model.parameters() if p.dim() > 1)
            loss = loss + (self.task.l2 / 2) * squares
        return loss

    # -- evaluation ---------------------------------------------------------------------------

    def evaluate(self, model: nn.Module) -> dict[str, float]:
        device, top = device_of(model), min(_TOP, len(self.symbols))
        right, among, loss = 0, 0, 0.0
        for numbers in np.array_split(
            np.arange(self.eval_samples), -(-self.eval_samples // _TOGETHER)
        ):
            images = self._normalised(middle(self._dev.pixels(numbers), self.size))
            labels = self._dev.labels[torch.from_numpy(numbers)]
            outputs = model(images.to(device)).cpu()
            loss += cross_entropy(outputs, labels, reduction="sum").item()
            best = outputs.topk(top).indices == labels[:, None]
            right += int(best[:, 0].sum())
            among += int(best.sum())
        results = {"accuracy": right / self.eval_samples, "loss": loss / self.eval_samples}
        if len(self.symbols) > _TOP:
            results["top5"] = among / self.eval_samples
        return results

    def notes(self) -> Iterator[str]:
        """What is left out, or used though it is not as it should be."""
        for option, part in (("train", self._train), ("dev", self._dev)):
            yield from (f"task.{option}: {line}" for line in part.problems.lines())

    def _normalised(self, images: Tensor) -> Tensor:
        return images.float().mul_(self._scale).add_(self._shift)


class _Ahead:
    """One batch that is made in a thread while another is used."""

    def __init__(self, make: Callable[[Tensor], Batch]) -> None:
        self._make = make
        self._threads: ThreadPoolExecutor | None = None  # of this process, once it is needed
        self._next: tuple[Tensor, Future[Batch]] | None = None

    def begin(self, indices: Tensor) -> None:
        if self._threads is None:
            self._threads = ThreadPoolExecutor(1, "images")
        self._next = indices, self._threads.submit(self._make, indices)

    def take(self, indices: Tensor) -> Batch:
        if self._next is not None:
            (expected, made), self._next = self._next, None
            if torch.equal(expected, indices):
                return made.result()
        return self._make(indices)


@dataclass(frozen=True)
class Images:
    """What a picture shows: a residual network; dev accuracy."""

    name: ClassVar[str] = "images"
    metric: ClassVar[Metric] = Metric("accuracy")

    train: str = DIGITS  # a folder: of MNIST's or CIFAR-10's files, or of a folder a class
    dev: str = ""  # the same, to evaluate with; none: the test part of train
    shape: Shape = field(default_factory=Shape)  # of images from files of their own
    crop: int = 0  # rows and columns that the network sees; 0: all
    network: Network = field(default_factory=Network)
    statistics: str = "averaged"  # of batch normalisation; local to every worker, or frozen
    augmentation: Augmentation = field(default_factory=Augmentation)
    l2: float = 1e-4  # weight of half the squares of matrices and kernels in the loss
    seed: int = 0  # of crops and flips; the run's own draws weights and order

    def __post_init__(self) -> None:
        if self.crop < 0 or not self.l2 >= 0:
            raise ValueError("task.crop and task.l2 must be 0 or more")
        if self.statistics not in NORMS:
            known = ", ".join(NORMS)
            raise ValueError(f"task.statistics must be one of {known}, not {self.statistics}")

    def check_answer(self, strategy: str, answer: str) -> None:
        if self.statistics == "local" and answer == "server":
            raise ValueError(
                f"task.statistics=local: with {strategy} a server holds the answer, and it never "
                "sees a batch; use averaged or frozen"
            )

    def prepare(self, tell: Tell = silent) -> list[str]:
        """Pack what is not packed yet. Returns what a person should know of it."""
        return list(_opened(self, tell).notes())

    def open(self) -> LabelledImages:
        return _opened(self)

    def model(self) -> nn.Module:
        data = _opened(self)
        return self.network.built(len(data.symbols), data.channels, self.statistics)


def _opened(task: Images, tell: Tell = silent) -> LabelledImages:
    train = _packed(task, task.train, TRAIN, tell)
    dev = _packed(task, task.dev or task.train, TEST, tell)
    if (train.shape[0], train.classes) != (dev.shape[0], dev.classes):
        raise ValueError(
            f"task.train has {len(train.classes)} classes and {train.shape[0]} channels, task.dev "
            f"{len(dev.classes)} and {dev.shape[0]}: they are not of one set"
        )
    seen = task.crop or train.shape[1]
    for option, part in (("train", train), ("dev", dev)):
        if seen > min(part.shape[1:]):
            has = f"{part.shape[1]} x {part.shape[2]}"
            raise ValueError(
                f"task.crop: images of task.{option} have {has} pixels, which leaves no {seen} x "
                f"{seen}"
            )
    if task.network.kind == "resnet-50" and seen < _LEAST_OF_LARGE:
        raise ValueError(
            f"task.network.kind=resnet-50 needs images of {_LEAST_OF_LARGE} pixels or more, and "
            f"these have {seen}: use task.network.kind=small"
        )
    return LabelledImages(task, train, dev)


def _packed(task: Images, place: str, split: str, tell: Tell) -> Packed:
    """Made when it is first asked for; whoever comes meanwhile waits for it."""
    from regatta.data.images.packed import is_packed, open_packed, pack

    source = "" if place == DIGITS else str(Path(place).expanduser().resolve())
    name = digest_of([source or place, split, asdict(task.shape), _newest(source)])
    folder = cache() / "images" / name
    with keeping(), locked(folder):
        if not is_packed(folder):
            option = "train" if split == TRAIN else "dev"
            try:
                found = source_of(place, split, task.shape)
                pack(found, folder, _jobs(), lambda share: tell(f"packing images: {option}", share))
            except ValueError as error:
                raise ValueError(f"task.{option}={place}: {error}") from None
    return open_packed(folder)


def _newest(source: str) -> list[tuple[str, int]]:
    """What of a folder changes when images are added or removed: times of the folders in it."""
    if not source or not os.path.isdir(source):
        return []
    return sorted((root, os.stat(root).st_mtime_ns) for root, _, _ in os.walk(source))


def _jobs() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
