"""Functions that are compiled when first called, and kept on the disk for the next time."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar, cast

import numba

F = TypeVar("F", bound=Callable[..., object])


def compiled(function: F) -> F:
    """Without the interpreter's lock, so that utterances can be decoded by several threads."""
    return cast(F, numba.njit(cache=True, nogil=True, fastmath=False)(function))
