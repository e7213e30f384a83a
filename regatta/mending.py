"""Files of lines, as events are: what is done about lines that are not whole."""

from __future__ import annotations

from pathlib import Path

from regatta import plain
from regatta.aside import write_aside


def mend(path: Path) -> list[str]:
    """Before a run goes on: take out what a full disk or a kill has left unfinished."""
    if not path.exists():
        return []
    *lines, rest = path.read_bytes().split(b"\n")
    whole = [line for line in lines if _is_whole(line)]
    if len(whole) == len(lines) and not rest:
        return []
    write_aside(path, b"".join(line + b"\n" for line in whole))
    return [f"{path}: {len(lines) - len(whole) + bool(rest)} damaged lines were taken out"]


def _is_whole(line: bytes) -> bool:
    """Whether it says anything: lines of other versions are not for us to judge."""
    try:
        return isinstance(plain.loads(line.decode()), dict)
    except ValueError:
        return False
