"""Random crops and flips of a batch, decided by epoch and image alone: nobody else has a say.

So it makes no difference who prepares a batch, when, or beside which other images.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import pad


@dataclass(frozen=True)
class Augmentation:
    margin: int = 0  # pixels that images are shifted by at most, each way; what is empty is 0
    flip: bool = False  # half of them, left to right

    def __post_init__(self) -> None:
        if self.margin < 0:
            raise ValueError(f"augmentation.margin must be 0 or more, not {self.margin}")


def augmented(
    images: Tensor, numbers: NDArray[np.int64], epoch: int, size: int, how: Augmentation, seed: int
) -> Tensor:
    """Crops of `size` rows and columns of images [image, channel, row, column]."""
    draws = _draws(numbers, epoch, seed)
    margin = how.margin
    padded = pad(images, (margin, margin, margin, margin)) if margin else images
    spare = padded.shape[-1] - size
    if spare:
        windows = padded.unfold(2, size, 1).unfold(3, size, 1)
        rows, columns = (torch.from_numpy(draws[:, n] % (spare + 1)) for n in (0, 1))
        images = windows[torch.arange(len(images)), :, rows, columns]
    if how.flip:
        turned = torch.from_numpy(draws[:, 2] & 1).bool()
        images = torch.where(turned[:, None, None, None], images.flip(3), images)
    return images


def middle(images: Tensor, size: int) -> Tensor:
    """The crop that nothing is random about."""
    first = (images.shape[-1] - size) // 2
    return images[..., first : first + size, first : first + size]


def _draws(numbers: NDArray[np.int64], epoch: int, seed: int) -> NDArray[np.int64]:
    """Three numbers of 31 bits an image (splitmix64)."""
    with np.errstate(over="ignore"):
        state = numbers.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15)
        state += np.uint64((epoch * 0xD1B54A32D192ED03 + seed * 0x8CB92BA72F3D8DD7) % 2**64)
        columns = []
        for _ in range(3):
            state += np.uint64(0x9E3779B97F4A7C15)
            mixed = (state ^ (state >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
            mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
            columns.append((mixed >> np.uint64(33)).astype(np.int64))
    return np.stack(columns, axis=1)
