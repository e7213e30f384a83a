"""Corpora as people have them, read into one form.

A reader is a module with `matches(path)` and `read(path, problems, reading)`; the latter yields
utterances whose audio is named relative to `root(path)`.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from importlib import import_module
from pathlib import Path
from typing import Any

from regatta.data import manifest
from regatta.data.manifest import Corpus, Utterance
from regatta.data.problems import BadUtterance, Problems

AUDIO = frozenset(
    (".wav", ".flac", ".ogg", ".opus", ".mp3", ".sph", ".aiff", ".aif", ".au", ".caf")
)
_FOREIGN = frozenset((".m4a", ".aac", ".wma", ".amr", ".webm", ".mp4"))
# The first that matches reads; a plain folder comes last, because every folder is one.
KINDS = ("regatta", "nemo", "lhotse", "librispeech", "common-voice", "an4", "kaldi", "folder")


@dataclass(frozen=True)
class Reading:
    """How a corpus is read; all of it is optional."""

    kind: str = ""  # one of KINDS; "": found out
    split: str = ""  # only this one of the corpus's own
    allow_outside: bool = False
    allow_pipes: bool = False
    name: str = ""  # folder: what file names say, as in {text}_{speaker}_{index}
    words: dict[str, str] = field(default_factory=dict)  # written so, spoken so: {"0": "zero"}
    align: Path | None = None  # a CTM or TextGrid file, or a folder of them


def read(source: str | os.PathLike[str], reading: Reading = Reading()) -> Corpus:  # noqa: B008
    path = Path(source)
    if not path.exists():
        raise ValueError(f"there is no corpus {path}: name a folder or a manifest")
    kind = reading.kind or _kind_of(path)
    reader = _reader(kind)
    problems = Problems()
    found = reader.read(path, problems, reading)
    root = reader.root(path)
    if reading.split:
        found = _of_split(list(found), reading.split, path)
    if reading.words:
        found = (_with_words(utterance, reading.words) for utterance in found)
    corpus = Corpus(root, [], problems, reading.allow_outside, reading.allow_pipes)
    utterances = list(manifest.unique(_usable(found, corpus), problems))
    corpus.utterances = utterances
    if reading.align is not None:
        from regatta.data.corpora.alignments import attach

        corpus.utterances = attach(utterances, reading.align, problems)
    if not utterances and not problems:
        raise ValueError(f"there is nothing to hear in {path}, read as {kind}: {_expected(kind)}")
    return corpus


def _kind_of(path: Path) -> str:
    kind = _matching(path)
    if path.is_dir() and kind in (None, "folder"):
        _suggest(path)
    if kind is None:
        raise ValueError(f"{path} is no corpus that is known here: {_instead(path)}")
    return kind


def _matching(path: Path) -> str | None:
    return next((kind for kind in KINDS if _reader(kind).matches(path)), None)


def _suggest(path: Path) -> None:
    """A folder that is a corpus only at second sight."""
    if (path / "manifest.jsonl.partial").exists():
        raise ValueError(f"{path} was never finished: run the command that makes it again")
    manifests = [p.name for p in sorted(path.iterdir()) if p.is_file() and _matching(p)]
    if manifests:
        raise ValueError(f"{path} holds {', '.join(manifests[:5])}: name one of them")
    for inner in sorted(p for p in path.iterdir() if p.is_dir()):
        if _matching(inner) not in (None, "folder"):
            raise ValueError(f"{path} is no corpus itself, but {inner} is: name that one")


def _instead(path: Path) -> str:
    if path.is_file() and path.suffix.lower() in AUDIO:
        return "it is a recording; name the folder that it lies in"
    if path.is_dir():
        suffixes = sorted({p.suffix for p in path.rglob("*") if p.suffix.lower() in _FOREIGN})
        if suffixes:
            return f"{' and '.join(suffixes)} cannot be read; convert them to WAV or FLAC"
        if not any(path.iterdir()):
            return "the folder is empty"
    kinds = ", ".join(KINDS)
    return f"name a folder, a .jsonl manifest or a .tsv file, or its kind with --kind ({kinds})"


def _of_split(utterances: list[Utterance], split: str, path: Path) -> Iterator[Utterance]:
    known = sorted({utterance.split for utterance in utterances} - {""})
    if utterances and split not in known:
        there = f"there are {', '.join(known)}" if known else "it names none"
        raise ValueError(f"{path} has no split {split}: {there}")
    return (utterance for utterance in utterances if utterance.split == split)


def _reader(kind: str) -> Any:
    if kind not in KINDS:
        raise ValueError(f"there is no kind of corpus {kind}: use one of {', '.join(KINDS)}")
    return import_module(f"regatta.data.corpora.{kind.replace('-', '_')}")


def _expected(kind: str) -> str:
    return " ".join((_reader(kind).__doc__ or "").split("\n\n")[0].split())


def _with_words(utterance: Utterance, words: dict[str, str]) -> Utterance:
    text = " ".join(words.get(word, word) for word in utterance.text.split())
    return replace(utterance, text=text)


def _usable(utterances: Iterable[Utterance], corpus: Corpus) -> Iterator[Utterance]:
    """Those that make sense, and whose audio may be read."""
    for utterance in utterances:
        try:
            corpus.source(utterance.checked())
            yield utterance
        except BadUtterance as error:
            corpus.problems.add([error.of(_printable(utterance.id))])


def _printable(name: Any) -> str:
    return str(name).encode(errors="backslashreplace").decode().replace("\0", "\\0")


def each(
    rows: Iterable[tuple[str, Any]], utterances: Callable[[Any], Iterable[Utterance]],
    problems: Problems,
) -> Iterator[Utterance]:  # fmt: skip
    """What rows tell; a row that tells nothing sensible is a problem and no more."""
    for where, row in rows:
        try:
            yield from list(utterances(row))
        except BadUtterance as error:
            problems.add([error.of(where)])
        except (AttributeError, LookupError, OverflowError, TypeError, ValueError) as error:
            problems.note("broken line", where, f"{type(error).__name__}: {error}"[:100])


def relative(path: str, root: Path) -> str:
    """As written in a manifest; what lies below the corpus by its short name."""
    if os.path.isabs(path):
        absolute = os.path.abspath(root)
        return os.path.relpath(path, absolute) if path.startswith(absolute + os.sep) else path
    return path


def audio_below(folder: Path) -> Iterator[Path]:
    """All recordings below a folder, in the order of their names."""
    seen: set[str] = set()
    for place, folders, files in os.walk(folder, followlinks=True):
        real = os.path.realpath(place)
        if real in seen:  # a link that leads back
            folders.clear()
            continue
        seen.add(real)
        folders.sort()
        for name in sorted(files):
            if os.path.splitext(name)[1].lower() in AUDIO and not name.startswith("."):
                yield Path(place) / name


def folder_of(path: Path) -> Path:
    return path if path.is_dir() else path.parent
