"""Features of speech for tasks: a person's own, or synthetic speech made once and kept."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from regatta.data.features import Features
from regatta.data.frames import locked

if TYPE_CHECKING:
    from regatta.data.shards import Index  # pyarrow takes its time

Tell = Callable[[str, float], None]  # what is done, and how much of it: 0 to 1
SYNTH = "synth"
_HOME = "REGATTA_CACHE"
_ELSEWHERE = f"let {_HOME} name another folder"


def silent(what: str, share: float) -> None: ...


def cache() -> Path:
    """Where things are kept that can be made again."""
    own, usual = os.environ.get(_HOME), os.environ.get("XDG_CACHE_HOME")
    if own:
        return Path(own).expanduser()
    try:
        return (Path(usual) if usual else Path.home() / ".cache") / "regatta"
    except RuntimeError:
        raise ValueError(f"there is no home folder to keep things in: {_ELSEWHERE}") from None


@contextmanager
def keeping() -> Iterator[None]:
    """Whoever cannot write there is told what to do."""
    try:
        yield
    except OSError as error:
        place = error.filename or cache()
        raise ValueError(
            f"cannot write to {place} ({error.strerror}): make room, or {_ELSEWHERE}"
        ) from None


def digest_of(values: Any) -> str:
    return hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()[:16]


def own_features(folder: str, option: str) -> Index:
    """Those that `regatta data features` has made."""
    from regatta.data.shards import open_index

    try:
        return open_index(Path(folder).expanduser())
    except ValueError as error:
        raise ValueError(f"{option}={folder}: {error}") from None


def synthetic(
    language: str, minutes: tuple[float, float], seed: int, features: Features, tell: Tell = silent
) -> tuple[Index, Index]:
    """Features of synthetic speech of one language, so many minutes to train and to evaluate.

    Other voices speak, and say other sentences, where it is evaluated. It is made when it is first
    asked for; whoever comes meanwhile waits for it.
    """
    from regatta.data.synth.corpus import Synth

    train, dev = minutes
    shares = (train / (train + dev), 1 - train / (train + dev), 0.0)
    synth = Synth((train + dev) / 60, (language,), shares=shares, rate=features.rate, seed=seed)
    name = f"{language}-{train + dev:g}min-{digest_of(asdict(synth))}"
    folder = cache() / SYNTH / name
    with locked(folder):
        made = [_features_of(synth, folder, split, features, tell) for split in ("train", "dev")]
    return made[0], made[1]


def _features_of(synth: Any, folder: Path, split: str, features: Features, tell: Tell) -> Index:
    """They are remembered by their options; then the recordings need not be looked at again."""
    from regatta.data.corpora import Reading, read
    from regatta.data.extract import Extraction, extract
    from regatta.data.shards import BadShard, open_index
    from regatta.data.synth.corpus import MANIFEST, make

    out = folder / f"{split}-{digest_of(asdict(features))}"
    with suppress(BadShard):
        return open_index(out)
    jobs, heard = os.cpu_count() or 1, [0.0]
    title = f"making {', '.join(synth.languages)} speech"

    def hear(seconds: float, total: float) -> None:
        heard[0] += seconds
        tell(title, min(1.0, heard[0] / total))

    if not (folder / "corpus" / MANIFEST).exists():
        tell(title, 0.0)
        make(synth, folder / "corpus", jobs, hear)
    corpus = read(folder / "corpus", Reading(split=split))
    extraction = Extraction(features)
    return extract(
        corpus, out, extraction, jobs, lambda done, of: tell(f"{split} features", done / of)
    )
