"""LibriSpeech's tree: SUBSET/SPEAKER/CHAPTER/*.flac and a .trans.txt a chapter."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from regatta.data.corpora import Reading, folder_of
from regatta.data.manifest import Utterance, lines
from regatta.data.problems import Problems

root = folder_of
_TRANSCRIPTS = "*.trans.txt"


def matches(path: Path) -> bool:
    return path.is_dir() and any(
        next(path.glob("*/" * depth + _TRANSCRIPTS), None) for depth in range(5)
    )


def read(path: Path, problems: Problems, reading: Reading) -> Iterator[Utterance]:
    for transcripts in sorted(path.rglob(_TRANSCRIPTS)):
        chapter = transcripts.parent
        heard = {file.stem: file for file in chapter.iterdir() if file.suffix in (".flac", ".wav")}
        split = _subset(chapter)
        for number, line in lines(transcripts, problems):
            name, _, text = line.partition(" ")
            parts = name.split("-")
            if len(parts) != 3 or "/" in name:
                detail = "not SPEAKER-CHAPTER-NUMBER and a text"
                problems.note("broken line", f"{transcripts.name}:{number}", detail)
                continue
            file = heard.pop(name, chapter / f"{name}.flac")
            yield Utterance(
                name, file.relative_to(path).as_posix(), text.strip(), parts[0], "en", split
            )
        for file in sorted(heard.values()):
            problems.note("no transcript", file.relative_to(path).as_posix())


def _subset(chapter: Path) -> str:
    """The folder above speaker and chapter."""
    parts = chapter.resolve().parts
    return parts[-3] if len(parts) >= 3 and "-" in parts[-3] else ""
