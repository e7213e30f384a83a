"""Corpora cut in three and put together."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from regatta.data import audio
from regatta.data.manifest import Corpus, Utterance
from regatta.data.problems import BadUtterance, Problems
from regatta.data.seeds import mixed_seed

BY = ("speaker", "text", "utterance")


def split(
    corpus: Corpus, dev: float, test: float, by: str = "speaker", seed: int = 0
) -> dict[str, list[Utterance]]:
    """Train, dev and test of about these shares of the seconds; no two share a speaker (or text).

    Groups are dealt in an order drawn by seed, each to the split that lacks most; the largest
    are dealt first, so that the shares come out.
    """
    if by not in BY:
        raise ValueError(f"--by must be {', '.join(BY)}, not {by}")
    if dev < 0 or test < 0 or dev + test >= 1:
        raise ValueError(f"dev {dev:g} and test {test:g} must leave something to train on")
    wanted = {"train": 1 - dev - test, "dev": dev, "test": test}
    wanted = {name: share for name, share in wanted.items() if share > 0}
    if not corpus.utterances:
        raise ValueError(f"there is nothing to split{corpus.problems.why()}")
    groups = _groups(corpus, by)
    if len(groups) < len(wanted):
        raise ValueError(
            f"{len(groups)} {by}{'' if len(groups) == 1 else 's'} cannot be split in {len(wanted)}"
            + ("" if by == "utterance" else ": split --by text or utterance")
        )
    order = np.random.default_rng(mixed_seed(seed)).permutation(len(groups))
    mixed = [sorted(groups)[n] for n in order]
    mixed.sort(key=lambda name: -_seconds(groups[name]))  # stable: chance decides among equals
    total = sum(map(_seconds, groups.values())) or 1.0
    have = dict.fromkeys(wanted, 0.0)
    found: dict[str, list[Utterance]] = {name: [] for name in wanted}
    for number, name in enumerate(mixed):
        empty = [part for part in wanted if not found[part]]
        must_fill = len(mixed) - number <= len(empty)
        among = empty if must_fill else list(wanted)
        part = max(among, key=lambda part: wanted[part] - have[part] / total)
        have[part] += _seconds(groups[name])
        found[part] += [replace(utterance, split=part) for utterance in groups[name]]
    return found


def _groups(corpus: Corpus, by: str) -> dict[str, list[Utterance]]:
    groups: dict[str, list[Utterance]] = {}
    for utterance in corpus.utterances:
        utterance = _measured(utterance, corpus)
        key = utterance.id if by == "utterance" else getattr(utterance, by)
        if not key:
            corpus.problems.note("no speaker", utterance.id, used=True)
        groups.setdefault(key, []).append(utterance)
    if by == "speaker" and set(groups) == {""}:
        raise ValueError("no utterance names its speaker: split --by text or utterance")
    return groups


def _measured(utterance: Utterance, corpus: Corpus) -> Utterance:
    """With its duration; one that cannot be read has none, and is dealt out all the same."""
    if utterance.duration is not None:
        return utterance
    try:
        source = corpus.source(utterance)
        if isinstance(source, str):
            rate = 16_000
            samples = len(audio.read(source, rate, utterance.start).samples)
            return replace(utterance, duration=samples / rate)
        shape = audio.shape(source)
        _, samples = audio.stretch(shape, utterance.start, None)
        return replace(utterance, duration=samples / shape.rate)
    except BadUtterance as error:
        corpus.problems.add([replace(error.of(utterance.id), used=True)])
        return utterance


def _seconds(utterances: Sequence[Utterance]) -> float:
    return sum(utterance.duration or 0.0 for utterance in utterances)


def merge(corpora: Sequence[Corpus]) -> Corpus:
    """All of them below the folder that they share."""
    if len(corpora) < 2:
        raise ValueError("merge takes two corpora or more")
    root = Path(os.path.commonpath([corpus.root.resolve() for corpus in corpora]))
    seen: set[str] = set()
    utterances: list[Utterance] = []
    problems = Problems()
    for corpus in corpora:
        if not corpus.utterances:
            raise ValueError(
                f"nothing in {corpus.root} can be used as it is: make a manifest of it first, with "
                "the options that it needs (regatta data import)"
            )
        problems.add(corpus.problems)
        there = os.path.relpath(corpus.root.resolve(), root)
        for utterance in corpus.utterances:
            name = utterance.id
            if name in seen:
                name = f"{corpus.root.resolve().name}/{name}"
            if name in seen:
                problems.note("duplicate id", name)
                continue
            seen.add(name)
            if not utterance.is_command:
                path = os.path.normpath(os.path.join(there, utterance.audio))
                utterance = replace(utterance, audio=path)
            utterances.append(replace(utterance, id=name))
    return Corpus(root, utterances, problems)
