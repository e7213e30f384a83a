"""Regatta: train under any published parallel strategy, and learn which one gets there first."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from regatta.config import Run
    from regatta.crew import Crew, join
    from regatta.strategies import Strategy

__version__ = "0.1.0"
__all__ = ["Crew", "Run", "Strategy", "__version__", "join"]

_HOME = {
    "Crew": "regatta.crew",
    "Run": "regatta.config",
    "Strategy": "regatta.strategies",
    "join": "regatta.crew",
}


def __getattr__(name: str) -> Any:
    """The public names, imported when first asked for: PyTorch takes its time."""
    if name not in _HOME:
        raise AttributeError(f"module 'regatta' has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(_HOME[name]), name)
