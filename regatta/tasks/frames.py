"""`frames`: the phone that a frame of speech belongs to, seen with its neighbours."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from functools import lru_cache, partial
from itertools import chain
from pathlib import Path
from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from regatta.data import frames as store
from regatta.data.features import Features, Splice
from regatta.data.labels import Labelling
from regatta.data.shards import Index
from regatta.learn.rbm import Pretrained, Progress, Rbm, load, pretrain
from regatta.models import dnn
from regatta.models.initial import KNOWN, initialise
from regatta.tasks import Metric, device_of
from regatta.tasks.spoken import SYNTH, Tell, cache, digest_of, own_features, silent, synthetic

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
        right = torch.zeros(len(self.symbols) + 1, dtype=torch.int64)
        counts, loss = right.clone(), 0.0
        with units:
            for some in torch.arange(self.eval_samples).split(_CHUNK):
                labels = self._dev.labels[some].long()
                outputs = model(self._dev.inputs(some).to(device)).cpu()
                outputs = self._own(outputs, labels)
                loss += cross_entropy(outputs, labels, ignore_index=-1, reduction="sum").item()
                hits = outputs.argmax(1) == labels
                right += torch.bincount(labels[hits], minlength=len(right))
                # A class that training never had is the last: nobody can be right.
                counts += torch.bincount(labels % len(right), minlength=len(right))
        known = int(counts[:-1].sum())
        results = {"accuracy": int(right.sum()) / int(counts.sum()), "loss": loss / max(1, known)}
        if len(self.blocks) > 1:
            for language, block in self.blocks.items():
                results[f"accuracy {language}"] = int(right[block].sum()) / int(counts[block].sum())
        return results | units.results()

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
    """Notes which units of a model are ever above 0."""

    def __init__(self, model: nn.Module) -> None:
        self._layers = [layer for layer in model.modules() if isinstance(layer, nn.ReLU)]
        self._alive: dict[int, Tensor] = {}

    def __enter__(self) -> None:
        self._hooks = [layer.register_forward_hook(self._look) for layer in self._layers]

    def __exit__(self, *error: object) -> None:
        for hook in self._hooks:
            hook.remove()

    def _look(self, layer: nn.Module, inputs: object, outputs: Tensor) -> None:
        alive = (outputs > 0).flatten(0, -2).any(0)
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
    languages: tuple[str, ...] = ("en",)  # a head each; none: all that the features have
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
    seed: int = 0  # of synthetic speech and pretraining; the run's own draws weights and order

    def __post_init__(self) -> None:
        if not self.hidden or min(self.hidden) < 1:
            raise ValueError(f"task.hidden needs a layer of 1 unit at least, not {self.hidden}")
        if min(self.minutes, self.dev_minutes) <= 0:
            raise ValueError("task.minutes and task.dev_minutes must be more than 0")
        if SYNTH in (self.train, self.dev) and not self.languages:
            raise ValueError("task.languages: name the languages to synthesise, as in en,fr,it")
        if self.splice < 0:
            raise ValueError(f"task.splice must be 0 or more, not {self.splice}")
        if self.init not in (*KNOWN, RBM):
            known = ", ".join((*KNOWN, RBM))
            raise ValueError(f"task.init must be one of {known}, not {self.init}")

    def prepare(self, tell: Tell = silent) -> None:
        """Make what is missing: speech, features, frames, pretrained layers. Once, then kept."""
        _places(self, tell)
        if self.init == RBM:
            _pretrained(self, tell)

    def open(self) -> LabelledFrames:
        self.prepare()
        return _opened(self)

    def model(self) -> nn.Module:
        data = _opened(self)
        model = dnn((data.inputs, *self.hidden, len(data.symbols)), self.activation)
        initialise(model, "xavier" if self.init == RBM else self.init)
        if self.init == RBM:
            load(model, _pretrained(self))
        return model


@lru_cache(maxsize=4)
def _opened(task: Frames) -> LabelledFrames:
    train, dev = map(store.open_frames, _places(task))
    head = str(2 * len(task.hidden))  # the last layer: its rows stand for the classes
    return LabelledFrames(train, dev, head)


@lru_cache(maxsize=4)
def _pretrained(task: Frames, tell: Tell = silent) -> Pretrained:
    data = _opened(task)
    sizes, rbm = (data.inputs, *task.hidden), replace(task.rbm, seed=task.seed)
    folder = cache() / "rbm" / digest_of([sizes, asdict(rbm), data.identity])
    folder.mkdir(parents=True, exist_ok=True)

    def progress(at: Progress) -> None:
        tell(f"pretraining layer {at.layer} of {at.layers}", at.step / at.steps)

    with store.locked(folder):
        return pretrain(
            sizes, data.windows, data.train_samples, rbm, folder, progress, identity=data.identity
        )


def _places(task: Frames, tell: Tell = silent) -> tuple[Path, Path]:
    """The folders of the frames to train and to evaluate with."""
    made = [
        synthetic(language, (task.minutes, task.dev_minutes), task.seed, _features(task), tell)
        for language in (task.languages if SYNTH in (task.train, task.dev) else ())
    ]
    train = _indexes(task.train, "task.train", [pair[0] for pair in made])
    dev = _indexes(task.dev, "task.dev", [pair[1] for pair in made])
    framing = store.Framing(Splice(task.splice, task.splice), task.labels, task.normalise)
    name = digest_of([str(i.folder.resolve()) for i in chain(train, dev)] + [asdict(framing)])
    folder = cache() / "frames" / f"{'-'.join(task.languages) or 'all'}-{name}"
    progress = partial(tell, "labelling frames")
    place = store.build(train, framing, folder / "train", task.languages, progress=progress)
    return place, store.build(dev, framing, folder / "dev", task.languages, place, progress)


def _indexes(folder: str, option: str, made: list[Index]) -> list[Index]:
    return made if folder == SYNTH else [own_features(folder, option)]


def _features(task: Frames) -> Features:
    return Features(mels=task.mels, mfcc=0)
