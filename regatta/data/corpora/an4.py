"""AN4's own tree: etc/an4_{train,test}.{fileids,transcription} and wav/."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from regatta.data.corpora import AUDIO, Reading, audio_below, folder_of
from regatta.data.manifest import Utterance, lines
from regatta.data.problems import Problems

root = folder_of
_LINE = re.compile(r"(?:<s>)?\s*(.*?)\s*(?:</s>)?\s*\(([^()]+)\)\s*$")


def matches(path: Path) -> bool:
    return path.is_dir() and any((path / "etc").glob("*.fileids")) and (path / "wav").is_dir()


def read(path: Path, problems: Problems, reading: Reading) -> Iterator[Utterance]:
    listed: set[str] = set()
    for fileids in sorted((path / "etc").glob("*.fileids")):
        split = fileids.stem.rpartition("_")[2]
        texts = _texts(fileids.with_suffix(".transcription"), problems)
        for _, line in lines(fileids, problems):
            name = line.strip()
            stem = name.rpartition("/")[2]
            listed.add(name)
            audio = next((f"wav/{name}{s}" for s in sorted(AUDIO) if _is(path, name, s)), None)
            if stem not in texts:
                problems.note("no transcript", stem)
                continue
            yield Utterance(
                id=stem,
                audio=audio or f"wav/{name}.sph",
                text=texts[stem],
                speaker=name.split("/")[-2] if "/" in name else "",
                language="en",
                split=split,
            )
    for file in audio_below(path / "wav"):
        inner = file.relative_to(path / "wav").with_suffix("").as_posix()
        if inner not in listed:
            problems.note("no transcript", inner, "no .fileids lists it")


def _is(path: Path, name: str, suffix: str) -> bool:
    return (path / "wav" / f"{name}{suffix}").is_file()


def _texts(path: Path, problems: Problems) -> dict[str, str]:
    found: dict[str, str] = {}
    if not path.is_file():
        problems.note("missing file", path.name, "no transcripts beside the .fileids")
        return found
    for number, line in lines(path, problems):
        match = _LINE.match(line)
        if match is None:
            problems.note("broken line", f"{path.name}:{number}", "no TEXT (ID)")
            continue
        if match[2] in found:
            problems.note("duplicate id", f"{path.name}:{number}", match[2])
            continue
        found[match[2]] = match[1]
    return found
