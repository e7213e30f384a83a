"""Recordings as samples: one channel, one rate, and no surprises."""

from __future__ import annotations

import io
import os
import subprocess
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
import soundfile
import soxr
from numpy.typing import NDArray

from regatta.data.problems import BadUtterance
from regatta.data.wholeness import check_whole

Samples = NDArray[np.float32]
_MOST_FRAMES = 2**62  # libsndfile's word for: unknown
_BLOCK = 2**20  # samples
_ROUNDED = 0.02  # seconds
_FAR_OFF = 0.05  # seconds


class Recording(NamedTuple):
    samples: Samples  # -1 to 1
    notes: tuple[tuple[str, str], ...]  # kinds of problems that could be mended, and details


class Shape(NamedTuple):
    rate: int
    channels: int
    frames: int

    @property
    def seconds(self) -> float:
        return self.frames / self.rate

    def notes(self, rate: int, channel: int | None) -> list[tuple[str, str]]:
        """What reading it as one channel of this rate will mend."""
        several = [("several channels", f"{self.channels}")] if self.channels > 1 else []
        other = [("other rate", f"{self.rate} Hz")] if self.rate != rate else []
        return [*(several if channel is None else []), *other]


def shape(path: Path) -> Shape:
    """What a file says of itself, without reading it all."""
    with _opened(path) as file:
        return _shape(file)


def _shape(file: soundfile.SoundFile) -> Shape:
    return Shape(file.samplerate, file.channels, file.frames)


def read(
    source: Path | str,
    rate: int,
    start: float = 0.0,
    duration: float | None = None,
    channel: int | None = None,
) -> Recording:
    """A recording or a segment of one; raises BadUtterance if it cannot be used."""
    path = source if isinstance(source, Path) else None
    with _opened(path or io.BytesIO(_output_of(str(source)))) as file:
        samples = _segment(file, path, start, duration)
        if channel is not None and channel >= file.channels:
            raise BadUtterance("no such channel", f"{channel} of {file.channels}")
        notes = _shape(file).notes(rate, channel)
        notes += other_duration(duration, len(samples) / file.samplerate)
        mono = samples.mean(axis=1) if channel is None else samples[:, channel]
        _check(mono, notes)
        mono = resampled(mono, file.samplerate, rate)
        return Recording(np.ascontiguousarray(mono, dtype=np.float32), tuple(notes))


def blocks(path: Path, rate: int) -> Iterator[Samples]:
    """As `read`, but piece by piece, so that an hour needs no more memory than a minute.

    Only the end can tell that a recording was cut short or silent: BadUtterance may come late.
    """
    with _opened(path) as file:
        yield from resampled_blocks(_mono_blocks(file), file.samplerate, rate)
    check_whole(path)


def resampled_blocks(parts: Iterable[Samples], old: float, new: float) -> Iterator[Samples]:
    """What one block after another gives is what all at once would."""
    if old == new:
        yield from parts
        return
    stream = soxr.ResampleStream(old, new, 1, dtype="float32")
    for part in parts:
        yield stream.resample_chunk(part)
    yield stream.resample_chunk(np.zeros(0, np.float32), last=True)


def at_speed(samples: Samples, speed: float) -> Samples:
    """Faster and higher, as a tape that is played so."""
    return resampled(samples, speed, 1.0)


def resampled(samples: Samples, old: float, new: float) -> Samples:
    if old == new:
        return samples
    changed: Samples = soxr.resample(samples, old, new)
    return changed


def flac(samples: Samples, rate: int) -> bytes:
    """In memory: libsndfile does not say when the last bytes of a file could not be written."""
    file = io.BytesIO()
    soundfile.write(file, samples, rate, format="FLAC", subtype="PCM_16")
    return file.getvalue()


# -- how it comes about ---------------------------------------------------------------------


def _opened(source: Path | io.BytesIO) -> soundfile.SoundFile:
    if isinstance(source, Path):
        try:
            if not source.is_file():
                raise BadUtterance("missing file", str(source))
            if source.stat().st_size == 0:
                raise BadUtterance("empty audio", "0 bytes")
        except OSError as error:  # a name that is too long, a folder that nobody may enter
            raise BadUtterance("unreadable file", error.strerror or "") from None
        if not os.access(source, os.R_OK):
            raise BadUtterance("unreadable file", str(source))
    try:
        return soundfile.SoundFile(source)
    except (soundfile.LibsndfileError, TypeError, OSError) as error:
        raise BadUtterance("unreadable audio", _reason(error)) from None


