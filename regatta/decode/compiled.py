"""Functions that are compiled when first called, and kept on the disk for the next time."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar, cast

import numba
import numpy as np
from numpy.typing import NDArray

F = TypeVar("F", bound=Callable[..., object])


def compiled(function: F) -> F:
    """Without the interpreter's lock, so that utterances can be decoded by several threads."""
    try:
        return cast(F, numba.njit(cache=True, nogil=True)(function))
    except RuntimeError:  # neither the package's folder nor the user's can be written to
        return cast(F, numba.njit(nogil=True)(function))


@compiled
def place(values: NDArray[np.int32], low: int, high: int, wanted: int) -> int:
    """Of the first value that is not less, in values[low:high], which are sorted."""
    while low < high:
        middle = (low + high) >> 1
        if values[middle] < wanted:
            low = middle + 1
        else:
            high = middle
    return low


def inner(function: F) -> F:
    """For compiled functions only: without what Python would call, it compiles sooner."""
    compiler = numba.njit(  # type: ignore[call-overload, unused-ignore]
        cache=True, nogil=True, error_model="numpy", no_cpython_wrapper=True, no_cfunc_wrapper=True
    )
    return cast(F, compiler(function))
