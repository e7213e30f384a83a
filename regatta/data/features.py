"""Log-mel energies and cepstra of speech, as PyTorch operations on whatever device.

The numbers are Kaldi's (remove the mean, pre-emphasise, window, power spectrum, triangles on the
mel scale, logarithm; then a cosine transform and a lifter), for samples from -1 to 1. There are
`round(samples / hop)` frames: the signal is mirrored where a window reaches beyond it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from regatta.data.checks import num_frames

_CHUNK = 256  # frames at once: what an operation leaves is in the cache for the next
_LEAST = torch.finfo(torch.float32).eps  # of an energy, before its logarithm


@dataclass(frozen=True)
class Features:
    """What a frame is described by; the defaults are those of Baunsgaard et al."""

    rate: int = 16_000  # samples a second
    window: int = 512  # samples
    hop: int = 160  # samples: 10 ms
    mels: int = 80
    mfcc: int = 13  # 0: none
    low: float = 20.0  # Hz
    high: float = 0.0  # Hz; 0 or less: so far below half the rate
    preemphasis: float = 0.97
    lifter: float = 22.0  # 0: none
    shape: Literal["povey", "hann", "hamming"] = "povey"

    def __post_init__(self) -> None:
        for name in ("rate", "window", "hop", "mels"):
            if getattr(self, name) < 1:
                raise ValueError(f"features: {name} must be 1 or more, not {getattr(self, name)}")
        if self.hop > self.window:
            raise ValueError(f"features: hop {self.hop} skips what lies between windows of "
                             f"{self.window}: use a shorter hop or a longer window")  # fmt: skip
        for name in ("low", "high", "preemphasis", "lifter"):
            if not math.isfinite(getattr(self, name)):
                raise ValueError(f"features: {name} must be a number")
        if not 0 <= self.mfcc <= self.mels:
            raise ValueError(f"features: mfcc must be 0 to {self.mels}, not {self.mfcc}")
        if not 0 <= self.low < self.top <= self.rate / 2:
            raise ValueError(
                f"features: low {self.low:g} Hz and high {self.top:g} Hz must lie in this order "
                f"between 0 and {self.rate / 2:g}"
            )
        if not 0 <= self.preemphasis <= 1:
            raise ValueError("features: preemphasis must be from 0 to 1")
        if self.shape not in ("povey", "hann", "hamming"):
            raise ValueError(f"features: shape must be povey, hann or hamming, not {self.shape}")
        empty = int((filters(self).sum(0) == 0).sum())
        if empty:
            raise ValueError(
                f"features: {empty} of {self.mels} mel filters are narrower than the spectrum's "
                f"lines: use fewer mels or a longer window"
            )

    @property
    def top(self) -> float:
        return self.high if self.high > 0 else self.rate / 2 + self.high

    @property
    def size(self) -> int:
        return self.mels + self.mfcc

    @property
    def fft(self) -> int:
        """The power of two that holds a window."""
        return 1 << (self.window - 1).bit_length()

    def frames(self, samples: int) -> int:
        return num_frames(samples, self.hop)


class Extractor:
    """Makes features; it keeps its tables on one device."""

    def __init__(self, features: Features | None = None, device: str = "cpu") -> None:
        self.features = features = features or Features()
        self.device = torch.device(device)
        self._window = _window(features).to(device)
        self._filters = filters(features).to(device)
        self._cosines = cosines(features).to(device)

    def __call__(self, samples: Tensor) -> Tensor:
        """Frames by features, of one recording."""
        wanted = self.features
        count = wanted.frames(len(samples))
        result = torch.empty(count, wanted.size, device=self.device)
        if not count:
            return result
        signal, means, firsts = self._signal(samples.to(self.device, torch.float32), count)
        frames = signal.as_strided((count, wanted.window), (wanted.hop, 1))
        chunk = _CHUNK if self.device.type == "cpu" else count
        for first in range(0, count, chunk):
            here = slice(first, min(first + chunk, count))
            self._describe(frames[here], means[here], firsts[here], result[here])
        return result

    def _signal(self, samples: Tensor, count: int) -> tuple[Tensor, Tensor, Tensor]:
        """Pre-emphasised from the first to the last window; each one's mean; each one's start.

        The signal is pre-emphasised once instead of window by window. Only a window's first sample
        differs, which has no predecessor in it and is taken for its own.
        """
        wanted = self.features
        before = wanted.window // 2 - wanted.hop // 2
        after = (count - 1) * wanted.hop + wanted.window - before - len(samples)
        padded = mirrored(samples, before, max(0, after))
        padded = padded[: (count - 1) * wanted.hop + wanted.window]
        signal = padded.clone()
        signal[1:].sub_(padded[:-1], alpha=wanted.preemphasis)
        rest = 1 - wanted.preemphasis  # of what is constant
        windows = padded.unfold(0, wanted.window, wanted.hop)
        return signal, windows.mean(1).mul_(rest), windows[:, 0] * rest

    def _describe(self, frames: Tensor, means: Tensor, firsts: Tensor, out: Tensor) -> None:
        mels = self.features.mels
        windowed = frames - means[:, None]
        windowed[:, 0] = firsts - means
        windowed.mul_(self._window)
        spectrum = torch.view_as_real(torch.fft.rfft(windowed, n=self.features.fft))
        real, imaginary = spectrum[..., 0], spectrum[..., 1]
        power = real.square().addcmul_(imaginary, imaginary)  # a sum over pairs is 4 times slower
        logs = (power @ self._filters).clamp_(min=_LEAST).log_()
        out[:, :mels] = logs
        if self.features.mfcc:
            out[:, mels:] = logs @ self._cosines


def mirrored(samples: Tensor, before: int, after: int) -> Tensor:
    """With so many samples more at both ends, reflected as often as it takes."""
    length = len(samples)
    if length == 0:
        return samples.new_zeros(before + after)
    places = torch.arange(-before, length + after, device=samples.device)
    if before <= length and after <= length:
        return torch.cat((samples[:before].flip(0), samples, samples[length - after :].flip(0)))
    places = places.remainder(2 * length)
    return samples[torch.where(places < length, places, 2 * length - 1 - places)]


def _window(features: Features) -> Tensor:
    turn = torch.arange(features.window, dtype=torch.float64) * (
        2 * math.pi / max(1, features.window - 1)
    )
    raised = 0.5 - 0.5 * torch.cos(turn)
    shapes = {"hann": raised, "povey": raised**0.85, "hamming": 0.54 - 0.46 * torch.cos(turn)}
    return shapes[features.shape].to(torch.float32)


def mel(frequencies: Tensor) -> Tensor:
    return 1127.0 * torch.log1p(frequencies / 700.0)


def hertz(mels: Tensor) -> Tensor:
    return 700.0 * torch.expm1(mels / 1127.0)


def mel_edges(features: Features) -> Tensor:
    """Where filters begin, have their middle and end: each at the middles of its neighbours."""
    low, high = mel(torch.tensor([features.low, features.top], dtype=torch.float64)).tolist()
    return torch.linspace(low, high, features.mels + 2, dtype=torch.float64)


def filters(features: Features) -> Tensor:
    """Triangles on the mel scale, spectrum lines by mels."""
    lines = torch.arange(features.fft // 2 + 1, dtype=torch.float64)
    places = mel(lines * features.rate / features.fft)[:, None]
    edges = mel_edges(features)
    left, middle, right = edges[:-2], edges[1:-1], edges[2:]
    rising, falling = (places - left) / (middle - left), (right - places) / (right - middle)
    return torch.minimum(rising, falling).clamp_(min=0.0).to(torch.float32)


def cosines(features: Features) -> Tensor:
    """The orthonormal cosine transform of log-mels to cepstra, with Kaldi's lifter."""
    number = torch.arange(features.mfcc, dtype=torch.float64)
    place = torch.arange(features.mels, dtype=torch.float64)[:, None] + 0.5
    table = torch.cos(math.pi / features.mels * place * number) * math.sqrt(2 / features.mels)
    table[:, :1] *= math.sqrt(0.5)
    if features.lifter:
        table *= 1 + 0.5 * features.lifter * torch.sin(math.pi * number / features.lifter)
    return table.to(torch.float32)


@dataclass(frozen=True)
class Splice:
    """A frame with its neighbours, for models of single frames; the ends are repeated."""

    left: int = 8
    right: int = 8

    def __post_init__(self) -> None:
        if self.left < 0 or self.right < 0:
            raise ValueError("splice: left and right must be 0 or more")

    @property
    def frames(self) -> int:
        return self.left + 1 + self.right

    def __call__(self, features: Tensor) -> Tensor:
        """Frames by features to frames by (spliced frames x features), the earliest first."""
        count = len(features)
        places = torch.arange(-self.left, count + self.right, device=features.device)
        padded = features[places.clamp_(0, max(0, count - 1))]
        return padded.unfold(0, self.frames, 1).transpose(1, 2).reshape(count, -1)
