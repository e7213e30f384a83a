"""Labelled frames on disk, mapped into memory, so that ranks of one host share one copy.

    frames.json   what they are: classes and samples by language, the features behind them;
                  written last, so without it nothing is finished
    frames.f32    all frames of all utterances, normalised, one after another
    rows.i64      a sample each: the first frame of its window
    labels.i32    a sample each: the number of its class, -1 if training never has it

An utterance's ends are repeated as far as windows reach beyond them. A window is then a stretch of
the file, and a minibatch is gathered by one operation.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, NamedTuple

import numpy as np
import torch
from torch import Tensor

from regatta.aside import write_aside
from regatta.data.features import Splice
from regatta.data.labels import Classes, Labelling, Unit
from regatta.data.normalise import NORMALISATIONS, Normaliser, Sums, added
from regatta.data.problems import Problems

if TYPE_CHECKING:
    from regatta.data.shards import Index  # pyarrow takes its time

MARKER, FRAMES, ROWS, LABELS = "frames.json", "frames.f32", "rows.i64", "labels.i32"
FORMAT = 2


class Frames(NamedTuple):
    """Samples in memory that files lend; nobody writes to them."""

    windows: Tensor  # a row for every place where a window may begin; rows overlap
    rows: Tensor
    labels: Tensor
    classes: dict[str, Classes]  # by language; labels are numbered through all of them
    seconds: float  # a sample
    about: dict[str, Any]

    def __len__(self) -> int:
        return len(self.rows)

    def inputs(self, indices: Tensor) -> Tensor:
        return self.windows.index_select(0, self.rows[indices])

    @property
    def symbols(self) -> list[str]:
        found = [(lang, name) for lang, of in self.classes.items() for name in of.names]
        return [f"{lang}:{name}" if lang else name for lang, name in found]

    @property
    def blocks(self) -> dict[str, slice]:
        """Where the classes of a language stand among all."""
        ends = np.cumsum([0, *map(len, self.classes.values())]).tolist()
        spans = zip(self.classes, pairwise(ends), strict=True)
        return {language: slice(*span) for language, span in spans}


@dataclass(frozen=True)
class Framing:
    """How frames are made of features."""

    splice: Splice = field(default_factory=Splice)
    labelling: Labelling = field(default_factory=Labelling)
    normalise: str = "global"  # speaker, or none

    def __post_init__(self) -> None:
        if self.normalise not in NORMALISATIONS:
            known = ", ".join(NORMALISATIONS)
            raise ValueError(f"normalise must be one of {known}, not {self.normalise}")


def build(
    indexes: Sequence[Index],
    framing: Framing,
    folder: Path,
    languages: Sequence[str] = (),
    like: Path | None = None,
    progress: Callable[[float], None] = lambda share: None,
) -> Path:
    """Frames of these features, if they are not there already; `like` has classes and means.

    Whoever comes while somebody builds them waits for that.
    """
    source = None if like is None else open_frames(like).about
    _refuse_unlike(indexes, source)
    identity = _identity(indexes, framing, languages, source)
    with locked(folder):
        about = _marker(folder)
        if about.get("identity") != identity or not _is_whole(folder, about):
            (folder / MARKER).unlink(missing_ok=True)
            _build(indexes, framing, folder, languages, source, identity, progress)
    return folder


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Nobody else is here meanwhile, in this or another process."""
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / ".lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def open_frames(folder: Path) -> Frames:
    about = _marker(folder)
    if not about:
        raise ValueError(f"{folder} holds no frames: they were never finished")
    if not _is_whole(folder, about):
        raise ValueError(f"frames in {folder} are not whole: delete it, they are made anew")
    width, window = about["width"], about["window"]
    values, rows, labels = (
        torch.from_file(str(folder / name), shared=False, size=count, dtype=dtype)
        for name, (dtype, count) in _contents(about).items()
    )
    windows = values.as_strided((about["rows"] - window + 1, window * width), (width, 1))
    classes = {lang: Classes(names) for lang, names in about["classes"].items()}
    return Frames(windows, rows, labels, classes, about["seconds"], about)


