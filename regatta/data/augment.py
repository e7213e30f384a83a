"""Features made different every epoch: masks (SpecAugment) and another speed.

Both work on log-mels; cepstra are computed anew from what comes of them, so the two always agree.
Chance is drawn by seed, epoch and utterance, never by who draws it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from regatta.data.features import Features, cosines, hertz, mel, mel_edges
from regatta.data.seeds import mixed_seed


@dataclass(frozen=True)
class Augmentation:
    """Nothing by default. Masks as in SpecAugment (Park et al. 2019), without time warping."""

    time_masks: int = 0
    time_width: int = 40  # frames at most
    time_share: float = 0.2  # of an utterance at most, a mask
    mel_masks: int = 0
    mel_width: int = 27  # mels at most
    speed: float = 0.0  # 0.1: from 0.9 to 1.1 times as fast, evenly
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ("time_masks", "time_width", "mel_masks", "mel_width"):
            if getattr(self, name) < 0:
                raise ValueError(f"augmentation: {name} must be 0 or more")
        if not 0 <= self.time_share <= 1:
            raise ValueError("augmentation: time_share must be from 0 to 1")
        if not 0 <= self.speed <= 0.5:
            raise ValueError("augmentation: speed must be from 0 to 0.5, as in 0.1")

    @property
    def does_nothing(self) -> bool:
        return not (self.time_masks or self.mel_masks or self.speed)


class Augmenter:
    def __init__(self, augmentation: Augmentation, features: Features) -> None:
        self._wanted, self._features = augmentation, features
        self._cosines = cosines(features)
        self._at_speed = Speeds(features)

    def __call__(self, features: Tensor, epoch: int, utterance: int, least: int = 1) -> Tensor:
        """Another version of an utterance, of `least` frames; the given one is not written to."""
        random = np.random.default_rng(mixed_seed(self._wanted.seed, epoch, utterance))
        mels = features[:, : self._features.mels].to(torch.float32)
        speed = float(1 + random.uniform(-1, 1) * self._wanted.speed)
        if round(len(mels) / speed) < least:
            speed = 1.0  # what is said would not fit in any more
        mels = self._at_speed(mels, speed) if speed != 1 else mels.clone()
        self._mask(mels, random)
        if not self._features.mfcc:
            return mels
        return torch.cat((mels, mels @ self._cosines), dim=1)

    def _mask(self, mels: Tensor, random: np.random.Generator) -> None:
        """In place, with the utterance's own mean of each mel, which says nothing."""
        wanted, (frames, bands) = self._wanted, mels.shape
        mean = mels.mean(0)
        for _ in range(wanted.time_masks):
            most = min(wanted.time_width, int(frames * wanted.time_share))
            width = int(random.integers(0, most + 1))
            first = int(random.integers(0, frames - width + 1))
            mels[first : first + width] = mean
        for _ in range(wanted.mel_masks):
            width = int(random.integers(0, min(wanted.mel_width, bands) + 1))
            first = int(random.integers(0, bands - width + 1))
            mels[:, first : first + width] = mean[first : first + width]


class Speeds:
    """Log-mels at another speed, nearly as if the recording itself were played so.

    Frames are interpolated in time; what was heard at f is now heard at f times the speed, where
    pre-emphasis weighs it otherwise.
    """

    def __init__(self, features: Features) -> None:
        self._features = features
        edges = mel_edges(features)
        self._centres = hertz(edges[1:-1])
        self._first, self._step = float(edges[1]), float(edges[1] - edges[0])

    def __call__(self, mels: Tensor, speed: float) -> Tensor:
        count = max(1, round(len(mels) / speed))
        when = (np.arange(count, dtype=np.float64) + 0.5) * speed - 0.5
        in_time = _interpolated(mels, when)
        came_from = self._centres / speed
        place = ((mel(came_from) - self._first) / self._step).numpy()
        weight = self._preemphasis(self._centres) - self._preemphasis(came_from)
        shifted = _interpolated(in_time.T, place).T
        return shifted + weight.to(torch.float32)

    def _preemphasis(self, frequencies: Tensor) -> Tensor:
        """The logarithm of what the filter does to the power there."""
        a, turn = self._features.preemphasis, 2 * math.pi * frequencies / self._features.rate
        return torch.log(1 + a * a - 2 * a * torch.cos(turn) + 1e-12)


def _interpolated(rows: Tensor, places: NDArray[np.float64]) -> Tensor:
    """Between rows, linearly; the ends are repeated."""
    last = len(rows) - 1
    below = np.clip(np.floor(places).astype(np.int64), 0, max(0, last - 1))
    share = np.clip(places - below, 0.0, 1.0).astype(np.float32)
    above = np.minimum(below + 1, last)
    pair = rows[torch.from_numpy(below)], rows[torch.from_numpy(above)]
    return torch.lerp(*pair, torch.from_numpy(share)[:, None])
