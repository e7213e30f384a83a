"""Units in the names of values: `bandwidth_gigabits = 10`, `latency_microseconds = 50`."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

from regatta.wording import nearest

_Scale = tuple[float, float]  # times the one, by the other: both are exact
_UNITS: Final[Mapping[str, Mapping[str, _Scale]]] = {
    "latency": {
        "seconds": (1, 1), "milliseconds": (1, 1e3), "microseconds": (1, 1e6),
        "nanoseconds": (1, 1e9),
    },
    "bandwidth": {  # a second
        "bytes": (1, 1), "megabytes": (1e6, 1), "gigabytes": (1e9, 1), "megabits": (1e6, 8),
        "gigabits": (1e9, 8),
    },
    "memory": {
        "bytes": (1, 1), "megabytes": (1e6, 1), "gigabytes": (1e9, 1), "gibibytes": (2.0**30, 1),
    },
}  # fmt: skip
_NAMED = re.compile(rf"((?:\w+_)?({'|'.join(_UNITS)}))_(\w+)")


def without_unit(name: str, where: str = "") -> tuple[str, _Scale]:
    """The field that a name stands for, in seconds and bytes, and how its value is scaled."""
    found = _NAMED.fullmatch(name)
    if found is None:
        return name, (1, 1)
    field, quantity, unit = found.groups()
    known = _UNITS[quantity]
    if unit not in known:
        raise ValueError(nearest(unit, list(known), f"unit of {where}{field}"))
    return field, known[unit]
