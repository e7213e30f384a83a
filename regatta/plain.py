"""Plain values as files have them: read, held against the types they should have, and shown.

A file may have been cut short, changed, or written by somebody who means harm. What does not fit is
a ValueError of one line, whatever it is.
"""

from __future__ import annotations

import json
import reprlib
import types
from collections.abc import Callable
from dataclasses import MISSING, fields
from functools import cache
from typing import Any, TypeVar, Union, get_args, get_origin, get_type_hints

T = TypeVar("T")
LARGEST = 2**63 - 1  # whole number: tensors and headers hold none beyond it
_LARGEST_MEASURE = 1e15  # readers reckon with more than one of them
LONGEST = 4096  # letters of a setting: the longest path
_MOST_SHOWN = 200  # letters of a text in a message
_UNPRINTABLE = "\ufffd"


def loads(text: str) -> Any:
    """The value of a JSON text."""
    try:
        return json.loads(text)
    except RecursionError:
        raise ValueError("its values are nested too deeply") from None


# -- types ------------------------------------------------------------------------------------


def fits(kind: Any, value: Any) -> bool:
    """Whether a value, as JSON has it, can stand where a value of this type is wanted."""
    return _check_of(kind)(value)


def made(kind: Callable[..., T], values: dict[str, Any]) -> T:
    """A dataclass from values by name, all of the right types; names that it has not are left."""
    arguments: dict[str, Any] = {}
    for name, wanted, check, is_needed in _fields_of(kind):
        if name in values:
            if not check(values[name]):
                raise ValueError(misfit(name, wanted, values[name]))
            arguments[name] = values[name]
        elif is_needed:
            raise ValueError(f"{name} is missing")
    return kind(**arguments)


def is_measured(value: Any) -> bool:
    """Whether a number, or every one of a list, may be of seconds, shares or joules."""
    values = value if isinstance(value, list) else [value]
    return all(not isinstance(each, float) or abs(each) <= _LARGEST_MEASURE for each in values)


def misfit(name: str, kind: Any, value: Any) -> str:
    return f"{name} must be {_described(kind)}, not {shown(value)}"


@cache
def _fields_of(kind: Any) -> list[tuple[str, Any, Callable[[Any], bool], bool]]:
    """Names, types, how to tell, and whether there is no default."""
    hints = get_type_hints(kind)
    return [
        (
            f.name,
            hints[f.name],
            _check_of(hints[f.name]),
            f.default is MISSING and f.default_factory is MISSING,
        )
        for f in fields(kind)
    ]


@cache
def _check_of(kind: Any) -> Callable[[Any], bool]:
    inner = get_args(kind)
    if get_origin(kind) in (Union, types.UnionType):
        checks = [_check_of(each) for each in inner]
        return lambda value: any(check(value) for check in checks)
    if get_origin(kind) is tuple and inner[-1] is not ...:
        places = [_check_of(each) for each in inner]
        return lambda value: (
            isinstance(value, list | tuple)
            and len(value) == len(places)
            and all(check(each) for check, each in zip(places, value, strict=True))
        )
    if get_origin(kind) in (list, tuple):
        one = _check_of(inner[0])
        return lambda value: isinstance(value, list | tuple) and all(map(one, value))
    if get_origin(kind) is dict:
        key, one = map(_check_of, inner)
        return lambda value: (
            isinstance(value, dict) and all(map(key, value)) and all(map(one, value.values()))
        )
    return _CHECKS.get(kind, lambda value: True)


def _is_whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and -LARGEST <= value <= LARGEST


_CHECKS: dict[Any, Callable[[Any], bool]] = {
    int: _is_whole,
    float: lambda value: isinstance(value, float) or _is_whole(value),
    str: lambda value: isinstance(value, str),
    bool: lambda value: isinstance(value, bool),
    type(None): lambda value: value is None,
}
_NAMES: dict[Any, str] = {
    int: "a whole number",
    float: "a number",
    str: "text",
    bool: "true or false",
    type(None): "null",
}


def _described(kind: Any) -> str:
    inner = get_args(kind)
    if get_origin(kind) in (Union, types.UnionType):
        return " or ".join(map(_described, inner))
    if get_origin(kind) in (list, tuple):
        return f"a list of {_several(inner[0])}"
    return _NAMES.get(kind, "an object")


def _several(kind: Any) -> str:
    if get_origin(kind) in (list, tuple):
        return f"lists of {_several(get_args(kind)[0])}"
    return _described(kind).removeprefix("an ").removeprefix("a ") + "s"


# -- as a person writes them ------------------------------------------------------------------


def parsed(kind: Any, text: str, name: str) -> Any:
    """Text as a value of this type."""
    if len(text) > LONGEST:
        raise ValueError(f"{name} has {len(text)} letters: {LONGEST} at most")
    if get_origin(kind) in (Union, types.UnionType):
        if text.lower() in _NOTHING:
            return None
        kind = next(k for k in get_args(kind) if k is not type(None))
    try:
        if kind is bool:
            return _YES_OR_NO[text.lower()]
        if get_origin(kind) is tuple:
            inner = text.strip("()")
            parts = [] if inner.lower() in _NOTHING else inner.split(",")
            return tuple(parsed(get_args(kind)[0], part.strip(), name) for part in parts)
        if kind is int:
            return _whole_number(text)
        if kind in (float, str):
            return kind(text)
    except (ValueError, KeyError, OverflowError):
        described = getattr(kind, "__name__", str(kind))
        raise ValueError(f"{name}={shown(text)}: expected a value of type {described}") from None
    raise ValueError(f"{name} cannot be set as a whole; set one of its parts: {name}.NAME=VALUE")


def _whole_number(text: str) -> int:
    """Also as 1e6, but never rounded."""
    try:
        number = int(text)
    except ValueError:
        rounded = float(text)
        if not rounded.is_integer():
            raise
        number = int(rounded)
    if abs(number) > LARGEST:
        raise OverflowError
    return number


_NOTHING = ("none", "null", "")  # values that stand for none
_YES_OR_NO = {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}


# -- in messages ------------------------------------------------------------------------------


def shown(value: Any) -> str:
    """A value in a message: on one line, and no longer than anybody reads."""
    try:
        return _SHORT.repr(value)
    except ValueError:  # a number of too many digits
        return "a number of very many digits"


def printable(text: str) -> str:
    """A text of unknown origin without what moves a cursor, breaks a line or is no character."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else " " if c.isspace() else _UNPRINTABLE for c in text)


def shortened(text: str) -> str:
    """Its beginning, where there is more than a message has room for."""
    return text if len(text) <= _MOST_SHOWN else text[: _MOST_SHOWN - 1] + "…"


_SHORT = reprlib.Repr()
_SHORT.maxstring = _SHORT.maxother = _SHORT.maxlong = 80
_SHORT.maxlevel = 3
