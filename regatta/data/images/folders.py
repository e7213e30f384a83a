"""JPEG and PNG files, a folder a class."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import numpy as np

from regatta.data.images.decoding import decoded
from regatta.data.images.source import TEST, Pixels, Shape, Source
from regatta.data.problems import BadImage, Problems

_SUFFIXES = {".jpg", ".jpeg", ".png"}
_SPLITS = {"train": ("train",), TEST: ("test", "val", "valid", "validation", "dev")}


def is_here(folder: Path) -> bool:
    return any(_images(each) for each in _classes(_part(folder, "train") or folder))


def read(folder: Path, split: str, shape: Shape) -> Source:
    """Of the folder, or of its `train` and `test` (or `val`) where it has these."""
    home = _part(folder, split) or folder
    if home == folder and _part(folder, "train") is not None:
        raise ValueError(f"{folder} has a folder train, but none of {', '.join(_SPLITS[split])}")
    known = _classes(_part(folder, "train") or home)
    classes = tuple(each.name for each in known)
    files: list[Path] = []
    labels: list[int] = []
    problems = Problems()
    for each in _classes(home):
        if each.name not in classes:
            problems.note("unknown class", str(each.relative_to(folder)))
            continue
        found = _images(each)
        if not found:
            problems.note("class without images", str(each.relative_to(folder)), used=True)
        files += found
        labels += [classes.index(each.name)] * len(found)
    names = [str(file.relative_to(folder)) for file in files]
    load = partial(_load, files, names, shape, problems)
    return Source(names, np.array(labels, dtype=np.int64), classes, load, problems)


def _load(
    files: list[Path], names: list[str], shape: Shape, problems: Problems, number: int
) -> Pixels:
    try:
        content = files[number].read_bytes()
    except OSError as error:
        raise BadImage("unreadable file", error.strerror or "") from None
    pixels, unusual = decoded(content, shape)
    if unusual:
        problems.note("unusual colours", names[number], unusual, used=True)
    return pixels


def _part(folder: Path, split: str) -> Path | None:
    return next((folder / name for name in _SPLITS[split] if (folder / name).is_dir()), None)


def _classes(folder: Path) -> list[Path]:
    return sorted(path for path in folder.iterdir() if path.is_dir() and path.name[0] != ".")


def _images(folder: Path) -> list[Path]:
    """In all folders below; in one order on every machine."""
    return sorted(
        path
        for path in folder.rglob("*")
        if path.suffix.lower() in _SUFFIXES and path.name[0] != "." and path.is_file()
    )
