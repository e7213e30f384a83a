"""CIFAR-10's files: binary, or Python's own, of which nothing but arrays and texts is read."""

from __future__ import annotations

import codecs
import io
import pickle
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from regatta.data.images.source import TEST, Pixels, Shape, Source, of_arrays

_ROW = 1 + 3 * 32 * 32  # a label and the pixels
_CLASSES = (
    "airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck",
)  # fmt: skip
_BATCHES = {"train": [f"data_batch_{number}" for number in range(1, 6)], TEST: ["test_batch"]}
_FOLDERS = ("", "cifar-10-batches-bin", "cifar-10-batches-py")  # as the archives unpack


def is_here(folder: Path) -> bool:
    return _home(folder) is not None


def _home(folder: Path) -> Path | None:
    for name in _FOLDERS:
        for suffix in ("", ".bin"):
            if (folder / name / f"{_BATCHES[TEST][0]}{suffix}").is_file():
                return folder / name
    return None


def read(folder: Path, split: str, shape: Shape) -> Source:  # noqa: ARG001
    home = _home(folder)
    assert home is not None
    images, labels = [], []
    for name in _BATCHES[split]:
        is_binary = (home / f"{name}.bin").exists()
        path = home / (f"{name}.bin" if is_binary else name)
        if not path.exists():
            raise ValueError(f"{path} is missing: the set is not whole")
        some = _binary(path) if is_binary else _pickled(path)
        images.append(some[0])
        labels.append(some[1])
    numbers = np.concatenate(labels)
    if len(numbers) and int(numbers.max()) >= len(_CLASSES):
        raise ValueError(
            f"{home}: a label is {numbers.max()}: CIFAR-10 has {len(_CLASSES)} classes"
        )
    return of_arrays(np.concatenate(images), numbers, _CLASSES, f"CIFAR-10 {split}")


def _binary(path: Path) -> tuple[Pixels, NDArray[np.int64]]:
    content = path.read_bytes()
    if not content or len(content) % _ROW:
        raise ValueError(
            f"{path} has {len(content)} bytes, which are no whole images of {_ROW}: copy it again "
            "from its source"
        )
    rows = np.frombuffer(content, np.uint8).reshape(-1, _ROW)
    return rows[:, 1:].reshape(-1, 3, 32, 32), rows[:, 0].astype(np.int64)


def _pickled(path: Path) -> tuple[Pixels, NDArray[np.int64]]:
    try:
        found = _Arrays(io.BytesIO(path.read_bytes()), encoding="bytes").load()
        images = np.asarray(found[b"data"])
        labels = np.asarray(found[b"labels"], dtype=np.int64)
        assert images.dtype == np.uint8
        assert images.shape == (len(labels), _ROW - 1)
    except Exception as error:  # whatever a damaged pickle leads to
        raise ValueError(
            f"{path} is no batch of CIFAR-10 ({error}): copy it again from its source"
        ) from None
    return images.reshape(-1, 3, 32, 32), labels


class _Arrays(pickle.Unpickler):
    """Makes arrays and plain values; whatever else a file asks for is refused."""

    def find_class(self, module: str, name: str) -> Any:
        made = _ALLOWED.get((module, name))
        if made is None:
            raise pickle.UnpicklingError(f"it asks for {module}.{name}")
        return made()


def _reconstruct() -> Any:
    return import_module("numpy._core.multiarray")._reconstruct


_ALLOWED: dict[tuple[str, str], Callable[[], Any]] = {
    ("numpy.core.multiarray", "_reconstruct"): _reconstruct,
    ("numpy._core.multiarray", "_reconstruct"): _reconstruct,
    ("numpy", "ndarray"): lambda: np.ndarray,
    ("numpy", "dtype"): lambda: np.dtype,
    ("_codecs", "encode"): lambda: codecs.encode,
}
