"""Regatta: train under any published parallel strategy, and learn which one gets there first."""

from __future__ import annotations

__version__ = "0.1.0"
