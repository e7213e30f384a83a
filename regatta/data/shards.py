"""Features on disk: Arrow files of a few utterances each, with checksums and an index.

    features.json     what it is: options, checksums, counts; written last, so without it
                      nothing is finished
    index.arrow       an utterance a row: where it is, how long, who speaks, what is said
    sums.arrow        by speaker, what normalisation needs
    shard-00000.arrow one record batch, compressed
    problems.jsonl    what could not be used, and why

A shard's bytes depend on its utterances and the options alone, not on who wrote it when.
"""

from __future__ import annotations

import json
import os
import warnings
import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import torch
from numpy.typing import NDArray
from torch import Tensor

from regatta.aside import write_aside
from regatta.data.features import Features
from regatta.data.manifest import Label
from regatta.data.normalise import Sums, added
from regatta.data.problems import Problem, Problems

MARKER, INDEX, SUMS, PROBLEMS = "features.json", "index.arrow", "sums.arrow", "problems.jsonl"
FORMAT = 1
UTTERANCES = 64  # a shard
_LABELS = pa.list_(pa.struct([("start", pa.float32()), ("end", pa.float32()), ("name", pa.utf8())]))
# Nobody writes to what a shard holds. (Filters are the process's: set once, by one thread.)
warnings.filterwarnings("ignore", "The given NumPy array is not writable")
_ABOUT = b"regatta"  # the key of a shard's own notes


class BadShard(ValueError):
    """Features on disk that cannot be trusted."""


@dataclass(frozen=True)
class Storage:
    """How features are kept."""

    dtype: str = "float32"  # or float16: half the size, three digits
    level: int = 1  # of zstd; higher is smaller and slower to write

    def __post_init__(self) -> None:
        if self.dtype not in ("float32", "float16"):
            raise ValueError(f"features are kept as float32 or float16, not {self.dtype}")
        if not 1 <= self.level <= 19:
            raise ValueError(f"zstd's level must be 1 to 19, not {self.level}")


@dataclass(frozen=True)
class Described:
    """An utterance with its features."""

    id: str
    text: str
    speaker: str
    language: str
    seconds: float
    features: Tensor  # frames by features
    words: Sequence[Label] = ()
    phones: Sequence[Label] = ()


def shard_name(number: int) -> str:
    return f"shard-{number:05d}.arrow"


# -- writing --------------------------------------------------------------------------------


def write_shard(
    path: Path,
    rows: Sequence[Described],
    problems: Sequence[Problem],
    storage: Storage,
) -> int:
    """One shard, whole or not at all; returns its checksum."""
    sums = added((row.speaker, Sums.of(row.features)) for row in rows if len(row.features))
    about = {
        "problems": [asdict(problem) for problem in problems],
        "sums": {speaker: found.plain() for speaker, found in sums.items()},
    }
    return _write_table(path, _batch(rows, storage, about), storage.level)


def _batch(rows: Sequence[Described], storage: Storage, about: Mapping[str, Any]) -> pa.RecordBatch:
    dtype = np.dtype(storage.dtype)
    flat = [row.features.numpy().reshape(-1).astype(dtype, copy=False) for row in rows]
    ends = np.cumsum([0, *map(len, flat)], dtype=np.int64)
    values = pa.array(np.concatenate(flat) if flat else np.empty(0, dtype))
    columns = {
        "id": pa.array([row.id for row in rows], pa.utf8()),
        "text": pa.array([row.text for row in rows], pa.utf8()),
        "speaker": pa.array([row.speaker for row in rows], pa.utf8()),
        "language": pa.array([row.language for row in rows], pa.utf8()),
        "seconds": pa.array([row.seconds for row in rows], pa.float64()),
        "frames": pa.array([len(row.features) for row in rows], pa.int32()),
        "features": pa.LargeListArray.from_arrays(pa.array(ends), values),
        "words": pa.array([_structs(row.words) for row in rows], _LABELS),
        "phones": pa.array([_structs(row.phones) for row in rows], _LABELS),
    }
    batch = pa.RecordBatch.from_pydict(columns)
    return batch.replace_schema_metadata({_ABOUT: json.dumps(about).encode()})


