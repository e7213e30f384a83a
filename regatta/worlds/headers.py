"""What a message says of itself, and whether that can be: looked at before anything is made of it.

Ranks trust each other's numbers, but a message that no rank of this version sends must neither take
memory nor be looked at where nothing lies: it ends the world, and its sender is named.
"""

from __future__ import annotations

import mmap
import os
from typing import Final

import torch

DTYPES: Final = (
    torch.float32, torch.float64, torch.float16, torch.bfloat16,
    torch.int8, torch.uint8, torch.int16, torch.int32, torch.int64, torch.bool,
)  # fmt: skip
_KINDS: Final = tuple((dtype, dtype.itemsize) for dtype in DTYPES)
_MEMORY: Final = os.sysconf("SC_PHYS_PAGES") * mmap.PAGESIZE


class Nonsense(ValueError):
    """A header that makes no sense; whoever has received it knows from whom."""

    def __init__(self, what: str) -> None:
        super().__init__(f"it has sent a message that makes no sense: {what}")


def dtype_of(code: int, nbytes: int) -> torch.dtype:
    """Of a payload of so many bytes."""
    if not 0 <= code < len(_KINDS):
        raise Nonsense(f"there is no type of numbers {code}")
    dtype, size = _KINDS[code]
    if nbytes < 0 or nbytes % size:
        raise Nonsense(f"{nbytes} bytes are no whole numbers of {dtype}")
    return dtype


def dtype_to_receive(code: int, numel: int) -> torch.dtype:
    """Of a payload of so many numbers, for which there must be memory."""
    dtype = dtype_of(code, 0)
    if not 0 <= numel * dtype.itemsize <= _MEMORY:
        raise Nonsense(f"{numel} numbers of {dtype} are announced")
    return dtype
