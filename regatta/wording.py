"""How a name that is not there is complained of."""

from __future__ import annotations

import difflib
from collections.abc import Sequence

from regatta.plain import shortened


def nearest(word: str, known: Sequence[str], what: str) -> str:
    """The message for a name that is not there."""
    word = shortened(word)
    close = difflib.get_close_matches(word, known, n=1, cutoff=0.4)
    hint = f"did you mean {close[0]}? " if close else ""
    return f"unknown {what} {word!r}: {hint}(known: {', '.join(known)})"
