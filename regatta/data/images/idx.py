"""MNIST's files, and those of sets that took over its form: Fashion-MNIST, EMNIST, ..."""

from __future__ import annotations

import gzip
import math
import struct
import zlib
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from regatta.data.images.source import TEST, Shape, Source, of_arrays

_SPLITS = {"train": "train", TEST: "t10k"}  # as the files are named
_BYTES = 0x08  # the only type of numbers that images have
_MOST = 1 << 33  # bytes: more than that was never meant
_FASHION = (
    "T-shirt", "trouser", "pullover", "dress", "coat", "sandal", "shirt", "sneaker", "bag", "boot",
)  # fmt: skip


def is_here(folder: Path) -> bool:
    return bool([*folder.glob("*-images-idx3-ubyte"), *folder.glob("*-images-idx3-ubyte.gz")])


def read(folder: Path, split: str, shape: Shape) -> Source:  # noqa: ARG001
    images_file, labels_file = (
        _file(folder, split, kind) for kind in ("images-idx3", "labels-idx1")
    )
    images, labels = read_idx(images_file, 3), read_idx(labels_file, 1)
    if len(images) != len(labels):
        raise ValueError(
            f"{images_file} has {len(images)} images, but {labels_file} {len(labels)} labels: "
            "they are not of one set"
        )
    count = int(labels.max(initial=0)) + 1
    is_fashion = "fashion" in str(folder.resolve()).lower() and count <= len(_FASHION)
    classes = _FASHION if is_fashion else [str(number) for number in range(max(count, 10))]
    return of_arrays(images[:, None], labels.astype(np.int64), classes, images_file.name)


def _file(folder: Path, split: str, kind: str) -> Path:
    name = f"{_SPLITS[split]}-{kind}-ubyte"
    for path in (folder / name, folder / f"{name}.gz"):
        if path.exists():
            return path
    raise ValueError(f"{folder / name} is missing, with or without .gz: the set is not whole")


def read_idx(path: Path, dimensions: int) -> NDArray[np.uint8]:
    """One file as an array of bytes."""
    try:
        content = _content(path)
    except (OSError, EOFError, zlib.error) as error:
        raise ValueError(
            f"{path} cannot be read ({error}): copy it again from its source"
        ) from None
    head = 4 + 4 * dimensions
    if len(content) < head or content[:2] != b"\0\0":
        raise ValueError(f"{path} is no idx file: it does not begin as one")
    if content[2] != _BYTES or content[3] != dimensions:
        raise ValueError(
            f"{path} has numbers of type {content[2]:#x} in {content[3]} dimensions, not bytes in "
            f"{dimensions}: it is another kind of file"
        )
    sizes = struct.unpack(f">{dimensions}I", content[4:head])
    if len(content) - head != math.prod(sizes):
        raise ValueError(
            f"{path} has {len(content) - head} bytes of the {math.prod(sizes)} that it announces: "
            "copy it again from its source"
        )
    return np.frombuffer(content, np.uint8, offset=head).reshape(sizes)


def _content(path: Path) -> bytes:
    if path.suffix != ".gz":
        return path.read_bytes()
    with gzip.GzipFile(path) as file:
        return file.read(_MOST)
