"""Functions that are compiled when first called, and kept on the disk for the next time."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar, cast

import numba

F = TypeVar("F", bound=Callable[..., object])


def compiled(function: F) -> F:
    """Without the interpreter's lock, so that utterances can be decoded by several threads."""
    options: dict[str, Any] = {"nogil": True, "error_model": "numpy", "no_cfunc_wrapper": True}
    try:
        return cast(F, numba.njit(cache=True, **options)(function))
    except RuntimeError:  # neither the package's folder nor the user's can be written to
        return cast(F, numba.njit(**options)(function))


def inner(function: F) -> F:
    """For compiled functions only, which keep it: it compiles sooner without a way for Python.

    Integers are of 64 bits everywhere, and so are those in tables: a function that is called with
    others is compiled once more for them.
    """
    compiler = numba.njit(  # type: ignore[call-overload, unused-ignore]
        nogil=True, error_model="numpy", no_cpython_wrapper=True, no_cfunc_wrapper=True
    )
    return cast(F, compiler(function))
