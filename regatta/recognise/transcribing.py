"""From recordings to transcripts: files are read, cut, described and recognised as they come."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path

import torch
from torch import Tensor

from regatta.data import audio
from regatta.data.normalise import Sums
from regatta.data.problems import BadUtterance, Problem
from regatta.decode import Decoder
from regatta.recognise.cutting import Cutting, Piece, pieces
from regatta.recognise.trained import Trained
from regatta.recognise.transcripts import Part, Transcript

_POOL = 32  # pieces that wait, so that those of like length come together
_BATCH = 8  # of them are recognised at once


@dataclass
class _File:
    path: Path
    samples: int = 0
    begun: int = 0  # pieces
    parts: dict[int, Part] = field(default_factory=dict)  # those that are done
    read: bool = False  # to its end
    bad: Problem | None = None

    @property
    def done(self) -> bool:
        return self.bad is not None or (self.read and len(self.parts) == self.begun)


@dataclass(frozen=True)
class _Waiting:
    file: _File
    number: int
    start: float
    end: float
    features: Tensor


def _nobody(seconds: float) -> None: ...


@dataclass(frozen=True, eq=False)
class Transcriber:
    trained: Trained
    decoder: Decoder
    nbest: int = 1
    jobs: int = 1  # threads, each with a batch of its own
    cutting: Cutting = field(default_factory=Cutting)
    told: Callable[[float], None] = _nobody  # so many more seconds of audio are done

    def transcribe(self, paths: Iterable[Path]) -> Iterator[Transcript | Problem]:
        """One for each, in their order; a problem where there is no transcript."""
        files: deque[_File] = deque()
        waiting: list[_Waiting] = []
        for path in paths:
            files.append(file := _File(path))
            for piece in self._read(file):
                waiting.append(piece)
                if len(waiting) >= _POOL:
                    self._recognise(waiting)
                    waiting = []
                    yield from self._finished(files)
        self._recognise(waiting)
        yield from self._finished(files)

    def _finished(self, files: deque[_File]) -> Iterator[Transcript | Problem]:
        while files and files[0].done:
            file = files.popleft()
            yield file.bad or self._transcript(file)

    def _transcript(self, file: _File) -> Transcript:
        between = " " if " " in self.trained.alphabet.symbols else ""
        seconds = file.samples / self.trained.features.rate
        parts = tuple(file.parts[number] for number in range(file.begun))
        return Transcript(str(file.path), seconds, parts, self.nbest, between)

    # -- reading ------------------------------------------------------------------------------

    def _read(self, file: _File) -> Iterator[_Waiting]:
        """What is to be recognised; a file that fails on the way is marked."""
        rate = self.trained.features.rate
        try:
            own = self._own_sums(file.path)
            for start, samples in self._pieces(file.path):
                number, first = file.begun, start / rate
                end = (start + len(samples)) / rate
                file.samples, file.begun = start + len(samples), number + 1
                if not samples.any():  # nothing at all: a network would make something of it
                    file.parts[number] = Part(first, end)
                    self.told(end - first)
                    continue
                features = self.trained.extractor(torch.from_numpy(samples))
                yield _Waiting(file, number, first, end, self.trained.normalised(features, own))
        except BadUtterance as bad:
            file.bad = bad.of(str(file.path))
        file.read = True

    def _pieces(self, path: Path) -> Iterator[Piece]:
        rate, least = self.trained.features.rate, self.trained.least_samples
        cutting = replace(self.cutting, least=max(self.cutting.least, least / rate))
        for piece in pieces(audio.blocks(path, rate), rate, cutting):
            if len(piece.samples) < least:  # only a whole file can be that short
                seconds = len(piece.samples) / rate
                detail = f"{seconds:.2f} s; the network sees {least / rate:.2f} s at once"
                raise BadUtterance("too short", detail)
            yield piece

    def _own_sums(self, path: Path) -> Sums | None:
        """Of a whole recording, for who takes it for a speaker: it is read twice."""
        if self.trained.normalise != "speaker":
            return None
        found: Sums | None = None
        for piece in self._pieces(path):
            sums = Sums.of(self.trained.extractor(torch.from_numpy(piece.samples)))
            found = sums if found is None else found + sums
        return found

    # -- recognising --------------------------------------------------------------------------

    def _recognise(self, waiting: Sequence[_Waiting]) -> None:
        wanted = sorted(
            (piece for piece in waiting if piece.file.bad is None), key=lambda p: len(p.features)
        )
        batches = [wanted[first : first + _BATCH] for first in range(0, len(wanted), _BATCH)]
        with ThreadPoolExecutor(self.jobs) as threads:
            for batch, found in zip(batches, threads.map(self._decoded, batches), strict=True):
                for piece, part in zip(batch, found, strict=True):
                    piece.file.parts[piece.number] = part
                    self.told(piece.end - piece.start)

    def _decoded(self, batch: Sequence[_Waiting]) -> list[Part]:
        outputs, frames = self.trained.outputs([piece.features for piece in batch])
        found = self.decoder.decode(outputs, frames)
        return [
            Part.of(self.trained, piece.start, piece.end, hypotheses)
            for piece, hypotheses in zip(batch, found, strict=True)
        ]
