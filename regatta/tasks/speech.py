"""`speech`: what is said, letter by letter; the recogniser of Baunsgaard et al."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import ctc_loss

from regatta.data.alphabet import ENGLISH, Alphabet, alphabet_of
from regatta.data.augment import Augmentation
from regatta.data.checks import Checks
from regatta.data.features import Features
from regatta.data.normalise import sum_of
from regatta.data.plan import Batching, Numbers, Plan
from regatta.data.synth.texts import LANGUAGES
from regatta.decode import Decoder
from regatta.decode.decoding import Decoding
from regatta.decode.errors import ErrorRates, Pair
from regatta.decode.greedy import Greedy
from regatta.models.recogniser import Network, Recogniser
from regatta.tasks import Metric, device_of
from regatta.tasks.spoken import SYNTH, Tell, digest_of, own_features, silent, synthetic

if TYPE_CHECKING:
    from regatta.data.shards import Index  # pyarrow takes its time
    from regatta.data.utterances import Utterances

_TOGETHER = 32  # utterances that are evaluated at once
_SEPARATOR = "~"
AUTO = "auto"

Batch = tuple[Tensor, Tensor, Tensor, Tensor]  # features, frames, targets, symbols


class Speaking:
    """Utterances to train with and to evaluate with."""

    head = "head"

    def __init__(self, task: Speech, train: Utterances, dev: Utterances) -> None:
        self.task, self._train, self._dev = task, train, dev
        self.train_samples, self.eval_samples = len(train), len(dev)
        self.alphabet = train.checks.alphabet
        self.inputs = train.index.features.size
        self.symbols = (*self.alphabet.symbols, *self.alphabet.separator, "")
        self.identity = digest_of(
            [[part.index.shards, part.texts] for part in (train, dev)] + [asdict(self.alphabet)]
        )
        self.deal = lru_cache(maxsize=4)(self._deal)
        self._plan = lru_cache(maxsize=4)(self._planned)
        self._greedy = Greedy(self.alphabet)

    # -- training -----------------------------------------------------------------------------

    def _deal(self, minibatch: int, workers: int, seed: int, epoch: int) -> list[list[Tensor]]:
        """Utterances of like length stand together. An index tells the epoch too: every epoch an
        utterance is augmented anew."""
        plan, first = self._plan(minibatch, workers, seed), epoch * len(self._train.index)
        return [
            [torch.from_numpy(numbers + first) for numbers in plan.batches(epoch, worker)]
            for worker in range(workers)
        ]

    def _planned(self, minibatch: int, workers: int, seed: int) -> Plan:
        batching = Batching(minibatch, buckets=self.task.buckets, seed=seed)
        index = self._train.index
        return Plan(batching, self._train.numbers, index.seconds, index.shard_of, workers)

    def batch(self, indices: Tensor) -> Batch:
        epochs, numbers = np.divmod(indices.numpy(), len(self._train.index))
        return self._train.batch(numbers, int(epochs[0]))[:4]

    def audio_seconds(self, indices: Tensor) -> float:
        numbers = indices.numpy() % len(self._train.index)
        return float(self._train.index.seconds[numbers].sum())

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        """The mean over utterances. It is finite: what cannot be aligned is left out before."""
        features, frames, targets, symbols = batch
        outputs, spoken = outputs_of(model, features, frames)
        loss = ctc(outputs.transpose(0, 1), spoken, targets, symbols, self.alphabet.blank)
        return loss / len(features)

    def sentence(self, model: nn.Module, index: Tensor) -> tuple[str, str]:
        """What an utterance says, and what the model writes for it."""
        device = device_of(model)
        features, frames, targets, _ = (part.to(device) for part in self.batch(index))
        outputs, spoken = outputs_of(model, features, frames)
        ((best, *_),) = self._greedy.decode(outputs.cpu(), spoken.cpu())
        return self.alphabet.decoded(targets[0].tolist()), best.text

    # -- evaluation ---------------------------------------------------------------------------

    def evaluate(self, model: nn.Module) -> dict[str, float]:
        device, blank = device_of(model), self.alphabet.blank
        pairs: list[Pair] = []
        loss = 0.0
        for numbers in self._dev_batches:
            batch = self._dev.batch(numbers)
            features, frames, targets, symbols = (part.to(device) for part in batch[:4])
            outputs, spoken = outputs_of(model, features, frames)
            loss += ctc(outputs.transpose(0, 1), spoken, targets, symbols, blank).item()
            found = self._decoder.decode(outputs.cpu(), spoken.cpu())
            pairs += [
                Pair(self._dev.texts[number], best.text)
                for number, (best, *_) in zip(numbers, found, strict=True)
            ]
        rates = ErrorRates.of(pairs)
        return {
            "wer": rates.wer,
            "cer": rates.cer,
            "cer_longer": rates.cer_longer,
            "loss": loss / self.eval_samples,
        }

    @torch.no_grad()
    def listened(self, model: nn.Module) -> Iterator[tuple[str, Tensor]]:
        """What each utterance to evaluate with says, and what a model puts out for it."""
        for numbers in self._dev_batches:
            features, frames = self._dev.batch(numbers)[:2]
            outputs, spoken = outputs_of(model, features, frames)
            for number, each, count in zip(numbers, outputs, spoken.tolist(), strict=True):
                yield self._dev.texts[number], each[:count]

    @property
    def learnt(self) -> list[str]:
        """The texts to train with."""
        return list(self._train.texts.values())

    @cached_property
    def _dev_batches(self) -> list[Numbers]:
        return by_length(self._dev.index, self._dev.numbers)

    @cached_property
    def _decoder(self) -> Decoder:
        return self.task.decoding.build(self.alphabet, self.texts)

    @property
    def texts(self) -> list[str]:
        """That are learnt from."""
        return list(self._train.texts.values())

    def notes(self) -> Iterator[str]:
        """What is left out, or used though it is not as it should be."""
        for option, part in (("train", self._train), ("dev", self._dev)):
            for problems in (part.index.problems, part.problems):
                yield from (f"task.{option}: {line}" for line in problems.lines())

    def complaints(self, results: Mapping[str, float]) -> dict[str, str]:
        if results["wer"] < 1 or results["cer"] < 1:
            return {}
        return {
            "blank": "the recogniser writes nothing but blanks: in its first epochs every "
            "recogniser does that; if it stays so, train longer or with another optimiser.lr"
        }

    def description(self) -> dict[str, Any]:
        """What somebody needs who uses the model without these data."""
        return self._description

    @cached_property
    def _description(self) -> dict[str, Any]:
        sums = {} if self.task.normalise == "none" else self._train.index.sums
        return {
            "alphabet": asdict(self.alphabet),
            "features": asdict(self._train.index.features),
            "normalise": self.task.normalise,
            "sums": sum_of(sums).plain() if sums else None,
            "words": sorted({word for text in self._train.texts.values() for word in text.split()}),
        }


def by_length(index: Index, numbers: Numbers) -> list[Numbers]:
    """Utterances to evaluate together, of like lengths: nothing is computed in vain."""
    ordered = numbers[np.argsort(index.frames[numbers])]
    return np.array_split(ordered, math.ceil(len(ordered) / _TOGETHER))


def outputs_of(model: nn.Module, features: Tensor, frames: Tensor) -> tuple[Tensor, Tensor]:
    """Log probabilities, [utterance, frame, symbol], and how many frames of each count."""
    assert isinstance(model, Recogniser)
    outputs: Tensor = model(features, frames)
    return outputs.transpose(0, 1), model.frames(frames)


def ctc(outputs: Tensor, frames: Tensor, targets: Tensor, symbols: Tensor, blank: int) -> Tensor:
    return ctc_loss(outputs, targets, frames, symbols, blank, reduction="sum")


@dataclass(frozen=True)
class Speech:
    """What is said, letter by letter: a recogniser trained by CTC; word error rate."""

    name: ClassVar[str] = "speech"
    metric: ClassVar[Metric] = Metric("wer", higher_is_better=False)

    train: str = SYNTH  # a folder of features; or synth: speech made here
    dev: str = SYNTH  # the same, to evaluate with
    language: str = "en"  # synth
    minutes: float = 60.0  # synth: of speech to train with
    dev_minutes: float = 6.0  # synth: of speech to evaluate with
    mels: int = 80  # synth
    mfcc: int = 13  # synth
    normalise: str = "global"  # speaker, or none
    alphabet: str = ""  # all symbols; none: English letters; auto: those of the texts
    separator: bool = True  # a symbol between doubled letters
    max_seconds: float = 16.7  # longer utterances are left out
    buckets: int = 8  # of lengths; utterances of a batch are of one
    network: Network = field(default_factory=Network)
    augmentation: Augmentation = field(default_factory=Augmentation)
    decoding: Decoding = field(default_factory=Decoding)  # in evaluations
    seed: int = 0  # of synthetic speech; the run's own draws weights and order

    def __post_init__(self) -> None:
        if not (0 < self.minutes < math.inf and 0 < self.dev_minutes < math.inf):
            raise ValueError("task.minutes and task.dev_minutes must be numbers more than 0")
        if self.language not in LANGUAGES:
            known = ", ".join(LANGUAGES)
            raise ValueError(f"task.language must be one of {known}, not {self.language}")
        if self.buckets < 1 or not self.max_seconds > 0:
            raise ValueError("task.buckets must be 1 or more, task.max_seconds more than 0")
        self.features  # noqa: B018  they check their options

    @property
    def features(self) -> Features:
        """Of synthetic speech."""
        return Features(mels=self.mels, mfcc=self.mfcc)

    def prepare(self, tell: Tell = silent) -> list[str]:
        """Make the speech that is missing. Returns what a person should know of it."""
        return list(_opened(self, tell).notes())

    def open(self) -> Speaking:
        return _opened(self)

    def dev_features(self, tell: Tell = silent) -> Index:
        """To evaluate with; those to train with may be gone."""
        if self.dev == SYNTH:
            return _indexes(self, tell)[1]
        return own_features(self.dev, "task.dev")

    def model(self) -> nn.Module:
        data = _opened(self)
        return Recogniser(data.inputs, data.alphabet.outputs, self.network)


def _opened(task: Speech, tell: Tell = silent) -> Speaking:
    from regatta.data.utterances import Utterances

    task.decoding.check()
    train, dev = _indexes(task, tell)
    checks = _checks(task, train)
    no_change = Augmentation()
    learnt = Utterances(train, checks, task.augmentation, task.normalise)
    sums = None if task.normalise == "none" else train.sums
    scored = Utterances(dev, checks, no_change, task.normalise, sums)
    return Speaking(task, learnt, scored)


def _checks(task: Speech, train: Index) -> Checks:
    alphabet = Alphabet(task.alphabet or ENGLISH)
    if task.alphabet == AUTO:
        alphabet = alphabet_of(train.texts("text"))
    if task.separator:
        alphabet = replace(alphabet, separator=_SEPARATOR)
    network = task.network
    return Checks(alphabet, task.max_seconds, network.kernel, network.stride)


def _indexes(task: Speech, tell: Tell) -> Sequence[Index]:
    if SYNTH not in (task.train, task.dev):
        return own_features(task.train, "task.train"), own_features(task.dev, "task.dev")
    if task.train != task.dev:
        raise ValueError("task.train and task.dev: name a folder of features for both")
    minutes = task.minutes, task.dev_minutes
    return synthetic(task.language, minutes, task.seed, task.features, tell)
