"""Whether a recording was cut short: libsndfile reads what is there and does not say so."""

from __future__ import annotations

import struct
from collections.abc import Callable
from pathlib import Path

from regatta.data.problems import BadUtterance

_HEAD = 1 << 16  # bytes in which a file says how long it is
_PAGE = 1 << 17  # bytes at the end that hold the last page of an Ogg file
_UNKNOWN = 0x7FFF0000  # streams write sizes from here on, because they do not know theirs
_OGG_LAST_PAGE, _OGG_HEADER = 4, 27


def check_whole(path: Path) -> None:
    """Raises BadUtterance if a file is shorter than it says. FLAC is checked by its decoder."""
    size = path.stat().st_size
    with path.open("rb") as file:
        head = file.read(_HEAD)
        if head[:4] == b"OggS":
            file.seek(max(0, size - _PAGE))
            _check_ogg(file.read())
            return
    promised = next((says(head) for magic, says in _FORMS.items() if head.startswith(magic)), None)
    if promised is not None and size < promised:
        raise BadUtterance("truncated audio", f"{size} bytes of {promised}")


def _wave(head: bytes) -> int | None:
    """The end of the data chunk; chunks stand one after another, each with its length."""
    at = 12
    while at + 8 <= len(head):
        name, length = struct.unpack_from("<4sI", head, at)
        if name == b"data":
            return None if length == 0 or length >= _UNKNOWN else at + 8 + length
        at += 8 + length + length % 2
    return at if at > len(head) else None  # the data lie further on than we look


def _rf64(head: bytes) -> int | None:
    return 8 + int(struct.unpack_from("<Q", head, 20)[0]) if head[12:16] == b"ds64" else None


def _wave64(head: bytes) -> int | None:
    return int(struct.unpack_from("<Q", head, 16)[0]) if len(head) >= 24 else None


def _aiff(head: bytes) -> int | None:
    return 8 + int(struct.unpack_from(">I", head, 4)[0]) if len(head) >= 8 else None


def _au(head: bytes) -> int | None:
    if len(head) < 12:
        return None
    start, length = struct.unpack_from(">II", head, 4)
    return None if length >= _UNKNOWN else int(start + length)


def _sphere(head: bytes) -> int | None:
    rows = (line.split(maxsplit=2) for line in head[:1024].decode("latin-1").split("\n"))
    fields = {row[0]: row[2] for row in rows if len(row) == 3}
    try:
        frame = int(fields["sample_n_bytes"]) * int(fields.get("channel_count", 1))
        return 1024 + int(fields["sample_count"]) * frame
    except (KeyError, ValueError):
        return None


def _check_ogg(tail: bytes) -> None:
    """The last page says that it is the last, and how long its pieces are."""
    page = tail[max(0, tail.rfind(b"OggS")) :]
    pieces = (
        page[_OGG_HEADER : _OGG_HEADER + page[_OGG_HEADER - 1]] if len(page) > _OGG_HEADER else b""
    )
    if (
        not pieces
        or not page[5] & _OGG_LAST_PAGE
        or len(page) < _OGG_HEADER + len(pieces) + sum(pieces)
    ):
        raise BadUtterance("truncated audio", "its last page is not there")


_FORMS: dict[bytes, Callable[[bytes], int | None]] = {
    b"RIFF": _wave,
    b"RF64": _rf64,
    b"riff": _wave64,
    b"FORM": _aiff,
    b".snd": _au,
    b"NIST_1A": _sphere,
}