def _contents(about: dict[str, Any]) -> dict[str, tuple[torch.dtype, int]]:
    """By file, of what it has how many."""
    return {
        FRAMES: (torch.float32, about["rows"] * about["width"]),
        ROWS: (torch.int64, about["samples"]),
        LABELS: (torch.int32, about["samples"]),
    }


def _is_whole(folder: Path, about: dict[str, Any]) -> bool:
    sizes = {name: count * dtype.itemsize for name, (dtype, count) in _contents(about).items()}
    return all(
        (folder / name).is_file() and (folder / name).stat().st_size == size
        for name, size in sizes.items()
    )


def _marker(folder: Path) -> dict[str, Any]:
    try:
        about = json.loads((folder / MARKER).read_text())
    except (OSError, ValueError):
        return {}
    return about if isinstance(about, dict) and about.get("regatta_frames") == FORMAT else {}


def _identity(
    indexes: Sequence[Index],
    framing: Framing,
    languages: Sequence[str],
    source: dict[str, Any] | None,
) -> str:
    """Of all that decides the bytes."""
    parts: list[Any] = [FORMAT, asdict(framing), list(languages), source and source["identity"]]
    parts += [[asdict(i.features), dict(i.checksums), i.shards] for i in indexes]
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()


def _refuse_unlike(indexes: Sequence[Index], source: dict[str, Any] | None) -> None:
    """Frames that a model is to see must be described alike."""
    wanted = source["features"] if source else asdict(indexes[0].features)
    for index in indexes:
        other = {k: v for k, v in asdict(index.features).items() if v != wanted[k]}
        if other:
            told = ", ".join(f"{name} {value}, not {wanted[name]}" for name, value in other.items())
            raise ValueError(
                f"the features in {index.folder} are unlike others that go with them ({told}): "
                "extract them with the same options"
            )


# -- making them ----------------------------------------------------------------------------


class _Utterance(NamedTuple):
    features: Tensor
    units: list[Unit]
    language: str
    number: int  # in its features
    of: Index


def _build(
    indexes: Sequence[Index],
    framing: Framing,
    folder: Path,
    languages: Sequence[str],
    source: dict[str, Any] | None,
    identity: str,
    progress: Callable[[float], None],
) -> None:
    classes, sums, problems = _found(indexes, framing, languages, source)
    writer = _Writer(indexes, framing, classes, sums)
    with _files(folder) as files:
        for number, utterance in enumerate(_utterances(indexes, framing.labelling, tuple(classes))):
            writer.write(utterance, files)
            progress((number + 1) / sum(map(len, indexes)))
    if writer.samples == writer.unknown:
        tier, spoken = framing.labelling.tier, " or ".join(filter(None, classes))
        raise ValueError(
            f"no frame in {_names(indexes)} is of a class that training has{problems.why()}: it "
            f"needs times of the same {tier}{' in ' + spoken if spoken else ''}"
        )
    features = indexes[0].features
    about = {
        "regatta_frames": FORMAT, "identity": identity, "width": features.size,
        "window": framing.splice.frames, "rows": writer.rows, "samples": writer.samples,
        "unknown": writer.unknown, "spoken": writer.spoken,
        "features": asdict(features), "seconds": features.hop / features.rate,
        "classes": {lang: list(of.names) for lang, of in classes.items()},
        "sums": {speaker: found.plain() for speaker, found in sums.items()},
        "problems": problems.to_json(),
    }  # fmt: skip
    write_aside(folder / MARKER, (json.dumps(about) + "\n").encode())


def _found(
    indexes: Sequence[Index],
    framing: Framing,
    languages: Sequence[str],
    source: dict[str, Any] | None,
) -> tuple[dict[str, Classes], dict[str, Sums], Problems]:
    """Classes and sums: those of the source, or of these features; and what has no times."""
    counts, problems = _counted(indexes, framing.labelling, languages)
    if source is not None:
        classes = {lang: Classes(names) for lang, names in source["classes"].items()}
        sums = {speaker: Sums.of_plain(plain) for speaker, plain in source["sums"].items()}
        return classes, sums, problems
    wanted = languages or sorted(counts)
    missing = [lang for lang in wanted if not counts.get(lang)]
    if missing:
        there = sorted({lang or "no language" for i in indexes for lang in i.texts("language")})
        raise ValueError(
            f"there are no {framing.labelling.tier} with times in {_names(indexes)} for "
            f"{', '.join(missing)}{problems.why()}: import alignments with the corpus, or name "
            f"other languages (its utterances are of {', '.join(there)}; languages=none takes all)"
        )
    if not counts:
        raise ValueError(
            f"there are no {framing.labelling.tier} with times in {_names(indexes)}"
            f"{problems.why()}: import alignments with the corpus"
        )
    classes = {lang: Classes.of(counts[lang], framing.labelling.senones) for lang in wanted}
    return classes, added((s, x) for index in indexes for s, x in index.sums.items()), problems


