"""Images on disk as a network takes them: Arrow files of equal records, with checksums.

    images.json        what it is: shape, classes, sums, checksums; written last
    shard-00000.arrow  pixels (channel, row, column; a byte each), label and name of some images
    problems.jsonl     what could not be used, and why

Nothing is compressed, so that a shard is mapped, not read: whatever images a batch has, only their
pages are touched.
"""

from __future__ import annotations

import json
import threading
import zlib
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import torch
from numpy.typing import NDArray
from torch import Tensor

from regatta.aside import write_aside
from regatta.data.images.source import Pixels, Source
from regatta.data.problems import BadImage, Problems

MARKER, PROBLEMS = "images.json", "problems.jsonl"
FORMAT = 1
_SHARD_BYTES = 64 << 20
_AGAIN = "remove the folder: it is made again from the images"

Progress = Callable[[float], None]


class BadImages(ValueError):
    """Packed images that cannot be trusted."""


# -- writing --------------------------------------------------------------------------------


def pack(
    source: Source, folder: Path, jobs: int = 1, progress: Progress = lambda share: None
) -> None:
    """Whole or not at all: without its marker a folder holds nothing."""
    folder.mkdir(parents=True, exist_ok=True)
    packing = _Packing(source, folder)
    with ThreadPoolExecutor(max(1, jobs)) as threads:  # decoders let go of Python's lock
        for done, found in enumerate(_loaded(source, threads, jobs)):
            packing.add(done, found)
            if done % 256 == 0:
                progress(done / len(source))
    packing.finish()
    progress(1.0)


def _loaded(source: Source, threads: ThreadPoolExecutor, jobs: int) -> Iterator[Pixels | BadImage]:
    """In their order, not all of them in memory."""

    def load(number: int) -> Pixels | BadImage:
        try:
            return source.load(number)
        except BadImage as error:
            return error

    ahead = 64 * max(1, jobs)
    for first in range(0, len(source), ahead):
        yield from threads.map(load, range(first, min(first + ahead, len(source))))


class _Packing:
    def __init__(self, source: Source, folder: Path) -> None:
        self._source, self._folder = source, folder
        self._shape: tuple[int, ...] = ()
        self._shards: list[tuple[str, int, int]] = []
        self._pixels: list[Pixels] = []
        self._numbers: list[int] = []
        self._bad = Problems()
        self._sums = np.zeros((2, 1))  # of pixels and of their squares, by channel
        self._count = 0

    def add(self, number: int, found: Pixels | BadImage) -> None:
        if isinstance(found, BadImage):
            self._bad.add([found.of(self._source.names[number])])
            return
        if not self._shape:
            self._shape = found.shape
            self._sums = np.zeros((2, found.shape[0]))
        assert found.shape == self._shape
        self._pixels.append(found)
        self._numbers.append(number)
        if len(self._pixels) * found.nbytes >= _SHARD_BYTES:
            self._write()

    def finish(self) -> None:
        self._write()
        problems = Problems([*self._source.problems, *self._bad])
        if not self._count:
            raise ValueError(f"no image can be used{problems.why()}")
        rows = "".join(json.dumps(row) + "\n" for row in problems.to_json()).encode()
        write_aside(self._folder / PROBLEMS, rows)
        values = self._count * self._shape[1] * self._shape[2]
        mean = self._sums[0] / values
        spread = np.sqrt(np.maximum(self._sums[1] / values - mean**2, 0.0))
        marker = {
            "regatta_images": FORMAT,
            "shape": self._shape,
            "classes": self._source.classes,
            "shards": self._shards,
            "mean": mean.tolist(),
            "deviation": spread.tolist(),
            "problems": zlib.crc32(rows),
        }
        write_aside(self._folder / MARKER, (json.dumps(marker, indent=1) + "\n").encode())

    def _write(self) -> None:
        if not self._pixels:
            return
        stacked = np.stack(self._pixels)
        exact = stacked.astype(np.float64) / 255
        self._sums += [exact.sum((0, 2, 3)), (exact**2).sum((0, 2, 3))]
        name = f"shard-{len(self._shards):05d}.arrow"
        checksum = _write_shard(
            self._folder / name,
            stacked,
            self._source.labels[self._numbers],
            [self._source.names[number] for number in self._numbers],
        )
        self._shards.append((name, checksum, len(stacked)))
        self._count += len(stacked)
        self._pixels, self._numbers = [], []


