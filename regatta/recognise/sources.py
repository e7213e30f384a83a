"""Where live speech comes from: a pipe or a microphone."""

from __future__ import annotations

import queue
import struct
from collections.abc import Iterable, Iterator
from io import BufferedIOBase
from itertools import chain
from typing import Any

import numpy as np

from regatta.data.audio import Samples, resampled_blocks

_ONCE = 1 << 16  # bytes that are taken from a pipe at most; what is there is taken at once
_UNKNOWN = 0x7FFF0000  # a WAV file that is still being written says about this for its length
_PCM, _EXTENSIBLE = 1, 0xFFFE
_BLOCKS_A_SECOND = 20  # of a microphone


def pipe(file: BufferedIOBase, rate: int, wanted: int) -> Iterator[Samples]:
    """16-bit samples, one channel of `rate`; or as a WAV header says. Given at the rate wanted."""
    begin = file.read(4)
    if begin == b"RIFF":
        channels, rate, size = _header(file)
        return resampled_blocks(_samples(_bytes(file, size), channels), rate, wanted)
    return resampled_blocks(_samples(chain([begin], _bytes(file, None)), 1), rate, wanted)


def _bytes(file: BufferedIOBase, left: int | None) -> Iterator[bytes]:
    """So many, or all there are, as they come."""
    while left is None or left > 0:
        more = file.read1(_ONCE if left is None else min(left, _ONCE))
        if not more:
            return
        left = None if left is None else left - len(more)
        yield more


def _samples(pieces: Iterable[bytes], channels: int) -> Iterator[Samples]:
    size, rest = 2 * channels, b""
    for more in pieces:
        rest += more
        whole = len(rest) // size * size
        frames = np.frombuffer(rest[:whole], "<i2").reshape(-1, channels)
        rest = rest[whole:]
        yield (frames.mean(axis=1) / 32768).astype(np.float32)
    if rest:
        raise ValueError(
            f"the pipe ended within a sample ({len(rest)} of {size} bytes): it was cut short, or "
            "its samples are not 16-bit numbers"
        )


def _header(file: BufferedIOBase) -> tuple[int, int, int | None]:
    """Channels, rate and bytes of samples, as the chunks before the samples tell."""
    file.read(8)
    channels = rate = 0
    while len(head := file.read(8)) == 8:
        name, length = struct.unpack("<4sI", head)
        if name == b"data":
            if not channels:
                break
            return channels, rate, None if length == 0 or length >= _UNKNOWN else length
        body = file.read(length + length % 2)
        if name == b"fmt " and len(body) >= 16:
            kind, channels, rate, _, _, bits = struct.unpack_from("<HHIIHH", body)
            if kind not in (_PCM, _EXTENSIBLE) or bits != 16 or not channels or not rate:
                raise ValueError(
                    f"the WAV stream has samples of kind {kind} with {bits} bits: a stream needs "
                    "16-bit numbers (kind 1)"
                )
    raise ValueError("the stream begins as a WAV file, but has no samples: it was cut short")


def microphone(rate: int) -> Iterator[Samples]:
    """Whatever the system's default microphone hears, until nobody asks any more.

    What it lacks is said at once, not when the first sample is asked for.
    """
    try:
        import sounddevice
    except ImportError:
        raise ValueError(
            "a microphone needs the package sounddevice: pip install 'regatta-train[microphone]', "
            "or stream from a pipe (-)"
        ) from None
    except OSError as error:  # the package is there, the library is not
        raise ValueError(
            f"the microphone cannot be used ({error}): install PortAudio, or stream from a pipe (-)"
        ) from None
    return _heard(sounddevice, rate)


def _heard(sounddevice: Any, rate: int) -> Iterator[Samples]:
    heard: queue.Queue[Samples] = queue.Queue()

    def take(samples: Any, *_: Any) -> None:
        heard.put(samples[:, 0].copy())

    try:
        with sounddevice.InputStream(
            rate, rate // _BLOCKS_A_SECOND, channels=1, dtype="float32", callback=take
        ):
            while True:
                yield heard.get()
    except sounddevice.PortAudioError as error:
        raise ValueError(f"the microphone cannot be used ({error}): choose another") from None
