"""Images before they are packed, and where they come from."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from regatta.data.problems import Problems

DIGITS = "digits"
TRAIN, TEST = "train", "test"
Pixels = NDArray[np.uint8]  # channels, rows, columns

_TEST_SHARE = 0.2  # of the bundled digits
_SHUFFLED = 1797  # the seed that parts them


@dataclass(frozen=True)
class Source:
    """Images with their classes; `load` makes the pixels of one, or raises BadImage."""

    names: Sequence[str]  # for messages
    labels: NDArray[np.int64]
    classes: tuple[str, ...]
    load: Callable[[int], Pixels]
    problems: Problems = field(default_factory=Problems)  # found so far

    def __len__(self) -> int:
        return len(self.labels)


@dataclass(frozen=True)
class Shape:
    """What images become that are not all of one size."""

    size: int = 256  # rows and columns
    channels: int = 3  # or 1: grey

    def __post_init__(self) -> None:
        if self.size < 1 or self.channels not in (1, 3):
            raise ValueError("images need a size of 1 pixel or more, and 1 or 3 channels")


def source_of(place: str, split: str, shape: Shape) -> Source:
    """`digits`, or a folder: MNIST's or CIFAR-10's files, or a folder of images a class."""
    from regatta.data.images import cifar, folders, idx

    if place == DIGITS:
        return bundled_digits(split)
    folder = Path(place).expanduser()
    if not folder.is_dir():
        raise ValueError(f"{folder} is no folder of images: name one, or {DIGITS}")
    readers: dict[Callable[[Path], bool], Callable[[Path, str, Shape], Source]] = {
        idx.is_here: idx.read, cifar.is_here: cifar.read, folders.is_here: folders.read,
    }  # fmt: skip
    for is_here, read in readers.items():
        if is_here(folder):
            return read(folder, split, shape)
    raise ValueError(
        f"{folder} holds no images: it needs MNIST's files (train-images-idx3-ubyte, ...), "
        "CIFAR-10's (data_batch_1, ...), or a folder for every class with JPEG or PNG files in it"
    )


def of_arrays(
    images: Pixels, labels: NDArray[np.int64], classes: Sequence[str], name: str
) -> Source:
    """Images that are in memory already: [image, channel, row, column]."""
    names = [f"{name}, image {number}" for number in range(len(labels))]
    return Source(names, labels, tuple(classes), images.__getitem__)


def bundled_digits(split: str) -> Source:
    """1,797 handwritten digits of 8 x 8 pixels, which scikit-learn brings along."""
    # Its file is read, not the package, whose import takes a second or two.
    found = find_spec("sklearn")
    file = Path(found.origin or "").parent / "datasets/data/digits.csv.gz" if found else None
    if file is None or not file.exists():
        raise ValueError(
            "the handwritten digits come with scikit-learn: pip install scikit-learn, or name "
            "images of your own with task.train"
        )
    rows = np.loadtxt(file, delimiter=",")  # 64 pixels from 0 to 16, and the digit
    images = np.rint(rows[:, :-1] * (255 / 16)).astype(np.uint8).reshape(-1, 1, 8, 8)
    order = np.random.default_rng(_SHUFFLED).permutation(len(images))
    for_tests = round(_TEST_SHARE * len(images))
    chosen = order[:for_tests] if split == TEST else order[for_tests:]
    labels = rows[chosen, -1].astype(np.int64)
    return of_arrays(images[chosen], labels, [str(n) for n in range(10)], DIGITS)
