"""Corpora as people have them, read into one form.

A reader is a module with `matches(path)` and `read(path, problems, reading)`; the latter yields
utterances whose audio is named relative to `root(path)`.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from importlib import import_module
from pathlib import Path
from typing import Any

from regatta.data import manifest
from regatta.data.manifest import Corpus, Utterance, inside
from regatta.data.problems import BadUtterance, Problems

AUDIO = frozenset(
    (".wav", ".flac", ".ogg", ".opus", ".mp3", ".sph", ".aiff", ".aif", ".au", ".caf")
)
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
        found = (utterance for utterance in found if utterance.split == reading.split)
    if reading.words:
        found = (_with_words(utterance, reading.words) for utterance in found)
    utterances = list(_usable(manifest.unique(found, problems), root, problems, reading))
    corpus = Corpus(root, utterances, problems, reading.allow_outside, reading.allow_pipes)
    if reading.align is not None:
        from regatta.data.corpora.alignments import attach

        corpus.utterances = attach(utterances, reading.align, problems)
    if not utterances and not problems:
        raise ValueError(f"there is nothing to hear in {path}, read as {kind}: {_expected(kind)}")
    return corpus


def _kind_of(path: Path) -> str:
    for kind in KINDS:
        if _reader(kind).matches(path):
            return kind
    raise ValueError(
        f"{path} is no corpus that is known here: name a folder, a .jsonl manifest or a .tsv file, "
        f"or its kind with --kind ({', '.join(KINDS)})"
    )


def _reader(kind: str) -> Any:
    if kind not in KINDS:
        raise ValueError(f"there is no kind of corpus {kind}: use one of {', '.join(KINDS)}")
    return import_module(f"regatta.data.corpora.{kind.replace('-', '_')}")


def _expected(kind: str) -> str:
    return " ".join((_reader(kind).__doc__ or "").split("\n\n")[0].split())


def _with_words(utterance: Utterance, words: dict[str, str]) -> Utterance:
    text = " ".join(words.get(word, word) for word in utterance.text.split())
    return replace(utterance, text=text)


def _usable(
    utterances: Iterable[Utterance], root: Path, problems: Problems, reading: Reading
) -> Iterator[Utterance]:
    """Those whose audio is a path in the corpus, or a command that is allowed."""
    for utterance in utterances:
        if utterance.audio.rstrip().endswith("|"):
            if reading.allow_pipes:
                yield utterance
            else:
                problems.note("command refused", utterance.id, utterance.audio)
            continue
        try:
            inside(root, utterance.audio, reading.allow_outside)
            yield utterance
        except BadUtterance as error:
            problems.add([error.of(utterance.id)])


def relative(path: str, root: Path) -> str:
    """As written in a manifest; what lies below the corpus by its short name."""
    if os.path.isabs(path):
        absolute = os.path.abspath(root)
        return os.path.relpath(path, absolute) if path.startswith(absolute + os.sep) else path
    return path


def audio_below(folder: Path) -> Iterator[Path]:
    """All recordings below a folder, in the order of their names."""
    for place, folders, files in os.walk(folder, followlinks=True):
        folders.sort()
        for name in sorted(files):
            if os.path.splitext(name)[1].lower() in AUDIO and not name.startswith("."):
                yield Path(place) / name


def folder_of(path: Path) -> Path:
    return path if path.is_dir() else path.parent