def stretch(shape: Shape, start: float, duration: float | None) -> tuple[int, int]:
    """The first sample of a segment and how many it has; raises BadUtterance if it is not there.

    Tables of segments are rounded, so a little is forgiven. An utterance that begins where its
    recording does, and is said to be longer, ends where the recording does.
    """
    first = round(start * shape.rate)
    left = shape.frames - first
    wanted = left if duration is None else round(duration * shape.rate)
    forgiven = wanted if not first else max(1, round(_ROUNDED * shape.rate))
    if left <= 0 or wanted <= 0 or wanted > left + forgiven:
        if not first and not left:
            raise BadUtterance("empty audio", "no samples")
        end = "" if duration is None else f" to {start + duration:g}"
        raise BadUtterance("bad segment", f"from {start:g}{end} s of {shape.seconds:g} s")
    return first, min(wanted, left)


def other_duration(stated: float | None, found: float) -> list[tuple[str, str]]:
    if stated is None or abs(stated - found) <= _FAR_OFF:
        return []
    return [("other duration", f"{stated:g} s stated, {found:.2f} s found")]


def _segment(
    file: soundfile.SoundFile, path: Path | None, start: float, duration: float | None
) -> NDArray[np.float32]:
    _check_length(file)
    first, wanted = stretch(_shape(file), start, duration)
    try:
        if first:
            file.seek(first)
        samples = _in_blocks(file, wanted)
    except soundfile.LibsndfileError as error:
        raise BadUtterance("truncated audio", _reason(error)) from None
    if len(samples) < wanted:
        raise BadUtterance("truncated audio", f"{len(samples)} of {wanted} samples")
    if path is not None and first + wanted == file.frames:
        check_whole(path)
    return samples


def _check_length(file: soundfile.SoundFile) -> None:
    if not 0 <= file.frames < _MOST_FRAMES:
        raise BadUtterance("unreadable audio", "it does not say how long it is")


def _mono_blocks(file: soundfile.SoundFile) -> Iterator[Samples]:
    _check_length(file)
    _, left = stretch(_shape(file), 0.0, None)
    loud = False
    while left > 0:
        size = min(left, _BLOCK)
        try:
            block = file.read(size, dtype="float32", always_2d=True)
        except soundfile.LibsndfileError as error:
            raise BadUtterance("truncated audio", _reason(error)) from None
        left -= len(block)
        if len(block) < size:
            raise BadUtterance("truncated audio", f"{file.frames - left} of {file.frames} samples")
        mono = block.mean(axis=1)
        loud |= _peak(mono) > 0
        yield mono
    if not loud:
        raise BadUtterance("silent audio", f"{file.frames} samples")


def _in_blocks(file: soundfile.SoundFile, wanted: int) -> NDArray[np.float32]:
    """Memory for what is there, not for what a damaged header says is there."""
    blocks: list[NDArray[np.float32]] = []
    while wanted > 0:
        size = min(wanted, _BLOCK)
        block = file.read(size, dtype="float32", always_2d=True)
        blocks.append(block)
        wanted -= len(block)
        if len(block) < size:
            break
    return np.concatenate(blocks)


def _check(samples: Samples, notes: list[tuple[str, str]]) -> None:
    if _peak(samples) == 0.0:
        raise BadUtterance("silent audio", f"{len(samples)} samples")
    clipped = int((np.abs(samples) >= 0.9999).sum())
    if clipped > max(10, 0.01 * len(samples)):
        notes.append(("clipped audio", f"{clipped / len(samples):.0%} of the samples"))


def _peak(samples: Samples) -> float:
    peak = float(np.abs(samples).max())
    if not np.isfinite(peak):
        bad = int((~np.isfinite(samples)).sum())
        raise BadUtterance("broken samples", f"{bad} of {len(samples)}")
    return peak


def _output_of(command: str) -> bytes:
    """A program of wav.scp, which the user has allowed."""
    words = command.rstrip().removesuffix("|")
    done = subprocess.run(words, shell=True, capture_output=True, check=False)
    if done.returncode != 0 or not done.stdout:
        told = done.stderr.decode(errors="replace").strip().split("\n")[-1]
        raise BadUtterance("command failed", f"exit {done.returncode}: {told}")
    return done.stdout


def _reason(error: Exception) -> str:
    return str(error).split(": ")[-1].rstrip(".")
