"""Speech that is still being spoken: what was said so far, and what is sure.

A stream is parted at silences. Each part is recognised as it comes, and what is found is what the
part by itself, as a whole recording, would give.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from regatta.data.audio import Samples
from regatta.data.features import Extractor
from regatta.decode import Decoder, Hypothesis
from regatta.models.recogniser import Ear
from regatta.recognise.cutting import LEVELS_A_SECOND, levels, silent
from regatta.recognise.trained import Trained
from regatta.recognise.transcripts import Part

_STEPS_A_SECOND = 10  # a stream is heard in steps, so that nothing depends on how it arrives
_REMEMBERED = 20 * LEVELS_A_SECOND  # levels, to tell loud from quiet


class Feed:
    """Features of a recording that comes in pieces: together those of the whole.

    A frame is described when all samples of its window are there. Some samples before it are kept,
    so that the mirror at the beginning of what is kept touches nothing that is still to be told.
    """

    def __init__(self, extractor: Extractor) -> None:
        self._extractor = extractor
        wanted = extractor.features
        self._hop, self._window = wanted.hop, wanted.window
        self._before = wanted.window // 2 - wanted.hop // 2
        self._kept_frames = -(-wanted.window // wanted.hop)
        self._held = torch.zeros(0)
        self._first = 0  # the frame that begins where what is held begins
        self._told = 0  # frames

    def step(self, samples: Samples) -> Tensor:
        self._held = torch.cat((self._held, torch.from_numpy(samples)))
        end = self._first * self._hop + len(self._held)
        return self._until((end + self._before - self._window) // self._hop + 1)

    def finish(self) -> Tensor:
        """The frames whose windows reach beyond the end."""
        return self._until(self._first + self._extractor.features.frames(len(self._held)))

    def _until(self, ready: int) -> Tensor:
        if ready <= self._told:
            return torch.zeros(0, self._extractor.features.size)
        described = self._extractor(self._held)[self._told - self._first : ready - self._first]
        self._told = ready
        first = max(0, ready - self._kept_frames)
        self._held = self._held[(first - self._first) * self._hop :].clone()
        self._first = first
        return described


class Utterance:
    """From samples to what was said, in the middle of it."""

    def __init__(self, trained: Trained, decoder: Decoder) -> None:
        self._feed, self._ear = Feed(trained.extractor), Ear(trained.model)
        self._listener = decoder.listen()
        self._scale: tuple[Tensor, Tensor] | None = None
        if trained.sums is not None:  # a speaker's own are only known when all is said
            self._scale = trained.sums.scale_and_shift()

    def outputs(self, features: Tensor) -> Tensor:
        if self._scale is not None:
            features = torch.addcmul(self._scale[1], features, self._scale[0])
        return self._ear.step(features)

    def step(self, samples: Samples) -> Hypothesis:
        """The best so far."""
        return self._listener.step(self.outputs(self._feed.step(samples)))

    def finish(self) -> list[Hypothesis]:
        self._listener.step(self.outputs(self._feed.finish()))
        return self._listener.finish()


@dataclass(frozen=True)
class Endpoint:
    """When an utterance counts as ended: after a pause, a shorter one if it has become long."""

    pause: float = 0.6  # seconds, and so are all
    short_pause: float = 0.2
    least: float = 1.0  # of an utterance
    long: float = 10.0  # from here on a short pause will do
    most: float = 20.0  # it ends here, pause or not

    def wanted(self, seconds: float) -> float:
        """The pause that ends an utterance of that length."""
        if seconds >= self.most:
            return 0.0
        return self.short_pause if seconds >= self.long else self.pause


@dataclass(frozen=True)
class Heard:
    part: Part
    final: bool  # else it may still change


class Stream:
    def __init__(
        self, trained: Trained, decoder: Decoder, endpoint: Endpoint | None = None
    ) -> None:
        self._trained, self._decoder = trained, decoder
        self._endpoint = endpoint or Endpoint()
        self._rate = trained.features.rate
        self._rest = np.zeros(0, np.float32)
        self._loudness = np.zeros(0)
        self._start = self._end = 0  # samples: of the utterance, and heard in all
        self._utterance = Utterance(trained, decoder)
        self._text = ""

    @property
    def seconds(self) -> float:
        """That were heard."""
        return (self._end + len(self._rest)) / self._rate

    def hear(self, samples: Samples) -> Iterator[Heard]:
        """Whatever is new: a better text for what is being said, or the last one."""
        step = max(1, self._rate // _STEPS_A_SECOND)
        held = np.concatenate((self._rest, samples))
        whole = len(held) // step * step
        self._rest = held[whole:]
        for first in range(0, whole, step):
            yield from self._step(held[first : first + step])

    def finish(self) -> Iterator[Heard]:
        rest, self._rest = self._rest, np.zeros(0, np.float32)
        if len(rest):
            yield from self._step(rest)
        if self._end > self._start:
            yield from self._final()

    def _step(self, samples: Samples) -> Iterator[Heard]:
        self._end += len(samples)
        loudness = np.append(self._loudness, levels(samples, self._rate))
        self._loudness = loudness[-_REMEMBERED:]
        best = self._utterance.step(samples)
        if best.text != self._text:
            self._text = best.text
            yield Heard(self._part([best]), final=False)
        if self._has_ended():
            yield from self._final()

    def _has_ended(self) -> bool:
        seconds = (self._end - self._start) / self._rate
        pause = round(self._endpoint.wanted(seconds) * LEVELS_A_SECOND)
        if seconds < self._endpoint.least or len(self._loudness) < pause:
            return False
        return not pause or bool(silent(self._loudness)[-pause:].all())

    def _final(self) -> Iterator[Heard]:
        found = self._utterance.finish()
        if found[0].text:
            yield Heard(self._part(found), final=True)
        elif self._text:  # it was shown, and is taken back
            yield Heard(self._part(found), final=False)
        self._start, self._text = self._end, ""
        self._utterance = Utterance(self._trained, self._decoder)

    def _part(self, found: list[Hypothesis]) -> Part:
        start, end = self._start / self._rate, self._end / self._rate
        return Part.of(self._trained, start, end, found)
