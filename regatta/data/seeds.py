"""Seeds for everything that is drawn."""

from __future__ import annotations


def mixed_seed(*parts: int) -> int:
    """One well-mixed 63-bit seed from several numbers (splitmix64 over their sequence)."""
    state = 0x9E3779B97F4A7C15
    for part in parts:
        state = (state ^ (part & 0xFFFFFFFFFFFFFFFF)) * 0xBF58476D1CE4E5B9 & 0xFFFFFFFFFFFFFFFF
        state = (state ^ (state >> 27)) * 0x94D049BB133111EB & 0xFFFFFFFFFFFFFFFF
        state ^= state >> 31
    return state >> 1
