"""A synthetic corpus on disk: the same bytes for the same options, whatever the number of jobs.

audio/SPLIT/LANGUAGE-NUMBER.flac
manifest.jsonl   all utterances, with the times of words and phones; written last
synth.json       the options; another start with others is refused
"""

from __future__ import annotations

import json
import os
import zlib
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from regatta.aside import write_aside
from regatta.data import audio, manifest
from regatta.data.jobs import processes
from regatta.data.manifest import Label, Utterance
from regatta.data.problems import Problems
from regatta.data.seeds import mixed_seed
from regatta.data.synth import espeak
from regatta.data.synth.room import Room
from regatta.data.synth.speakers import SPLITS, Speaker, speakers
from regatta.data.synth.texts import LANGUAGES, STYLES, script, split_of

MANIFEST, OPTIONS, LEDGER = "manifest.jsonl", "synth.json", "manifest.jsonl.partial"
_MOST_DRAWS = 100_000  # of texts, till one is of the wanted split
_TOGETHER = 16  # utterances that a process makes at a time
_SILENCE = (0.05, 0.3)  # seconds before and after the speech


@dataclass(frozen=True)
class Synth:
    """What is made. Every number is an option."""

    hours: float = 1.0
    languages: tuple[str, ...] = ("en",)
    styles: tuple[str, ...] = STYLES
    shares: tuple[float, float, float] = (0.8, 0.1, 0.1)  # of the hours: train, dev, test
    rate: int = 16_000
    room: Room = field(default_factory=Room)
    seed: int = 0

    def __post_init__(self) -> None:
        if not 0 < self.hours < float("inf"):
            raise ValueError(f"synth: hours must be above 0, not {self.hours}")
        for name, known in (("languages", LANGUAGES), ("styles", STYLES)):
            given = getattr(self, name)
            if not given or not set(given) <= set(known) or len(set(given)) < len(given):
                raise ValueError(f"synth: {name} must be some of {', '.join(known)}, not "
                                 f"{', '.join(given) or 'none'}")  # fmt: skip
        good = all(0 <= share <= 1 for share in self.shares) and abs(sum(self.shares) - 1) < 1e-9
        if not good or self.shares[0] == 0:
            raise ValueError(f"synth: the shares of train, dev and test must sum to 1, and "
                             f"train needs some: not {self.shares}")  # fmt: skip
        if self.rate < 8000:
            raise ValueError(f"synth: rate must be 8000 Hz or more, not {self.rate}")


_Made = tuple[Utterance, int]  # and the checksum of its file


class _Place(NamedTuple):
    """An utterance to be made; the options and this decide all of it."""

    split: str
    number: int


def make(
    synth: Synth,
    out: Path,
    jobs: int = 1,
    progress: Callable[[float, float], None] = lambda seconds, total: None,
) -> list[Utterance]:
    """Make it, or what is missing of it; `progress` is told of every utterance's seconds."""
    known = _begin(synth, out)
    if (out / MANIFEST).is_file():
        return list(manifest.read(out / MANIFEST, Problems()))  # it is finished
    total = synth.hours * 3600
    utterances: list[Utterance] = []
    with (out / LEDGER).open("w", encoding="utf-8") as ledger, _makers(synth, out, jobs) as made:
        for split, share in zip(SPLITS, synth.shares, strict=True):
            seconds = 0.0
            coming = made(split, known[split])
            while seconds < share * total:
                utterance, checksum = next(coming)
                seconds += utterance.duration or 0.0
                utterances.append(utterance)
                ledger.write(json.dumps([utterance.to_json(), checksum]) + "\n")
                ledger.flush()
                progress(utterance.duration or 0.0, total)
            coming.close()
    _remove_surplus(out, utterances)
    manifest.write(out / MANIFEST, utterances, out)
    (out / LEDGER).unlink(missing_ok=True)
    return utterances


