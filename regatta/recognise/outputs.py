"""Which recordings are meant, and where their transcripts go."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

from regatta.data.corpora import AUDIO


class Wanted(NamedTuple):
    audio: Path
    within: Path  # its path in the folder that was named, or its name


def wanted(named: Iterable[str]) -> list[Wanted]:
    """Files as they are; of folders all audio below them, sorted. Each once."""
    found: dict[Path, Wanted] = {}
    for path in map(Path, named):
        here = _audio_in(path) if path.is_dir() else [path]
        for file in here:
            within = file.relative_to(path) if file != path else Path(file.name)
            found.setdefault(file, Wanted(file, within))
    return list(found.values())


def _audio_in(folder: Path) -> list[Path]:
    files = sorted(p for p in folder.rglob("*") if p.suffix.lower() in AUDIO and p.is_file())
    if not files:
        endings = ", ".join(sorted(AUDIO))
        raise ValueError(f"{folder} holds no audio: looked for files that end in {endings}")
    return files


def places(out: Path, audio: Sequence[Wanted], form: str, force: bool) -> list[Path]:
    """The file to write for each: `out` itself for one recording, else files in that folder."""
    if len(audio) == 1 and not (out.is_dir() or str(out).endswith(os.sep)):
        found = [out]
    else:
        if out.is_file():
            raise ValueError(f"--out {out} is a file: name a folder for several transcripts")
        found = _in_folder(out, [one.within for one in audio], form)
    there = [path for path in found if path.exists() and not force]
    if there:
        more = f" and {len(there) - 1} more" if len(there) > 1 else ""
        raise ValueError(f"{there[0]}{more} is there already: name another --out, or add --force")
    return found


def _in_folder(out: Path, within: Sequence[Path], form: str) -> list[Path]:
    """By the recording's name without its ending, or with it where two would be alike."""
    short = Counter(path.with_suffix("") for path in within)
    kept = [path if short[path.with_suffix("")] > 1 else path.with_suffix("") for path in within]
    found = [out / path.with_name(f"{path.name}.{form}") for path in kept]
    twice = [path for path, times in Counter(found).items() if times > 1]
    if twice:
        raise ValueError(
            f"two recordings would both be written to {twice[0]}: name the folder that holds both, "
            "or call regatta for each"
        )
    return found
