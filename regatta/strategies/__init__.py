"""How replicas learn together. One file a strategy; a strategy is enrolled by existing.

A strategy is a frozen dataclass (its fields are its options) with one `async` method a role. It
sees `Comm` and `Replica` and nothing else, so the same text runs on processes and under a virtual
clock.
"""

from __future__ import annotations

import importlib
import pkgutil
from functools import cache

from regatta.strategies.base import Strategy

__all__ = ["Strategy", "registry"]


@cache
def registry() -> dict[str, type[Strategy]]:
    for module in pkgutil.iter_modules(__path__):
        importlib.import_module(f"{__name__}.{module.name}")
    return {cls.name: cls for cls in sorted(Strategy.__subclasses__(), key=lambda c: c.name)}
