"""The speech synthesiser espeak-ng, through the library that PyPI's espeakng-loader carries.

It remembers earlier utterances (starting it anew does not help), so every utterance is spoken by a
child of its own, forked from a process that has never spoken: the bytes then depend on the text,
the voice and the seed alone.
"""

from __future__ import annotations

import ctypes
import os
import struct
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any, NamedTuple

MISSING = (
    "synthetic speech needs espeak-ng, which is GPL-3 and therefore not installed by default: "
    "pip install 'regatta-train[synth]'"
)
_SYNCHRONOUS = 2
_PHONEME_EVENTS, _IPA, _DO_NOT_EXIT = 1 << 0, 1 << 1, 1 << 15
_CHARACTERS_ARE_UTF8 = 1
_RATE, _PITCH, _RANGE = 1, 3, 4
_END_OF_LIST, _WORD, _PHONEME = 0, 1, 7
_BY_CHARACTER = 1  # positions in the text


class _Event(ctypes.Structure):
    _fields_ = (
        ("type", ctypes.c_int),
        ("identifier", ctypes.c_uint),
        ("text_position", ctypes.c_int),
        ("length", ctypes.c_int),
        ("milliseconds", ctypes.c_int),
        ("sample", ctypes.c_int),
        ("user_data", ctypes.c_void_p),
        ("name", ctypes.c_char * 8),
    )


_Callback = ctypes.CFUNCTYPE(
    ctypes.c_int, ctypes.POINTER(ctypes.c_short), ctypes.c_int, ctypes.POINTER(_Event)
)


class Spoken(NamedTuple):
    samples: bytes  # 16-bit, at the synthesiser's own rate
    rate: int
    words: list[tuple[int, int]]  # first sample, position in the text
    phones: list[tuple[int, str]]  # first sample, IPA; "" is silence


@dataclass(frozen=True)
class Voice:
    """A language's accent spoken in a manner of its own."""

    accent: str  # en-us, fr, it, ...
    variant: str  # f2, michel, ...

    @property
    def name(self) -> str:
        return f"{self.accent}+{self.variant}"


@cache
def _library() -> tuple[Any, int]:
    """The library, ready but silent, and its sample rate."""
    try:
        import espeakng_loader
    except ImportError:
        raise ValueError(MISSING) from None
    library = ctypes.CDLL(espeakng_loader.get_library_path())
    path = str(espeakng_loader.get_data_path()).encode()
    options = _PHONEME_EVENTS | _IPA | _DO_NOT_EXIT
    rate = library.espeak_Initialize(_SYNCHRONOUS, 0, path, options)
    if rate <= 0:
        raise ValueError(f"espeak-ng does not start with the data in {path.decode()}")
    return library, rate


def version() -> str:
    library, _ = _library()
    library.espeak_Info.restype = ctypes.c_char_p
    return str(library.espeak_Info(None).decode())


def speak(text: str, voice: Voice, speed: int, pitch: int, seed: int) -> Spoken:
    """Words a minute and pitch (0 to 99, 50 is the voice's own) as espeak-ng counts them."""
    _, rate = _library()
    told = _in_a_child(lambda: _spoken_here(text, voice, speed, pitch, seed))
    samples, words, phones = _unpacked(told)
    if not samples:
        raise ValueError(f"espeak-ng says nothing for {text!r} with voice {voice.name}")
    return Spoken(samples, rate, words, phones)


def _spoken_here(text: str, voice: Voice, speed: int, pitch: int, seed: int) -> bytes:
    library, _ = _library()
    samples, words, phones = bytearray(), [], []

    def take(wave: Any, length: int, events: Any) -> int:
        if wave:
            samples.extend(ctypes.string_at(wave, 2 * length))
        number = 0
        while events[number].type != _END_OF_LIST:
            event = events[number]
            if event.type == _WORD:
                words.append((event.sample, event.text_position - 1))
            elif event.type == _PHONEME:
                phones.append((event.sample, event.name))
            number += 1
        return 0

    callback = _Callback(take)
    library.espeak_SetSynthCallback(callback)
    if library.espeak_SetVoiceByName(voice.name.encode()) != 0:
        raise ValueError(f"espeak-ng has no voice {voice.name}")
    library.espeak_SetParameter(_RATE, speed, 0)
    library.espeak_SetParameter(_PITCH, pitch, 0)
    library.espeak_ng_SetRandSeed(ctypes.c_long(seed))
    spoken = text.encode()
    flags = _CHARACTERS_ARE_UTF8
    library.espeak_Synth(spoken, len(spoken) + 1, 0, _BY_CHARACTER, 0, flags, None, None)
    library.espeak_Synchronize()
    return _packed(bytes(samples), words, phones)


# -- one child an utterance -----------------------------------------------------------------


def _in_a_child(work: Callable[[], bytes]) -> bytes:
    """What `work` returns, done in a fork of this process, which stays as it is."""
    out, into = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(out)
        _answer(into, work)
    os.close(into)
    with os.fdopen(out, "rb") as pipe:
        told = pipe.read()
    _, status = os.waitpid(child, 0)
    if status != 0 or not told:
        raise RuntimeError(f"espeak-ng failed (status {status})")
    if told[:1] == b"!":
        raise ValueError(told[1:].decode())
    return told[1:]


def _answer(into: int, work: Callable[[], bytes]) -> None:
    """The whole life of the child; it leaves nothing of its parent's behind."""
    status = 1
    try:
        with os.fdopen(into, "wb") as pipe:
            try:
                pipe.write(b"." + work())
            except ValueError as error:
                pipe.write(b"!" + str(error).encode())
        status = 0
    finally:
        os._exit(status)


_HEADER = struct.Struct("<III")
_AT_WORD = struct.Struct("<ii")
_AT_PHONE = struct.Struct("<i8s")


def _packed(samples: bytes, words: list[tuple[int, int]], phones: list[tuple[int, bytes]]) -> bytes:
    pieces = [_HEADER.pack(len(samples), len(words), len(phones)), samples]
    pieces += [_AT_WORD.pack(*word) for word in words]
    pieces += [_AT_PHONE.pack(*phone) for phone in phones]
    return b"".join(pieces)


def _unpacked(told: bytes) -> tuple[bytes, list[tuple[int, int]], list[tuple[int, str]]]:
    length, num_words, num_phones = _HEADER.unpack_from(told)
    at = _HEADER.size + length
    samples = told[_HEADER.size : at]
    words = [_AT_WORD.unpack_from(told, at + n * _AT_WORD.size) for n in range(num_words)]
    at += num_words * _AT_WORD.size
    found = [_AT_PHONE.unpack_from(told, at + n * _AT_PHONE.size) for n in range(num_phones)]
    return samples, words, [(first, _ipa(name)) for first, name in found]


def _ipa(name: bytes) -> str:
    """Without stress, and without a character that eight bytes cut in two."""
    return name.rstrip(b"\0").decode(errors="ignore").lstrip("ˈˌ").strip("_ ")
