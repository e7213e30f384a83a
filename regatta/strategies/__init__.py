"""How replicas learn together. One file a strategy; a strategy is enrolled by existing.

A strategy is a frozen dataclass (its fields are its options) with one `async` method a role. It
sees `Comm` and `Replica` and nothing else, so the same text runs on processes and under a virtual
clock.
"""

from __future__ import annotations

import importlib
import pkgutil
from functools import cache
from types import ModuleType

from regatta.strategies.base import Strategy

__all__ = ["Strategy", "registry"]


@cache
def registry() -> dict[str, type[Strategy]]:
    """The strategies of this package by name."""
    kinds: list[type[Strategy]] = []
    for found in pkgutil.iter_modules(__path__):
        module = importlib.import_module(f"{__name__}.{found.name}")
        kinds += [kind for kind in vars(module).values() if _is_defined_in(kind, module)]
    return {kind.name: kind for kind in sorted(kinds, key=lambda kind: kind.name)}


def _is_defined_in(kind: object, module: ModuleType) -> bool:
    is_strategy = isinstance(kind, type) and issubclass(kind, Strategy) and kind is not Strategy
    return is_strategy and kind.__module__ == module.__name__
