"""What people already have that tells of their machines: outputs of tools, files of others."""

from __future__ import annotations


class Unreadable(ValueError):
    """A file that is not what it was taken for; the message names the line and the remedy."""
