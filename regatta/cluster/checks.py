"""Values that cannot be."""

from __future__ import annotations

import math
from collections.abc import Collection
from typing import Any


def refuse_nonsense(
    part: Any, where: str, positive: Collection[str] = (), not_negative: Collection[str] = ()
) -> None:
    """Of a part of a cluster, by the names of its values; `where` says whose they are."""
    for name in positive:
        if not getattr(part, name) > 0:
            raise ValueError(f"{where}.{name} must be more than 0")
    for name in not_negative:
        if not getattr(part, name) >= 0:
            raise ValueError(f"{where}.{name} must not be negative")
    for name in (*positive, *not_negative):
        if getattr(part, name) == math.inf and not name.endswith("bandwidth"):  # no network at all
            raise ValueError(f"{where}.{name} must be finite")