class _Writer:
    def __init__(
        self,
        indexes: Sequence[Index],
        framing: Framing,
        classes: dict[str, Classes],
        sums: dict[str, Sums],
    ) -> None:
        self.rows = self.samples = self.unknown = 0
        self.spoken = dict.fromkeys(classes, 0)  # samples by language
        self._classes, self._splice = classes, framing.splice
        starts = np.cumsum([0, *map(len, classes.values())]).tolist()
        self._first = dict(zip(classes, starts, strict=False))
        self._normalisers = {
            id(index): Normaliser(framing.normalise, sums, index.sums, index.texts("speaker"))
            for index in indexes
        }

    def write(self, utterance: _Utterance, files: Sequence[BinaryIO]) -> None:
        frames, rows, labels = files
        out = torch.empty(utterance.features.shape, dtype=torch.float32)
        self._normalisers[id(utterance.of)](utterance.features, utterance.number, out=out)
        left, right = self._splice.left, self._splice.right
        padded = torch.cat([out[:1].expand(left, -1), out, out[-1:].expand(right, -1)])
        frames.write(padded.numpy().tobytes())
        numbers = self._classes[utterance.language].numbers(utterance.units)
        self.unknown += int((numbers < 0).sum())
        numbers[numbers >= 0] += self._first[utterance.language]
        labels.write(numbers.tobytes())
        rows.write(np.arange(self.rows, self.rows + len(out), dtype=np.int64).tobytes())
        self.rows, self.samples = self.rows + len(padded), self.samples + len(out)
        self.spoken[utterance.language] += len(out)


@contextmanager
def _files(folder: Path) -> Iterator[list[BinaryIO]]:
    names = [folder / name for name in (FRAMES, ROWS, LABELS)]
    files: list[BinaryIO] = [
        path.with_suffix(path.suffix + ".partial").open("wb") for path in names
    ]
    try:
        yield files
        for file in files:
            file.flush()
            os.fsync(file.fileno())
    finally:
        for file in files:
            file.close()
    for path in names:
        path.with_suffix(path.suffix + ".partial").replace(path)


def _counted(
    indexes: Sequence[Index], labelling: Labelling, languages: Sequence[str]
) -> tuple[dict[str, Counter[Unit]], Problems]:
    """How often every unit comes, by language; and which utterances have no times."""
    counts: dict[str, Counter[Unit]] = {}
    problems = Problems()
    for utterance in _utterances(indexes, labelling, languages, problems):
        counts.setdefault(utterance.language, Counter()).update(utterance.units)
    return counts, problems


def _utterances(
    indexes: Sequence[Index],
    labelling: Labelling,
    languages: Sequence[str],
    problems: Problems | None = None,
) -> Iterator[_Utterance]:
    """Those with times, of these languages or of all."""
    for index in indexes:
        hop = index.features.hop / index.features.rate
        names, spoken = index.texts("id"), index.texts("language")
        held, shard = -1, None
        for number in range(len(index)):
            if languages and spoken[number] not in languages:
                continue
            if shard is None or held != index.shard_of[number]:
                held = int(index.shard_of[number])
                shard = index.shard(held)
            row = int(index.row_of[number])
            labels = shard.labels(row, labelling.tier)
            features = shard.features(row)
            if not labels or not len(features):
                if problems is not None:
                    problems.note("no times", names[number], f"of {labelling.tier}")
                continue
            units = labelling.units(labels, len(features), hop)
            yield _Utterance(features, units, spoken[number], number, index)


def _names(indexes: Sequence[Index]) -> str:
    return ", ".join(str(index.folder) for index in indexes)
