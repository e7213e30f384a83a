"""Real runs that are harmed on purpose: their processes, what they tell, and what they leave."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

REGATTA = (sys.executable, "-c", "from regatta.cli import main; main()")
_OWN_NETWORK = ("unshare", "--net", "sh", "-c", 'ip link set lo up && exec "$@"', "regatta")
_LOOK_SECONDS = 0.01


class Late(RuntimeError):
    """Something did not come about in time."""


def until(condition: Callable[[], bool], what: str, seconds: float = 30.0) -> float:
    """When it came about, on the monotonic clock."""
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            raise Late(f"after {seconds:g} s it had not come about that {what}")
        time.sleep(_LOOK_SECONDS)
    return time.monotonic()


def members(session: int) -> dict[int, int]:
    """Processes of this session that run, and their parents."""
    return {pid: parent for pid, parent, _ in _listed(session)}


def ranks_of(session: int) -> dict[int, int]:
    """The ranks among them by their numbers: processes that carry them in their names."""
    found = ((pid, re.fullmatch(r"regatta rank (\d+)", name)) for pid, _, name in _listed(session))
    return {int(match[1]): pid for pid, match in found if match}


def _listed(session: int) -> list[tuple[int, int, str]]:
    listed = subprocess.run(
        ["ps", "-s", str(session), "-o", "pid=,ppid=,stat=,comm="],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    rows = (line.split(None, 3) for line in listed.stdout.splitlines())
    return [(int(pid), int(parent), name) for pid, parent, state, name in rows if "Z" not in state]


class Subject:
    """A `regatta` command in a session of its own, with a place of its own for temporary files.

    With a `network` of its own, which root may give it, it can be cut off.
    """

    def __init__(self, words: Sequence[str | Path], temporary: Path, network: bool = False) -> None:
        temporary.mkdir(exist_ok=True)
        self._temporary = temporary
        self._segments = _segments()
        self._process = subprocess.Popen(
            [*(_OWN_NETWORK if network else ()), *REGATTA, *map(str, words)],
            stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
            start_new_session=True, env=os.environ | {"TMPDIR": str(temporary)},
        )  # fmt: skip

    @property
    def pid(self) -> int:
        """Of the launcher, and the session's number."""
        return self._process.pid

    def ranks(self) -> dict[int, int]:
        return ranks_of(self.pid)

    def is_over(self) -> bool:
        return self._process.poll() is not None

    def link(self, state: str) -> None:
        """Its ranks reach each other (up), or do not (down)."""
        words = ["nsenter", "-t", str(self.pid), "-n", "ip", "link", "set", "lo", state]
        subprocess.run(words, check=not self.is_over(), capture_output=True)

    def wait(self, seconds: float) -> int:
        """Its exit code."""
        try:
            return self._process.wait(seconds)
        except subprocess.TimeoutExpired:
            raise Late(f"it had not ended after {seconds:g} s") from None

    def complaint(self) -> str:
        """The last line that it said on its way out, once it has ended."""
        assert self._process.stderr is not None
        lines = self._process.stderr.read().strip().splitlines()
        return lines[-1] if lines else ""

    def leaves_nothing(self, seconds: float = 15.0) -> None:
        """No process, so no port; no temporary file; no named segment of shared memory."""
        until(lambda: not members(self.pid), "all its processes were gone", seconds)
        until(lambda: not _left(self._temporary), "its temporary files were gone", seconds)
        left = _segments() - self._segments
        until(lambda: not (left & _segments() - _mapped()), "its shared memory was gone", seconds)

    def end(self) -> None:
        """Whatever is left of it."""
        for pid in members(self.pid):
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
        self._process.wait()


class Disk:
    """A file system of its own, in memory, which root may mount; it can be filled up."""

    def __init__(self, place: Path) -> None:
        self.place = place
        self._filler = place / "filler"

    def __enter__(self) -> Disk:
        self.place.mkdir()
        words = ["mount", "-t", "tmpfs", "-o", "size=64m", "tmpfs", str(self.place)]
        subprocess.run(words, check=True, capture_output=True)
        return self

    def __exit__(self, *_: object) -> None:
        subprocess.run(["umount", "--lazy", str(self.place)], check=True, capture_output=True)

    def fill(self) -> None:
        with suppress(OSError), self._filler.open("wb", buffering=0) as file:
            while file.write(bytes(4096)):
                pass

    def empty(self) -> None:
        self._filler.unlink()


def may_change_surroundings() -> bool:
    """Whether networks can be made and file systems mounted."""
    asked = ["unshare", "--net", "--mount", "mount", "-t", "tmpfs", "tmpfs", "/mnt"]
    try:
        return subprocess.run(asked, check=False, capture_output=True).returncode == 0
    except FileNotFoundError:
        return False


def _left(folder: Path) -> list[Path]:
    """But for the place where torch keeps what it has compiled."""
    return [path for path in folder.iterdir() if "torchinductor" not in path.name]


def _segments() -> set[str]:
    """Named shared memory of the whole system."""
    return {path.name for path in Path("/dev/shm").iterdir() if not path.is_dir()}


def _mapped() -> set[str]:
    """Segments that some process, of whomever, still uses."""
    used: set[str] = set()
    for maps in Path("/proc").glob("[0-9]*/maps"):
        try:
            used |= set(re.findall(r"/dev/shm/(\S+)", maps.read_text()))
        except OSError:
            continue
    return used


class Story:
    """What a run has told so far, the stretches that do not count any more among it."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / "events.jsonl"

    def told(self, *names: str) -> list[dict[str, Any]]:
        """Events of these names, in the order in which they were written."""
        if not self._path.exists():
            return []
        begins = tuple(f'{{"event":"{name}"' for name in names)
        lines = self._path.read_text().split("\n")[:-1]
        return [json.loads(line) for line in lines if line.startswith(begins)]