def _structs(labels: Iterable[Label]) -> list[dict[str, Any]]:
    return [label._asdict() for label in labels]


# -- reading --------------------------------------------------------------------------------


@dataclass(frozen=True)
class Shard:
    """One in memory; features are views into it."""

    batch: pa.RecordBatch
    size: int  # features a frame

    @cached_property
    def _values(self) -> Tensor:
        flat: NDArray[Any] = self.batch.column("features").values.to_numpy(zero_copy_only=True)
        return torch.from_numpy(flat).view(-1, self.size)

    @cached_property
    def _starts(self) -> NDArray[np.int64]:
        offsets: NDArray[np.int64] = self.batch.column("features").offsets.to_numpy()
        return offsets // self.size

    def features(self, row: int) -> Tensor:
        return self._values[self._starts[row] : self._starts[row + 1]]

    def labels(self, row: int, tier: str) -> list[Label]:
        return [Label(**label) for label in self.batch.column(tier)[row].as_py()]

    @cached_property
    def about(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.batch.schema.metadata[_ABOUT])
        return found


def sums_of(about: Mapping[str, Any]) -> dict[str, Sums]:
    """By speaker, as a shard's own notes have them."""
    return {speaker: Sums.of_plain(plain) for speaker, plain in about["sums"].items()}


def read_shard_without_features(path: Path) -> Shard:
    """One that is known to be whole; its features are left on disk."""
    with pa.memory_map(str(path)) as file:
        names = pa.ipc.open_file(file).schema.names
        wanted = [number for number, name in enumerate(names) if name != "features"]
        options = pa.ipc.IpcReadOptions(included_fields=wanted, use_threads=False)
        return Shard(pa.ipc.open_file(file, options=options).get_batch(0), 0)


def read_shard(path: Path, size: int, checksum: int) -> Shard:
    """Raises BadShard if the file is not there, not whole, or not what it was."""
    content = _checked(path, checksum)
    try:
        batch = pa.ipc.open_file(pa.BufferReader(content)).get_batch(0)
        return Shard(batch, size)
    except (pa.ArrowInvalid, OSError, KeyError, IndexError) as error:
        raise BadShard(f"{path} is no shard: {error}: {_REMEDY}") from None


_AGAIN = "run `regatta data features` again, which makes what is missing"
_REMEDY = f"remove it and {_AGAIN}"


@dataclass(frozen=True)
class Index:
    """Finished features: what there is, and where."""

    folder: Path
    features: Features
    storage: Storage
    shards: tuple[tuple[str, int], ...]  # names and checksums
    checksums: Mapping[str, int]  # of the other files
    table: pa.Table  # an utterance a row: shard, row, id, text, speaker, language, seconds, frames
    problems: Problems

    def __len__(self) -> int:
        return int(self.table.num_rows)

    @cached_property
    def frames(self) -> NDArray[np.int64]:
        return self._column("frames")

    @cached_property
    def seconds(self) -> NDArray[np.float64]:
        return self._column("seconds")

    @cached_property
    def shard_of(self) -> NDArray[np.int64]:
        return self._column("shard")

    @cached_property
    def row_of(self) -> NDArray[np.int64]:
        return self._column("row")

    def verify(self) -> None:
        """Read every file; raises BadShard for the first that is not what it was."""
        for number in range(len(self.shards)):
            self.shard(number)
        _checked(self.folder / SUMS, self.checksums[SUMS])

    def texts(self, name: str) -> list[str]:
        """The ids, texts, speakers or languages of all utterances."""
        found: list[str] = self.table.column(name).to_pylist()
        return found

    def shard(self, number: int) -> Shard:
        name, checksum = self.shards[number]
        return read_shard(self.folder / name, self.features.size, checksum)

    @cached_property
    def sums(self) -> dict[str, Sums]:
        """By speaker."""
        table = _read_table(self.folder / SUMS, self.checksums[SUMS])
        return {
            row["speaker"]: Sums.of_plain([row["count"], row["total"], row["squares"]])
            for row in table.to_pylist()
        }

    def _column(self, name: str) -> NDArray[Any]:
        values: NDArray[Any] = self.table.column(name).to_numpy()
        return values


