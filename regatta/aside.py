"""Files that are whole or not there, and what is said when a disk does not take them."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

SUFFIX = ".partial"  # of what is being written


class CannotWrite(OSError):
    """A disk that is full or broken: told in one line that names the file."""

    def __str__(self) -> str:
        return str(self.strerror)


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """What the system says meanwhile is told of this file."""
    try:
        yield
    except CannotWrite:
        raise
    except OSError as error:
        raise cannot_write(path, error) from None


def cannot_write(path: Path, error: OSError) -> CannotWrite:
    return CannotWrite(error.errno, f"cannot write to {path}: {error.strerror or error}")


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
        with suppress(OSError):
            aside.unlink(missing_ok=True)
        raise cannot_write(path, error) from None


def sync(path: Path) -> None:
    """Go on when it is on the disk, by whomever it was written."""
    file = os.open(path, os.O_RDONLY)
    try:
        os.fsync(file)
    finally:
        os.close(file)


def append(file: int, line: bytes, path: Path) -> None:
    """To a file that ranks share: the kernel takes a line whole, unless the disk is full."""
    with writing(path):
        while line:
            line = line[os.write(file, line) :]
