"""Small recordings and corpora for tests: tones and noise that are cheap to make."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import soundfile

RATE = 16_000
REAL = Path(__file__).parents[2] / "shared" / "data"  # recordings by people; not part of this


def tone(seconds: float, hertz: float = 440.0, rate: int = RATE) -> np.ndarray:
    when = np.arange(round(seconds * rate)) / rate
    noise = np.random.default_rng(int(hertz)).standard_normal(len(when))
    return (0.3 * np.sin(2 * np.pi * hertz * when) + 0.01 * noise).astype(np.float32)


def record(path: Path, seconds: float = 1.0, rate: int = RATE, **options: object) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    hertz = options.pop("hertz", 200 + sum(map(ord, path.stem)) % 300)
    soundfile.write(path, tone(seconds, hertz, rate), rate, **options)
    return path


def folder_of_texts(root: Path, texts: dict[str, str], seconds: float = 1.0) -> Path:
    """Recordings with a .txt beside each."""
    for name, text in texts.items():
        record(root / f"{name}.wav", seconds)
        (root / f"{name}.txt").write_text(text, encoding="utf-8")
    return root


def manifest(root: Path, rows: list[object], name: str = "manifest.jsonl") -> Path:
    root.mkdir(parents=True, exist_ok=True)
    path = root / name
    lines = [row if isinstance(row, str) else json.dumps(row) for row in rows]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def corpus_of(root: Path, number: int, seconds: tuple[float, float] = (0.3, 1.2)) -> Path:
    """So many utterances of three speakers, of lengths in between."""
    random = np.random.default_rng(number)
    rows = []
    for n in range(number):
        length = float(random.uniform(*seconds))
        record(root / "audio" / f"u{n:03d}.wav", length)
        text = "ab" * int(random.integers(1, 4))
        rows.append({"id": f"u{n:03d}", "audio": f"audio/u{n:03d}.wav", "text": text,
                     "speaker": f"s{n % 3}"})  # fmt: skip
    manifest(root, rows)
    return root
