"""Files that are whole or not there."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

SUFFIX = ".partial"  # of what is being written


def write_aside(path: Path, content: Any, durable: bool = True) -> None:
    """Write beside, then rename. `durable`: it is on the disk when this returns.

    Raises OSError with a message for people; nothing is left behind then.
    """
    aside = path.with_name(path.name + SUFFIX)
    try:
        with aside.open("wb") as file:
            file.write(content)
            if durable:
                file.flush()
                os.fsync(file.fileno())
        aside.replace(path)
    except OSError as error:
        aside.unlink(missing_ok=True)
        raise OSError(error.errno, f"cannot write to {path}: {error.strerror}") from None
