"""What lies between a mouth and a recording: a room, noise, and the microphone's level."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Samples = NDArray[np.float32]
NOISES = ("white", "pink", "brown", "hum", "speech-shaped")
_LOUDEST = 0.95
_SILENT = 1e-4  # of the loudest stretch's power: no speech there
_STRETCH = 400  # samples


@dataclass(frozen=True)
class Room:
    """Ranges from which every utterance draws."""

    clean: float = 0.2  # so many of all have neither echo nor noise
    snr: tuple[float, float] = (5.0, 30.0)  # dB, of speech while somebody speaks
    rt60: tuple[float, float] = (0.1, 0.5)  # seconds in which an echo loses 60 dB
    level: tuple[float, float] = (-32.0, -14.0)  # dB of full scale, of speech

    def __post_init__(self) -> None:
        if not 0 <= self.clean <= 1:
            raise ValueError("room: clean must be from 0 to 1")
        for name in ("snr", "rt60", "level"):
            low, high = getattr(self, name)
            if not -1e3 < low <= high < 1e3:
                raise ValueError(f"room: {name} must be LOW,HIGH, not {low},{high}")
        if self.rt60[0] <= 0:
            raise ValueError("room: rt60 must be above 0 seconds")

    def record(
        self, dry: Samples, rate: int, random: np.random.Generator
    ) -> tuple[Samples, dict[str, Any]]:
        """What the microphone hears, as long as it was, and how that came about."""
        about: dict[str, Any] = {}
        heard: NDArray[Any] = dry
        if random.random() >= self.clean:
            about["rt60"] = round(float(random.uniform(*self.rt60)), 3)
            heard = _with_echo(heard, about["rt60"], rate, random)
            about["noise"] = str(random.choice(NOISES))
            about["snr"] = round(float(random.uniform(*self.snr)), 1)
            noise = _noise(about["noise"], heard, rate, random)
            level = speech_power(heard) / 10 ** (about["snr"] / 10)
            heard = heard + noise * np.sqrt(level / max(float(np.mean(noise**2)), 1e-20))
        wanted = 10 ** (float(random.uniform(*self.level)) / 20)
        gain = wanted / np.sqrt(max(speech_power(heard), 1e-20))
        gain = min(gain, _LOUDEST / max(float(np.abs(heard).max()), 1e-20))
        return (heard * gain).astype(np.float32), about


def speech_power(samples: NDArray[Any]) -> float:
    """The mean power of stretches in which somebody speaks."""
    whole = samples[: len(samples) // _STRETCH * _STRETCH].reshape(-1, _STRETCH)
    powers = np.mean(np.square(whole, dtype=np.float64), axis=1)
    if not len(powers):
        return float(np.mean(np.square(samples, dtype=np.float64)))
    return float(powers[powers >= _SILENT * powers.max()].mean())


def _with_echo(
    dry: Samples, rt60: float, rate: int, random: np.random.Generator
) -> NDArray[np.float64]:
    """The direct sound, and noise that dies away after it; nothing comes earlier than before."""
    length = max(2, int(rt60 * rate))
    decay = np.exp(-6.9078 * np.arange(length) / (rt60 * rate))  # ln 1000: 60 dB
    tail = random.standard_normal(length) * decay
    first = int(random.uniform(0.002, 0.01) * rate)  # the nearest wall
    tail[: min(first, length - 1)] = 0.0
    ratio = float(random.uniform(0.1, 1.0)) * min(1.0, rt60 / 0.3)  # echo to direct sound
    tail *= np.sqrt(ratio / np.sum(tail**2))
    tail[0] = 1.0
    size = 1 << (len(dry) + length - 2).bit_length()
    both = np.fft.rfft(dry, size) * np.fft.rfft(tail, size)
    return np.fft.irfft(both, size)[: len(dry)]


def _noise(
    kind: str, speech: NDArray[Any], rate: int, random: np.random.Generator
) -> NDArray[np.float64]:
    length = len(speech)
    if kind == "hum":
        mains, when = float(random.choice([50, 60])), np.arange(length) / rate
        phases = random.uniform(0, 2 * np.pi, 8)
        tones = (
            np.sin(2 * np.pi * mains * (n + 1) * when + p) / (n + 1) for n, p in enumerate(phases)
        )
        total: NDArray[np.float64] = np.sum(list(tones), axis=0)
        return total + 0.05 * random.standard_normal(length)
    size = 1 << max(1, length - 1).bit_length()
    if kind == "speech-shaped":  # the same spectrum, and nothing to understand
        shape = np.abs(np.fft.rfft(speech, size))
        turned = np.exp(1j * random.uniform(0, 2 * np.pi, len(shape)))
        return np.fft.irfft(shape * turned, size)[:length]
    white = random.standard_normal(length)
    if kind == "white":
        return white
    steepness = {"pink": 0.5, "brown": 1.0}[kind]
    lines = np.fft.rfftfreq(size, 1 / rate)
    weight = np.maximum(lines, 20.0) ** -steepness
    return np.fft.irfft(np.fft.rfft(white, size) * weight, size)[:length]
