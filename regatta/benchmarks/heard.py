"""What a real recogniser puts out: a small one, trained for benchmarks once, and kept."""

from __future__ import annotations

import io
import json
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from regatta.aside import write_aside
from regatta.data.alphabet import Alphabet
from regatta.data.frames import locked
from regatta.models.recogniser import Network
from regatta.tasks.speech import Speech
from regatta.tasks.spoken import cache, digest_of, keeping

_TASK = Speech(
    minutes=20.0,
    dev_minutes=4.0,
    network=Network(channels=160, hidden=160, layers=1, bidirectional=True),
)
_MINIBATCH, _EPOCHS, _LR, _MOST_NORM = 8, 20, 4e-3, 20.0  # some 100 s on a core


@dataclass(frozen=True)
class Heard:
    alphabet: Alphabet
    outputs: list[Tensor]  # of the utterances to evaluate with, [frame, symbol]
    texts: list[str]  # what they say
    learnt: list[str]  # the texts of the training
    seconds: float  # that are heard

    def kept(self) -> bytes:
        about = {
            "texts": self.texts, "learnt": self.learnt, "seconds": self.seconds,
            "alphabet": asdict(self.alphabet),
        }  # fmt: skip
        file = io.BytesIO()
        arrays = {f"u{number:06d}": each.numpy() for number, each in enumerate(self.outputs)}
        np.savez(file, about=np.array(json.dumps(about)), **arrays)  # type: ignore[arg-type]
        return file.getvalue()

    @classmethod
    def of_file(cls, path: Path) -> Heard:
        with np.load(path, allow_pickle=False) as file:
            about = json.loads(str(file["about"]))
            names = sorted(set(file.files) - {"about"})
            outputs = [torch.from_numpy(file[name]) for name in names]
        alphabet = Alphabet(**about["alphabet"])
        return cls(alphabet, outputs, about["texts"], about["learnt"], about["seconds"])


def heard() -> Heard:
    """From the last time, or trained now."""
    options = [asdict(_TASK), _MINIBATCH, _EPOCHS, _LR, _MOST_NORM]
    folder = cache() / "bench" / digest_of(options)
    with keeping(), locked(folder):
        with suppress(OSError, ValueError, KeyError):
            return Heard.of_file(folder / "outputs.npz")
        found = _trained()
        write_aside(folder / "outputs.npz", found.kept())
    return found


def _trained() -> Heard:
    _TASK.prepare()
    torch.manual_seed(0)
    data, model = _TASK.open(), _TASK.model()
    optimiser = torch.optim.Adam(model.parameters(), _LR)
    for epoch in range(_EPOCHS):
        for indices in data.deal(_MINIBATCH, 1, 0, epoch)[0]:
            optimiser.zero_grad()
            data.loss(model, data.batch(indices)).backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), _MOST_NORM)
            optimiser.step()
    texts, outputs = zip(*data.listened(model.eval()), strict=True)
    features, network = _TASK.features, _TASK.network
    frames = sum(map(len, outputs)) * network.stride
    seconds = frames * features.hop / features.rate
    kept = [each.clone() for each in outputs]
    return Heard(data.alphabet, kept, list(texts), data.learnt, seconds)