def _write_shard(path: Path, pixels: Pixels, labels: NDArray[np.int64], names: list[str]) -> int:
    record = pa.binary(int(np.prod(pixels.shape[1:])))
    columns = [
        pa.FixedSizeBinaryArray.from_buffers(record, len(pixels), [None, pa.py_buffer(pixels)]),
        pa.array(labels, pa.int32()),
        pa.array(names, pa.utf8()),
    ]
    batch = pa.RecordBatch.from_arrays(columns, ["pixels", "label", "name"])
    sink = pa.BufferOutputStream()
    with pa.ipc.new_file(sink, batch.schema) as writer:
        writer.write(batch)
    content = sink.getvalue()
    write_aside(path, content)
    return zlib.crc32(content)


# -- reading --------------------------------------------------------------------------------


@dataclass(frozen=True)
class Packed:
    """Finished images: what there is, and where."""

    folder: Path
    shape: tuple[int, int, int]  # channels, rows, columns
    classes: tuple[str, ...]
    shards: tuple[tuple[str, int, int], ...]  # names, checksums, images
    mean: tuple[float, ...]  # of pixels from 0 to 1, by channel
    deviation: tuple[float, ...]
    problems: Problems

    def __len__(self) -> int:
        return sum(count for _, _, count in self.shards)

    def pixels(self, numbers: NDArray[np.int64]) -> Tensor:
        """[image, channel, row, column], bytes."""
        found = np.empty((len(numbers), int(np.prod(self.shape))), np.uint8)
        shards = np.searchsorted(self._starts, numbers, side="right") - 1
        for shard in np.unique(shards):
            here = shards == shard
            found[here] = self._mapped(int(shard))[numbers[here] - self._starts[shard]]
        return torch.from_numpy(found).view(-1, *self.shape)

    @cached_property
    def labels(self) -> Tensor:
        columns = [self._table(number).column("label") for number in range(len(self.shards))]
        return torch.from_numpy(np.concatenate([each.to_numpy() for each in columns])).long()

    @property
    def identity(self) -> list[Any]:
        """What two sets have in common that are the same."""
        return [self.shape, self.classes, [(checksum, n) for _, checksum, n in self.shards]]

    @cached_property
    def _starts(self) -> NDArray[np.int64]:
        return np.cumsum([0, *(count for _, _, count in self.shards[:-1])])

    @cached_property
    def _known(self) -> dict[int, pa.RecordBatch]:
        return {}

    @cached_property
    def _lock(self) -> threading.Lock:
        return threading.Lock()

    def _mapped(self, number: int) -> Pixels:
        buffer = self._table(number).column("pixels").buffers()[1]
        return np.frombuffer(buffer, np.uint8).reshape(-1, int(np.prod(self.shape)))

    def _table(self, number: int) -> pa.RecordBatch:
        """Mapped; its checksum is taken when it is first asked for."""
        with self._lock:
            if number not in self._known:
                name, checksum, count = self.shards[number]
                self._known[number] = _read_shard(self.folder / name, checksum, count)
            return self._known[number]


def _read_shard(path: Path, checksum: int, count: int) -> pa.RecordBatch:
    try:
        content = pa.memory_map(str(path)).read_buffer()
        if zlib.crc32(content) != checksum:
            raise BadImages(f"{path} has changed since it was written (checksum): {_AGAIN}")
        batch = pa.ipc.open_file(content).get_batch(0)
    except (OSError, pa.ArrowInvalid) as error:
        raise BadImages(f"{path} cannot be read ({error}): {_AGAIN}") from None
    if batch.num_rows != count:
        raise BadImages(f"{path} has {batch.num_rows} images, not {count}: {_AGAIN}")
    return batch


def is_packed(folder: Path) -> bool:
    return (folder / MARKER).is_file()


def open_packed(folder: Path) -> Packed:
    path = folder / MARKER
    try:
        marker = json.loads(path.read_text())
        if marker["regatta_images"] != FORMAT:
            raise BadImages(f"{path} is of another version of Regatta: {_AGAIN}")
        rows = (folder / PROBLEMS).read_bytes()
        if zlib.crc32(rows) != marker["problems"]:
            raise BadImages(f"{folder / PROBLEMS} has changed since it was written: {_AGAIN}")
        channels, height, width = marker["shape"]
        return Packed(
            folder,
            (channels, height, width),
            tuple(marker["classes"]),
            tuple((name, checksum, count) for name, checksum, count in marker["shards"]),
            tuple(marker["mean"]),
            tuple(marker["deviation"]),
            Problems.from_json(map(json.loads, rows.decode().splitlines())),
        )
    except BadImages:
        raise
    except FileNotFoundError as error:
        raise BadImages(f"{error.filename} is missing: {_AGAIN}") from None
    except (OSError, ValueError, LookupError, TypeError) as error:
        raise BadImages(f"{path} is damaged ({error!r}): {_AGAIN}") from None
