"""How near the loader's other speeds come to recordings that were resampled.

    python studies/speeds.py CORPUS ... [--utterances 30]

Log-mels of an utterance, moved to another speed, against those of the recording itself at that
speed: the mean distance in standard deviations. Beside it, what moving frames alone would leave.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from statistics import mean

import torch

from regatta.data import audio
from regatta.data.augment import Speeds
from regatta.data.corpora import read
from regatta.data.features import Extractor, Features

FEATURES = Features(mfcc=0)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("corpora", nargs="+", type=Path)
    parser.add_argument("--utterances", type=int, default=30)
    given = parser.parse_args()
    print(f"{'corpus':20} speed  ours  frames alone")
    for path in given.corpora:
        corpus = read(path)
        for speed in (0.9, 1.1):
            waves = (
                audio.read(corpus.source(utterance), FEATURES.rate).samples
                for utterance in corpus.utterances[: given.utterances]
            )
            ours, alone = map(mean, zip(*(distances(w, speed) for w in waves), strict=True))
            print(f"{path.name:20} {speed:5} {ours:5.2f}  {alone:12.2f}")


def distances(wave: audio.Samples, speed: float) -> tuple[float, float]:
    extract = Extractor(FEATURES)
    plain = extract(torch.from_numpy(wave))
    true = extract(torch.from_numpy(audio.at_speed(wave, speed)))
    near = Speeds(FEATURES)(plain, speed)
    frames = min(len(near), len(true))
    moved = plain[torch.linspace(0, len(plain) - 1, frames).long()]
    return tuple(
        float((found[:frames] - true[:frames]).abs().mean() / true.std()) for found in (near, moved)
    )


if __name__ == "__main__":
    main()