def _begin(synth: Synth, out: Path) -> dict[str, list[_Made]]:
    """What an earlier start with the same options has made, by split."""
    version = espeak.version()  # or what to install
    options = json.dumps(asdict(synth) | {"espeak": version}, indent=1) + "\n"
    if out.exists() and not out.is_dir():
        raise ValueError(f"{out} is a file: name a folder for speech")
    written = out / OPTIONS
    if written.is_file() and written.read_text() != options:
        raise ValueError(f"{out} holds speech made with other options: name another folder")
    if out.exists() and not written.is_file() and any(out.iterdir()):
        raise ValueError(f"{out} is not empty: name a folder of its own")
    known = _known(out)
    try:
        for split in SPLITS:
            (out / "audio" / split).mkdir(parents=True, exist_ok=True)
        written.write_text(options)
    except OSError as error:
        raise ValueError(f"cannot write to {out}: {error.strerror}") from None
    return known


def _known(out: Path) -> dict[str, list[_Made]]:
    """Every split's first utterances, as far as their files are what they were."""
    known: dict[str, list[_Made]] = {split: [] for split in SPLITS}
    if not (out / LEDGER).is_file():
        return known
    broken: set[str] = set()
    for _, entry in manifest.json_lines(out / LEDGER, Problems()):  # the last may be cut short
        if not isinstance(entry, list) or len(entry) != 2:
            break
        utterance, checksum = Utterance.from_json(entry[0]), entry[1]
        path = out / utterance.audio
        whole = path.is_file() and zlib.crc32(path.read_bytes()) == checksum
        if not whole or utterance.split in broken:
            broken.add(utterance.split)
        else:
            known[utterance.split].append((utterance, checksum))
    return known


@contextmanager
def _makers(synth: Synth, out: Path, jobs: int) -> Iterator[Callable[[str, Sequence[_Made]], Any]]:
    """Processes that have never spoken; each forks a child for every utterance."""
    before = os.environ.get("OPENBLAS_NUM_THREADS")
    os.environ["OPENBLAS_NUM_THREADS"] = "1"  # what forks had better have one thread
    try:
        with processes(jobs, "makes speech") as pool:
            yield lambda split, known: _in_order(pool, synth, out, split, known, 2 * max(1, jobs))
    finally:
        os.environ.pop("OPENBLAS_NUM_THREADS")
        if before is not None:
            os.environ["OPENBLAS_NUM_THREADS"] = before


def _in_order(
    pool: ProcessPoolExecutor,
    synth: Synth,
    out: Path,
    split: str,
    known: Sequence[_Made],
    ahead: int,
) -> Iterator[_Made]:
    """Utterances without end, one after another; more are made ahead than are asked for."""
    yield from known
    waiting: list[Future[list[_Made]]] = []
    next_number = len(known)
    while True:
        while len(waiting) < ahead:
            places = [_Place(split, next_number + n) for n in range(_TOGETHER)]
            waiting.append(pool.submit(_made, synth, out, places))
            next_number += _TOGETHER
        yield from waiting.pop(0).result()


def _remove_surplus(out: Path, utterances: Sequence[Utterance]) -> None:
    """What was made ahead and not asked for."""
    wanted = {utterance.audio for utterance in utterances}
    for file in (out / "audio").rglob("*.flac*"):
        if file.relative_to(out).as_posix() not in wanted:
            file.unlink()


# -- one utterance --------------------------------------------------------------------------


def _made(synth: Synth, out: Path, places: Sequence[_Place]) -> list[_Made]:
    return [_make(synth, out, place) for place in places]


