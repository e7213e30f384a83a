"""A folder is written to by one run, or one race, at a time.

Who writes holds a lock on `lock.json` in it, which says who that is. The kernel gives the lock back
when the last process that has it ends, however it ends. A launcher hands it to its ranks, so that
after a `kill -9` of the launcher it is held until they, too, are gone. What the file says is for
messages; a file that is left behind locks nothing. Where a file system knows no locks, the owner
that stands in the file is believed, unless it surely is gone. Readers need no lock.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import platform
import shlex
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from multiprocessing.reduction import DupFd
from pathlib import Path
from typing import Any

from regatta import plain
from regatta.aside import cannot_write, writing

FILE = "lock.json"
_MOMENT = 0.2  # seconds for an owner that was just killed to be gone
_PATIENCE = 5.0  # seconds for the ranks of a launcher that was killed to end
_OF_THE_DISK = (errno.ENOSPC, errno.EDQUOT, errno.EIO)
_WITHOUT_LOCKS = (errno.ENOSYS, errno.EOPNOTSUPP, errno.EINVAL, errno.ENOLCK)


class Held(ValueError):
    """Somebody else writes to a folder; the message says who."""


@dataclass(frozen=True)
class Owner:
    command: str
    pid: int
    host: str
    since: float  # 1970, in seconds

    def __str__(self) -> str:
        begun = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(min(max(self.since, 0), 1e11)))
        command, host = (
            plain.shortened(plain.printable(text)) for text in (self.command, self.host)
        )
        return f"{command} (pid {self.pid} on {host}, since {begun})"

    def is_gone(self) -> bool:
        """Surely: of other hosts nobody knows."""
        if self.host != platform.node() or not 0 < self.pid < 2**31:
            return False
        try:
            os.kill(self.pid, 0)
        except ProcessLookupError:
            return True
        except PermissionError:
            return False
        return _is_zombie(self.pid)


def _is_zombie(pid: int) -> bool:
    """Ended, and nobody has asked how."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except (OSError, IndexError):
        return False


class Lock:
    """Held until it is closed, or until all processes are gone that it was handed to."""

    def __init__(self, folder: Path, file: int) -> None:
        self.folder = folder
        self.file = file

    def __reduce__(self) -> tuple[Any, ...]:
        """To a rank that is being started."""
        return _handed_over, (self.folder, DupFd(self.file))

    def close(self) -> None:
        """By its last holder: the file is of no use any more."""
        with suppress(OSError):
            (self.folder / FILE).unlink()
        os.close(self.file)


def _handed_over(folder: Path, file: Any) -> Lock:
    return Lock(folder, file.detach())


@contextmanager
def held(folder: Path) -> Iterator[Lock]:
    """The only one to write to a folder, which is made if need be, and removed if left empty."""
    is_new = not folder.exists()
    lock = take(folder)
    try:
        yield lock
    finally:
        lock.close()
        if is_new:
            with suppress(OSError):  # there is something in it
                folder.rmdir()


def take(folder: Path) -> Lock:
    """Raises `Held` if somebody else has it."""
    began = time.monotonic()
    path = folder / FILE
    while True:
        lock = _opened(folder)
        if _locks(lock.file, fcntl.LOCK_EX):
            if _is_named(lock.file, path):
                _sign(lock, path)
                return lock
            os.close(lock.file)  # who had it has removed it
            continue
        owner = _owner(lock.file)
        os.close(lock.file)
        is_there = owner is not None and not owner.is_gone()
        if time.monotonic() - began > (_MOMENT if is_there else _PATIENCE):
            raise Held(_complaint(folder, owner))
        time.sleep(0.02)  # its owner has not signed yet, or its ranks are just ending


def _opened(folder: Path) -> Lock:
    path = folder / FILE
    try:
        folder.mkdir(parents=True, exist_ok=True)
        return Lock(folder, os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644))
    except OSError as error:
        if error.errno in _OF_THE_DISK:
            raise cannot_write(path, error) from None
        raise ValueError(
            f"cannot write to {folder} ({error.strerror}): choose another --out"
        ) from None


def refuse_if_held(folder: Path) -> None:
    """For who is about to begin: better now than after long preparations."""
    try:
        file = os.open(folder / FILE, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return
    try:
        owner = _owner(file)
        if not _locks(file, fcntl.LOCK_SH) and owner is not None and not owner.is_gone():
            raise Held(_complaint(folder, owner))
    finally:
        os.close(file)


def _locks(file: int, how: int) -> bool:
    try:
        fcntl.flock(file, how | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError as error:
        if error.errno not in _WITHOUT_LOCKS:
            raise
        owner = _owner(file)
        return owner is None or owner.is_gone()
    return True


def _is_named(file: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(file), path.stat())
    except FileNotFoundError:
        return False


def _sign(lock: Lock, path: Path) -> None:
    command = shlex.join([Path(sys.argv[0]).name, *sys.argv[1:]])
    owner = Owner(command, os.getpid(), platform.node(), time.time())
    try:
        with writing(path):
            os.ftruncate(lock.file, 0)
            os.pwrite(lock.file, (json.dumps(asdict(owner)) + "\n").encode(), 0)
    except OSError:  # the disk is full
        lock.close()
        raise


def _owner(file: int) -> Owner | None:
    """None where nobody has signed yet, or nobody can read it."""
    try:
        values = plain.loads(os.pread(file, 1 << 16, 0).decode())
        return plain.made(Owner, values) if isinstance(values, dict) else None
    except (OSError, ValueError):
        return None


def _complaint(folder: Path, owner: Owner | None) -> str:
    if owner is None:
        return f"{folder} is being written by a process that does not say who it is: wait for it"
    if owner.is_gone():
        return f"{folder} is being written by ranks of {owner}, which is gone: end them first"
    elsewhere = owner.host != platform.node()
    remedy = f"; if it no longer runs there, delete {folder / FILE}" if elsewhere else ""
    return (
        f"{folder} is being written by {owner}: wait until that has ended, or use another --out"
        f"{remedy}"
    )
