"""Common Voice: a language's folder with .tsv files and clips/, or one of its .tsv files."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from regatta.data.corpora import Reading, folder_of
from regatta.data.manifest import Utterance, lines
from regatta.data.problems import Problems

root = folder_of
_OFFICIAL = ("train", "dev", "test")
_NEEDED = ("path", "sentence")


def matches(path: Path) -> bool:
    if path.is_dir():
        return (path / "clips").is_dir() and any(path.glob("*.tsv"))
    return path.suffix == ".tsv" and (path.parent / "clips").is_dir()


def read(path: Path, problems: Problems, reading: Reading) -> Iterator[Utterance]:
    for table in _tables(path, reading.split):
        rows = lines(table, problems)
        names = next((line.split("\t") for _, line in rows), [])
        for name in _NEEDED:
            if name not in names:
                raise ValueError(f"{table} has no column {name}: is it a table of Common Voice?")
        for number, line in rows:
            values = line.split("\t")
            if len(values) != len(names):
                detail = f"{len(values)} columns, the first line has {len(names)}"
                problems.note("broken line", f"{table.name}:{number}", detail)
                continue
            row = dict(zip(names, values, strict=True))
            yield Utterance(
                id=Path(row["path"]).stem,
                audio=f"clips/{row['path']}",
                text=row["sentence"],
                speaker=row.get("client_id", ""),
                language=row.get("locale") or root(path).name,
                split=table.stem,
            )


def _tables(path: Path, split: str) -> list[Path]:
    """The official splits, which share nothing; others only if they are asked for."""
    if not path.is_dir():
        return [path]
    if split:
        asked = path / f"{split}.tsv"
        if not asked.is_file():
            there = ", ".join(sorted(table.stem for table in path.glob("*.tsv")))
            raise ValueError(f"{path} has no {split}.tsv; there are {there}")
        return [asked]
    official = [path / f"{name}.tsv" for name in _OFFICIAL]
    return [table for table in official if table.is_file()] or sorted(path.glob("*.tsv"))[:1]
