"""Settings of the process that make memory cheaper for ranks, which need the same every turn."""

from __future__ import annotations

import ctypes
import gc
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

_M_TRIM_THRESHOLD = -1
_M_MMAP_THRESHOLD = -3
_ALL = 2**31 - 1
_OBJECTS_A_RANK = 20  # a waiting rank has about half as many that another turn had not


def keep_freed_memory() -> None:
    """Do not give memory back to the system; from here on, where the C library has such a switch.

    glibc maps every block beyond 32 MB anew and the kernel clears its pages on first touch: a
    vector of 178 MB then takes 110 ms to copy where 18 ms would do.
    """
    mallopt = _of_the_c_library("mallopt")
    if mallopt is not None:
        mallopt(_M_MMAP_THRESHOLD, _ALL)
        mallopt(_M_TRIM_THRESHOLD, _ALL)


def give_back_freed_memory() -> None:
    """Once, when all is set up: what was needed for that will not be needed again."""
    malloc_trim = _of_the_c_library("malloc_trim")
    if malloc_trim is not None:
        malloc_trim(0)


@contextmanager
def seldom_collecting(ranks: int) -> Iterator[None]:
    """Let Python look for garbage as often as with one rank, though there are many.

    It looks whenever some 700 objects more are alive than before. A thousand ranks that come to
    wait make so many, none of them garbage, and looking at them throws others out of the caches.
    """
    usual = gc.get_threshold()
    if usual[0]:
        gc.set_threshold(max(usual[0], _OBJECTS_A_RANK * ranks), *usual[1:])
    try:
        yield
    finally:
        gc.set_threshold(*usual)


def _of_the_c_library(name: str) -> Any:
    return getattr(ctypes.CDLL(None), name, None)
