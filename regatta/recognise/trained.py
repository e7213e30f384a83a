"""A recogniser as its training left it, with all that is needed to use it."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from regatta import checkpoint
from regatta.checkpoint import BadCheckpoint
from regatta.config import from_plain
from regatta.data.alphabet import Alphabet
from regatta.data.audio import Samples
from regatta.data.features import Extractor, Features
from regatta.data.normalise import Sums
from regatta.models.recogniser import Network, Recogniser
from regatta.start import file_of


@dataclass(frozen=True, eq=False)
class Trained:
    origin: Path
    model: Recogniser
    alphabet: Alphabet
    features: Features
    normalise: str  # global, speaker, none
    sums: Sums | None  # of the features that were learnt from
    words: tuple[str, ...]  # of the texts that were learnt from

    @classmethod
    def open(cls, path: Path) -> Trained:
        """Of a run's folder (its best model) or of a .safetensors file."""
        file = file_of(path)
        tensors, about = checkpoint.load_answer(file)
        known, task = about.get("description"), about.get("task")
        if not isinstance(known, dict) or not isinstance(task, dict) or "alphabet" not in known:
            raise BadCheckpoint(
                f"{file} holds no recogniser: name a run or a checkpoint of the task speech"
            )
        try:
            return cls._of(file, tensors, known, task)
        except (KeyError, TypeError, RuntimeError, ValueError) as error:
            raise BadCheckpoint(
                f"{file} does not describe a recogniser that can be built ({error}): it is "
                "damaged or of another version"
            ) from None

    @classmethod
    def _of(
        cls, file: Path, tensors: dict[str, Tensor], known: dict[str, Any], task: dict[str, Any]
    ) -> Trained:
        alphabet = Alphabet(**known["alphabet"])
        features = Features(**known["features"])
        model = Recogniser(features.size, alphabet.outputs, from_plain(Network, task["network"]))
        model.load_state_dict(tensors)
        sums = None if known["sums"] is None else Sums.of_plain(known["sums"])
        words = tuple(known["words"])
        return cls(file, model.eval(), alphabet, features, known["normalise"], sums, words)

    @property
    def seconds_a_frame(self) -> float:
        """Of what is put out."""
        return self.model.network.stride * self.features.hop / self.features.rate

    @property
    def least_samples(self) -> int:
        """That anything is put out for."""
        return self.model.network.kernel * self.features.hop

    def when(self, frame: float) -> float:
        """The second at which a frame that is put out begins: in the middle of what it has seen."""
        network = self.model.network
        seen = network.stride * frame + (network.kernel - network.stride) / 2
        return max(0.0, seen) * self.features.hop / self.features.rate

    @cached_property
    def extractor(self) -> Extractor:
        return Extractor(self.features)

    def described(self, samples: Samples) -> Tensor:
        """Features of a recording at the recogniser's rate, as the network wants them."""
        return self.normalised(self.extractor(torch.from_numpy(np.asarray(samples))))

    def normalised(self, features: Tensor, own: Sums | None = None) -> Tensor:
        """As in training; who normalised by speaker there takes the recording for one here.

        `own` are the sums of a recording of which these features are a part.
        """
        if self.sums is None:
            return features
        sums = (own or Sums.of(features)) if self.normalise == "speaker" else self.sums
        scale, shift = sums.scale_and_shift()
        return torch.addcmul(shift, features, scale)

    @torch.no_grad()
    def outputs(self, features: list[Tensor]) -> tuple[Tensor, Tensor]:
        """Log probabilities, [utterance, frame, symbol], and how many frames of each count."""
        frames = torch.tensor([len(each) for each in features])
        padded = torch.nn.utils.rnn.pad_sequence(features, batch_first=True)
        return self.model(padded, frames).transpose(0, 1), self.model.frames(frames)