def _make(synth: Synth, out: Path, place: _Place) -> _Made:
    """An utterance, and the checksum of its file."""
    split = SPLITS.index(place.split)
    random = np.random.default_rng(mixed_seed(synth.seed, 2, split, place.number))
    language = synth.languages[place.number % len(synth.languages)]
    text = _text(synth, language, place.split, random)
    speaker = _speaker(synth, language, place.split, random)
    speed = round(speaker.speed * float(random.uniform(0.9, 1.1)))
    pitch = min(99, max(0, speaker.pitch + int(random.integers(-5, 6))))
    spoken = espeak.speak(text, speaker.voice, speed, pitch, int(random.integers(2**31)))
    loud = np.frombuffer(spoken.samples, np.int16).astype(np.float32)
    dry = audio.resampled(loud / np.float32(32768), spoken.rate, synth.rate)
    before, after = (int(random.uniform(*_SILENCE) * synth.rate) for _ in range(2))
    heard, about = synth.room.record(np.pad(dry, (before, after)), synth.rate, random)
    name = f"audio/{place.split}/{language}-{place.number:06d}.flac"
    checksum = _write(out / name, audio.flac(heard, synth.rate))
    words, phones = times(text, spoken, before / synth.rate)
    made = Utterance(
        id=f"{place.split}-{language}-{place.number:06d}",
        audio=name,
        text=text,
        speaker=speaker.name,
        language=language,
        split=place.split,
        duration=len(heard) / synth.rate,
        words=words,
        phones=phones,
        about={"speed": speed, "pitch": pitch, **about},
    )
    return made, checksum


def _write(path: Path, content: bytes) -> int:
    try:
        write_aside(path, content, durable=False)  # the ledger has its checksum
    except OSError as error:
        raise ValueError(
            f"{error.strerror}: make room and run the same command again; it goes on from here"
        ) from None
    return zlib.crc32(content)


def _speaker(synth: Synth, language: str, split: str, random: np.random.Generator) -> Speaker:
    known = speakers(language, split, synth.shares, synth.seed)
    return known[int(random.integers(len(known)))]


def _text(synth: Synth, language: str, split: str, random: np.random.Generator) -> str:
    """A sentence of this split's own; single digits are everybody's, there are too few of them."""
    dev, test = synth.shares[1], synth.shares[2]
    for _ in range(_MOST_DRAWS):
        text = script(language).draw(str(random.choice(synth.styles)), random)
        if " " not in text:
            return text
        place = split_of(text)
        of = "dev" if place < dev else "test" if place < dev + test else "train"
        if of == split:
            return text
    raise ValueError(f"synth: there are too few texts for a share of {split} as small as this")


def times(
    text: str, spoken: espeak.Spoken, before: float
) -> tuple[tuple[Label, ...], tuple[Label, ...]]:
    """Words and phones, from the synthesiser's events."""
    end = len(spoken.samples) // 2
    starts = [first for first, _ in spoken.phones]
    phones = [
        (first, last, name)
        for (first, name), last in zip(spoken.phones, [*starts[1:], end], strict=True)
        if name and last > first
    ]
    begun = _words_begin(text, spoken.words)
    words = []
    for number, (word, first) in enumerate(begun):
        limit = begun[number + 1][1] if number + 1 < len(begun) else end
        inside = [(a, b) for a, b, _ in phones if first <= a < limit]
        if inside:
            words.append((inside[0][0], inside[-1][1], word))
    seconds = [
        tuple(Label(_at(a, spoken, before), _at(b, spoken, before), name) for a, b, name in labels)
        for labels in (words, phones)
    ]
    return seconds[0], seconds[1]


def _at(sample: int, spoken: espeak.Spoken, before: float) -> float:
    return round(before + sample / spoken.rate, 5)


def _words_begin(text: str, events: Sequence[tuple[int, int]]) -> list[tuple[str, int]]:
    """Words and their first samples. Words that the synthesiser runs together stay together."""
    found: list[tuple[str, int]] = []
    at = 0
    tokens = []
    for word in text.split():
        at = text.index(word, at)
        tokens.append((at, word))
        at += len(word)
    for number, (start, word) in enumerate(tokens):
        stop = tokens[number + 1][0] if number + 1 < len(tokens) else len(text) + 1
        heard = [sample for sample, position in events if start <= position < stop]
        if heard:
            found.append((word, heard[0]))
        elif found:
            found[-1] = (f"{found[-1][0]} {word}", found[-1][1])
    return found
