"""How fast features are made: on one thread, against lhotse's on the same recordings."""

from __future__ import annotations

import time
from collections.abc import Callable
from statistics import median

import numpy as np
import torch

from regatta.aboard import pin
from regatta.benchmarks import Case, Result, abba
from regatta.data.features import Extractor, Features

_RATE = 16_000
_SECONDS = (1.5, 2.5, 4.0, 6.0, 9.0, 12.0, 16.0)  # of recordings, as corpora have them
_NEEDS = "bench features needs lhotse to compare with: pip install lhotse"

Work = Callable[[], object]


def features(pairs: int) -> Result:
    torch.set_num_threads(1)
    pin(0)
    random = np.random.default_rng(0)
    waves = [
        (0.1 * random.standard_normal(int(seconds * _RATE))).astype(np.float32)
        for seconds in _SECONDS
    ]
    peer = _lhotse()
    cases = [
        _case("80 log-mels / its 80", 1.3, pairs, waves, Extractor(Features(mfcc=0)), peer),
        _case(
            "80 log-mels and 13 cepstra / its 80", 1.0, pairs, waves, Extractor(Features()), peer
        ),
    ]
    return Result("features", "ours / lhotse's Fbank, one thread", cases)


def _case(
    name: str,
    bar: float,
    pairs: int,
    waves: list[np.ndarray],
    extractor: Extractor,
    peer: Callable[[np.ndarray], object],
) -> Case:
    tensors = [torch.from_numpy(wave) for wave in waves]
    work: dict[str, Work] = {
        "A": lambda: [extractor(wave) for wave in tensors],
        "B": lambda: [peer(wave) for wave in waves],
    }
    for warm_up in work.values():
        warm_up()
    seconds: dict[str, list[float]] = {"A": [], "B": []}
    for side in abba(pairs):
        began = time.perf_counter()
        work[side]()
        seconds[side].append(time.perf_counter() - began)
    ratios = [b / a for a, b in zip(seconds["A"], seconds["B"], strict=True)]
    speech = sum(_SECONDS)
    ours, its = (f"{speech / median(seconds[side]):,.0f} x real time" for side in "AB")
    return Case(name, ratios, bar, ours, its)


def _lhotse() -> Callable[[np.ndarray], object]:
    try:
        from lhotse.features.kaldi.extractors import Fbank, FbankConfig
    except ImportError:
        raise ValueError(_NEEDS) from None
    config = FbankConfig(
        sampling_rate=_RATE, frame_length=0.032, num_mel_bins=80, dither=0.0, low_freq=20.0,
        high_freq=0.0, snip_edges=False,
    )  # fmt: skip
    extractor = Fbank(config)
    return lambda wave: extractor.extract(wave, _RATE)
