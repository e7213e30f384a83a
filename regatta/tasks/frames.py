"""`frames`: the phone that a frame of speech belongs to, seen with its neighbours."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from regatta.data import frames as store
from regatta.data.features import Features, Splice
from regatta.data.jobs import one_thread
from regatta.data.labels import Labelling
from regatta.data.problems import Problems
from regatta.data.synth.texts import LANGUAGES
from regatta.learn.rbm import Pretrained, Progress, Rbm, load, pretrain
from regatta.models.dnn import ACTIVATIONS, dnn
from regatta.models.initial import KNOWN, initialise
from regatta.tasks import Metric, device_of
from regatta.tasks.spoken import (
    SYNTH,
    Tell,
    cache,
    digest_of,
    keeping,
    own_features,
    silent,
    synthetic,
)

if TYPE_CHECKING:
    from regatta.data.shards import Index  # pyarrow takes its time

_CHUNK = 4096  # frames that are evaluated at once
_MANY_DEAD = 0.05  # of the rectifiers: worth a warning
RBM = "rbm"


class LabelledFrames:
    """Frames to train with and to evaluate with; a head for each language."""

    def __init__(self, train: store.Frames, dev: store.Frames, head: str) -> None:
        self.train_samples, self.eval_samples = len(train), len(dev)
        self.symbols = train.symbols
        self.blocks = train.blocks
        self._train, self._dev = train, dev
        self.head = head
        self.identity: str = train.about["identity"]
        self._mask = _Mask(train.blocks) if len(train.blocks) > 1 else None

    @property
    def inputs(self) -> int:
        return self._train.windows.shape[1]

    def windows(self, indices: Tensor) -> Tensor:
        return self._train.inputs(indices)

    def batch(self, indices: Tensor) -> tuple[Tensor, Tensor]:
        return self._train.inputs(indices), self._train.labels[indices].long()

    def audio_seconds(self, indices: Tensor) -> float:
        return len(indices) * self._train.seconds

    def loss(self, model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
        inputs, labels = batch
        return cross_entropy(self._own(model(inputs), labels), labels)

    def evaluate(self, model: nn.Module) -> dict[str, float]:
        device, units = device_of(model), _Rectifiers(model)
        right, loss = torch.zeros(len(self.symbols), dtype=torch.int64), 0.0
        with units:
            for some in torch.arange(self.eval_samples).split(_CHUNK):
                labels = self._dev.labels[some].long()
                outputs = model(self._dev.inputs(some).to(device)).cpu()
                outputs = self._own(outputs, labels)
                loss += cross_entropy(outputs, labels, ignore_index=-1, reduction="sum").item()
                hits = outputs.argmax(1) == labels
                right += torch.bincount(labels[hits], minlength=len(right))
        # Of a class that training never had nobody can be right, and there is no loss.
        known = self.eval_samples - self._dev.about["unknown"]
        results = {"accuracy": int(right.sum()) / self.eval_samples, "loss": loss / known}
        if len(self.blocks) > 1:
            for language, samples in self._dev.about["spoken"].items():
                if samples:
                    own = int(right[self.blocks[language]].sum())
                    results[f"accuracy {language}"] = own / samples
        return results | units.results()

    def notes(self) -> Iterator[str]:
        """What is left out, and what is there in vain."""
        for option, frames in (("train", self._train), ("dev", self._dev)):
            problems = Problems.from_json(frames.about["problems"])
            yield from (f"task.{option}: {line}" for line in problems.lines())
        unknown = self._dev.about["unknown"]
        if unknown:
            yield (
                f"task.dev: {unknown:,} of {self.eval_samples:,} frames are of classes that "
                "training never has: they count as errors"
            )

    def complaints(self, results: Mapping[str, float]) -> dict[str, str]:
        """By kind, what there is to warn of."""
        dead = results.get("dead", 0.0)
        if dead < _MANY_DEAD:
            return {}
        return {
            "dead": f"{dead:.0%} of the rectifiers are dead: they are 0 for every frame of the dev "
            "set and learn nothing any more; a smaller optimiser.lr or activation=tanh avoids that"
        }

    def _own(self, outputs: Tensor, labels: Tensor) -> Tensor:
        """Without the classes of other languages than the frames are of."""
        if self._mask is None:
            return outputs
        return outputs + self._mask(labels)


class _Mask:
    """Minus infinity for the classes of all languages but the one that a label is of."""

    def __init__(self, blocks: Mapping[str, slice]) -> None:
        size = max(block.stop for block in blocks.values())
        self._language = torch.zeros(size, dtype=torch.int64)
        self._rows = torch.full((len(blocks), size), -torch.inf)
        for number, block in enumerate(blocks.values()):
            self._language[block] = number
            self._rows[number, block] = 0.0

    def __call__(self, labels: Tensor) -> Tensor:
        if self._rows.device != labels.device:
            self._rows, self._language = (
                tensor.to(labels.device) for tensor in (self._rows, self._language)
            )
        return self._rows[self._language[labels]]


class _Rectifiers:
    """Notes which units of a model are ever other than 0."""

    def __init__(self, model: nn.Module) -> None:
        self._layers = [layer for layer in model.modules() if isinstance(layer, nn.ReLU)]
        self._alive: dict[int, Tensor] = {}

    def __enter__(self) -> None:
        self._hooks = [layer.register_forward_hook(self._look) for layer in self._layers]

    def __exit__(self, *error: object) -> None:
        for hook in self._hooks:
            hook.remove()

    def _look(self, layer: nn.Module, inputs: object, outputs: Tensor) -> None:
        alive = (outputs != 0).flatten(0, -2).any(0)  # NaN is another illness
        before = self._alive.get(id(layer))
        self._alive[id(layer)] = alive if before is None else before | alive

    def results(self) -> dict[str, float]:
        """The share that is dead; nothing where there are no rectifiers."""
        units = torch.cat([*self._alive.values()]) if self._alive else torch.ones(0)
        return {"dead": 1 - units.float().mean().item()} if len(units) else {}


@dataclass(frozen=True)
class Frames:
    """Phones of single frames of speech, seen with their neighbours; dev accuracy."""

    name: ClassVar[str] = "frames"
    metric: ClassVar[Metric] = Metric("accuracy")

    train: str = SYNTH  # a folder of features with times of phones; or synth: speech made here
    dev: str = SYNTH  # the same, to evaluate with
    languages: tuple[str, ...] = ("en",)  # a head each; none: all of one's own features
    minutes: float = 20.0  # synth: of speech to train with, a language
    dev_minutes: float = 4.0  # synth: of speech to evaluate with, a language
    mels: int = 40  # synth: features a frame
    hidden: tuple[int, ...] = (128, 128, 40, 128, 128)  # sizes of the hidden layers
    activation: str = "relu"  # tanh, softplus or sigmoid
    init: str = "xavier"  # lecun, torch, or rbm: pretrained layer by layer
    splice: int = 8  # frames on either side
    normalise: str = "global"  # speaker, or none
    labels: Labelling = field(default_factory=Labelling)
    rbm: Rbm = field(default_factory=Rbm)  # how init=rbm pretrains
    seed: int = 0  # of synthetic speech; the run's own draws weights and order

    def __post_init__(self) -> None:
        if not self.hidden or min(self.hidden) < 1:
            raise ValueError(f"task.hidden needs a layer of 1 unit at least, not {self.hidden}")
        if not (0 < self.minutes < math.inf and 0 < self.dev_minutes < math.inf):
            raise ValueError("task.minutes and task.dev_minutes must be numbers more than 0")
        if len(set(self.languages)) < len(self.languages):
            raise ValueError("task.languages: name every language once")
        for option, known in (("activation", tuple(ACTIVATIONS)), ("init", (*KNOWN, RBM))):
            if getattr(self, option) not in known:
                given = getattr(self, option)
                raise ValueError(f"task.{option} must be one of {', '.join(known)}, not {given}")
        self.framing, self.features  # noqa: B018  they check their options

    @property
    def framing(self) -> store.Framing:
        return store.Framing(Splice(self.splice, self.splice), self.labels, self.normalise)

    @property
    def features(self) -> Features:
        """Of synthetic speech."""
        return Features(mels=self.mels, mfcc=0)

    def prepare(self, tell: Tell = silent) -> list[str]:
        """Make what is missing: speech, features, frames, pretrained layers. Once, then kept.

        Returns what a person should know of them.
        """
        data = _opened(self, tell)
        if self.init == RBM:
            _pretrained(self, data, tell)
        return list(data.notes())

    def open(self) -> LabelledFrames:
        return _opened(self)

    def model(self) -> nn.Module:
        data = _opened(self)
        model = dnn((data.inputs, *self.hidden, len(data.symbols)), self.activation)
        initialise(model, "xavier" if self.init == RBM else self.init)
        if self.init == RBM:
            load(model, _pretrained(self, data))
        return model


def _opened(task: Frames, tell: Tell = silent) -> LabelledFrames:
    with keeping():
        train, dev = map(store.open_frames, _places(task, tell))
    head = str(2 * len(task.hidden))  # the last layer: its rows stand for the classes
    return LabelledFrames(train, dev, head)


def _pretrained(task: Frames, data: LabelledFrames, tell: Tell = silent) -> Pretrained:
    """The same bits for everybody, however many threads they compute with."""
    sizes = (data.inputs, *task.hidden)
    folder = cache() / "rbm" / digest_of([sizes, asdict(task.rbm), data.identity])

    def progress(at: Progress) -> None:
        tell(f"pretraining layer {at.layer} of {at.layers}", at.step / at.steps)

    with keeping(), store.locked(folder), one_thread():
        return pretrain(
            sizes,
            data.windows,
            data.train_samples,
            task.rbm,
            folder,
            progress,
            identity=data.identity,
        )


def _places(task: Frames, tell: Tell) -> tuple[Path, Path]:
    """The folders of the frames to train and to evaluate with."""
    train, dev = _indexes(task, tell)
    sources = [[str(index.folder.resolve()) for index in some] for some in (train, dev)]
    name = digest_of([sources, task.languages, asdict(task.framing)])
    folder, progress = cache() / "frames" / name, partial(tell, "labelling frames")
    place = store.build(train, task.framing, folder / "train", task.languages, progress=progress)
    return place, store.build(dev, task.framing, folder / "dev", task.languages, place, progress)


def _indexes(task: Frames, tell: Tell) -> tuple[list[Index], list[Index]]:
    if SYNTH not in (task.train, task.dev):
        return [own_features(task.train, "task.train")], [own_features(task.dev, "task.dev")]
    if task.train != task.dev:
        raise ValueError("task.train and task.dev: name a folder of features for both")
    if not task.languages or not set(task.languages) <= set(LANGUAGES):
        some = ", ".join(LANGUAGES)
        raise ValueError(f"task.languages: name the languages to synthesise, some of {some}")
    minutes = task.minutes, task.dev_minutes
    made = [synthetic(of, minutes, task.seed, task.features, tell) for of in task.languages]
    return [train for train, _ in made], [dev for _, dev in made]