def write_index(
    folder: Path,
    rows: Mapping[str, list[Any]],
    sums: Mapping[str, Sums],
    about: Mapping[str, Any],
    checksums: Mapping[str, int],
) -> None:
    """The index and the sums, then the marker that says that all is finished."""
    types = {"shard": pa.int32(), "row": pa.int32(), "seconds": pa.float64(), "frames": pa.int32()}
    index = pa.table({k: pa.array(v, types.get(k, pa.utf8())) for k, v in rows.items()})
    by_speaker = pa.table(
        {
            "speaker": pa.array(list(sums), pa.utf8()),
            "count": [s.count for s in sums.values()],
            "total": [s.total.tolist() for s in sums.values()],
            "squares": [s.squares.tolist() for s in sums.values()],
        }
    )
    written = {INDEX: _write_table(folder / INDEX, index)}
    written[SUMS] = _write_table(folder / SUMS, by_speaker)
    marker = {"regatta_features": FORMAT, **about, "checksums": {**checksums, **written}}
    write_aside(folder / MARKER, (json.dumps(marker, indent=1) + "\n").encode())


def _write_table(path: Path, table: pa.Table | pa.RecordBatch, level: int = 1) -> int:
    """Returns its checksum."""
    sink = pa.BufferOutputStream()
    options = pa.ipc.IpcWriteOptions(compression=pa.Codec("zstd", level), use_threads=False)
    with pa.ipc.new_file(sink, table.schema, options=options) as writer:
        writer.write(table)
    content = sink.getvalue()
    write_aside(path, content)
    return zlib.crc32(content)


def _checked(path: Path, checksum: int) -> bytes:
    try:
        content = path.read_bytes()
    except OSError as error:
        raise BadShard(f"{path}: {error.strerror}: {_AGAIN}") from None
    if zlib.crc32(content) != checksum:
        raise BadShard(f"{path} has changed since it was written (checksum): {_REMEDY}")
    return content


def _read_table(path: Path, checksum: int) -> pa.Table:
    return pa.ipc.open_file(pa.BufferReader(_checked(path, checksum))).read_all()


def open_index(folder: str | os.PathLike[str]) -> Index:
    folder = Path(folder)
    path = folder / MARKER
    try:
        marker = json.loads(path.read_text())
    except FileNotFoundError:
        begun = any(folder.glob("shard-*.arrow"))
        raise BadShard(
            f"{folder} holds features that were never finished: run `regatta data features` again"
            if begun
            else f"there are no features in {folder}: make them with `regatta data features`"
        ) from None
    except (OSError, ValueError) as error:
        raise BadShard(f"{path} cannot be read: {error}: {_REMEDY}") from None
    if not isinstance(marker, dict) or marker.get("regatta_features") != FORMAT:
        raise BadShard(f"{path} is of another version of Regatta: make the features again")
    try:
        index = _index_of(folder, marker)
    except (AssertionError, AttributeError, LookupError, TypeError) as error:
        raise BadShard(f"{path} is damaged ({error!r}): {_REMEDY}") from None
    for name, _ in index.shards:
        if not (folder / name).is_file():
            raise BadShard(f"{folder / name} is missing, though the index names it: {_AGAIN}")
    return index


def _index_of(folder: Path, marker: Mapping[str, Any]) -> Index:
    checksums = marker["checksums"]
    problems = _checked(folder / PROBLEMS, checksums[PROBLEMS]).decode().splitlines()
    return Index(
        folder,
        Features(**marker["features"]),
        Storage(**marker["storage"]),
        tuple((name, checksum) for name, checksum, _ in marker["shards"]),
        checksums,
        _read_table(folder / INDEX, checksums[INDEX]),
        Problems.from_json(map(json.loads, problems)),
    )
