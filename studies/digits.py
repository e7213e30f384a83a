"""Strings of digits, joined from recordings of single ones, in the style of TIDIGITS.

    python studies/digits.py DATA OUT [--minutes 60] [--seed 0]

DATA holds `spoken-digits` (AudioMNIST, 12 speakers) and `fsdd` (6 speakers). Every string is of
one speaker. Speakers of the test are in no other part. What is joined is brought to one level,
parted by short pauses, and stands in a little noise. OUT gets train/, dev/ and test/, each with a
manifest.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import soundfile
import soxr

RATE = 16_000
WORDS = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")
TEST = ("m10", "m11", "m12", "f-theo")  # speakers
DEV = ("m09", "f-nicolas")
SHARES = {"train": 1.0, "dev": 0.05, "test": 0.1}  # of the minutes
LONGEST = 7  # digits


@dataclass(frozen=True)
class Recording:
    speaker: str
    digit: int
    path: Path

    def samples(self) -> np.ndarray:
        heard, rate = soundfile.read(self.path, dtype="float32")
        if rate != RATE:
            heard = soxr.resample(heard, rate, RATE)
        level = float(np.sqrt(np.mean(heard**2)))
        return heard * (0.05 / max(level, 1e-5))


def recordings(data: Path) -> Iterator[Recording]:
    folder = data / "spoken-digits"
    for line in (folder / "manifest.jsonl").read_text().splitlines():
        row = json.loads(line)
        digit = WORDS.index(row["text"])
        yield Recording(f"m{row['speaker']}", digit, folder / row["audio_filepath"])
    for path in sorted((data / "fsdd" / "recordings").glob("*.wav")):
        digit, speaker, _ = path.stem.split("_")
        yield Recording(f"f-{speaker}", int(digit), path)


def part_of(speaker: str) -> str:
    return "test" if speaker in TEST else "dev" if speaker in DEV else "train"


def joined(said: list[np.ndarray], random: np.random.Generator) -> np.ndarray:
    pieces: list[np.ndarray] = []
    for samples in said:
        pieces += [silence(random, 0.02, 0.25), samples]
    whole = np.concatenate([*pieces, silence(random, 0.05, 0.25)])
    noise = 10 ** random.uniform(-4.0, -2.7)
    heard = whole * 10 ** random.uniform(-0.4, 0.4) + noise * random.standard_normal(len(whole))
    return np.clip(heard, -1, 1).astype(np.float32)


def silence(random: np.random.Generator, least: float, most: float) -> np.ndarray:
    return np.zeros(round(random.uniform(least, most) * RATE), np.float32)


def make(data: Path, out: Path, minutes: float, seed: int) -> None:
    by_speaker: dict[str, list[Recording]] = {}
    for recording in recordings(data):
        by_speaker.setdefault(recording.speaker, []).append(recording)
    for number, (part, share) in enumerate(SHARES.items()):
        random = np.random.default_rng([seed, number])
        speakers = sorted(name for name in by_speaker if part_of(name) == part)
        folder, rows, heard = out / part, [], 0.0
        (folder / "audio").mkdir(parents=True, exist_ok=True)
        while heard < 60 * minutes * share:
            speaker = speakers[len(rows) % len(speakers)]
            count = int(random.integers(1, LONGEST + 1))
            drawn = random.choice(len(by_speaker[speaker]), count)
            said = [by_speaker[speaker][n] for n in drawn]
            samples = joined([each.samples() for each in said], random)
            name = f"{part}-{len(rows):05d}"
            soundfile.write(folder / "audio" / f"{name}.flac", samples, RATE)
            heard += len(samples) / RATE
            text = " ".join(WORDS[each.digit] for each in said)
            rows.append({"id": name, "audio": f"audio/{name}.flac", "text": text,
                         "speaker": speaker, "language": "en"})  # fmt: skip
        lines = "".join(json.dumps(row) + "\n" for row in rows)
        (folder / "manifest.jsonl").write_text(lines)
        print(f"{part}: {len(rows)} strings of {', '.join(speakers)}, {heard / 60:.1f} minutes")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("data", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--minutes", type=float, default=60.0)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    make(given.data, given.out, given.minutes, given.seed)
