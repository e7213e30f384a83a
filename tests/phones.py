"""A corpus whose phones are tones, with their times: cheap to make, and it can be learnt."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import soundfile
from speaking import RATE, manifest

from regatta.data.corpora import Reading, read
from regatta.data.extract import Extraction, extract
from regatta.data.features import Features
from regatta.data.shards import Index

HERTZ = {"a": 300.0, "b": 700.0, "c": 1500.0, "d": 3000.0, "e": 5500.0}
SMALL = Features(mels=8, mfcc=0)


def spoken(
    root: Path,
    number: int = 6,
    *,
    phones: str = "abc",
    languages: Sequence[str] = ("en",),
    seed: int = 0,
    timeless: Sequence[int] = (),
    repeats: bool = True,
) -> Path:
    """So many utterances of two speakers, languages in turn; some of them without times.

    Five phones each; or, without repeats, every phone once.
    """
    random = np.random.default_rng(seed)
    rows: list[object] = []
    (root / "audio").mkdir(parents=True, exist_ok=True)
    for n in range(number):
        drawn = random.choice(list(phones), 5) if repeats else random.permutation(list(phones))
        said = [str(phone) for phone in drawn]
        lengths = random.uniform(0.06, 0.12, len(said))
        starts = 0.05 + np.concatenate([[0.0], np.cumsum(lengths)])
        when = np.arange(round((starts[-1] + 0.05) * RATE)) / RATE
        heard = 0.01 * random.standard_normal(len(when))
        for phone, start, end in zip(said, starts, starts[1:], strict=False):
            here = (when >= start) & (when < end)
            heard[here] += 0.3 * np.sin(2 * np.pi * HERTZ[phone] * when[here])
        soundfile.write(root / "audio" / f"u{n}.wav", heard.astype(np.float32), RATE)
        times = [
            [round(a, 4), round(b, 4), p] for a, b, p in zip(starts, starts[1:], said, strict=False)
        ]
        row: dict[str, object] = {"id": f"u{n}", "audio": f"audio/u{n}.wav", "text": "".join(said),
                                  "speaker": f"s{n % 2}"}  # fmt: skip
        if n not in timeless:
            row["phones"] = times
        if language := languages[n % len(languages)]:
            row["language"] = language
        rows.append(row)
    manifest(root, rows)
    return root


def described(corpus: Path, out: Path, features: Features = SMALL, **options: object) -> Index:
    return extract(read(corpus, Reading()), out, Extraction(features, per_shard=4, **options))
