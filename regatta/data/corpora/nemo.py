"""NeMo's manifest: JSON lines with `audio_filepath`, `text`; also `duration`, `offset`, `lang`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from regatta.data.corpora import Reading, each, folder_of, relative
from regatta.data.corpora.regatta import files, first_row
from regatta.data.manifest import Utterance, json_lines, seconds
from regatta.data.problems import BadUtterance, Problems

root = folder_of


def matches(path: Path) -> bool:
    row = first_row(path)
    return isinstance(row, dict) and "audio_filepath" in row


def read(path: Path, problems: Problems, reading: Reading) -> Iterator[Utterance]:
    rows = json_lines(files(path), problems)
    yield from each(rows, lambda row: [_utterance(row, root(path))], problems)


def _utterance(row: Any, folder: Path) -> Utterance:
    if not isinstance(row, Mapping) or not isinstance(row.get("audio_filepath"), str):
        raise BadUtterance("broken line", "audio_filepath is missing or not a text")
    audio = relative(row["audio_filepath"], folder)
    start = seconds(row.get("offset") or 0.0, "offset")
    duration = None if row.get("duration") is None else seconds(row["duration"], "duration")
    part = f"-{start!r}" if row.get("offset") is not None else ""
    return Utterance(
        id=str(row.get("id") or row.get("utt_id") or Path(audio).with_suffix("").as_posix() + part),
        audio=audio,
        text=row.get("text") or "",
        speaker=str(row.get("speaker") or ""),
        language=str(row.get("lang") or row.get("language") or ""),
        split=str(row.get("split") or ""),
        start=start,
        duration=duration,
    )
