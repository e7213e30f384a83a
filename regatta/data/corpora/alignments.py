"""When words and phones are spoken: CTM lines and Praat's TextGrids, long and short."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

from regatta.data.manifest import Label, Utterance, label_of, lines, seconds
from regatta.data.problems import BadUtterance, Problems

Tiers = dict[str, list[Label]]  # "words" and "phones"
_SILENCE = ("", "sil", "sp", "spn", "<eps>", "SIL", "_")
_PHONE_TIERS = ("phone", "phones", "phoneme", "phonemes", "mau")
_TOKEN = re.compile(
    r'"((?:[^"]|"")*)"|(?<![\w.])([+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?)(?![\w.])|<(\w+)>'
)


def attach(utterances: Sequence[Utterance], source: Path, problems: Problems) -> list[Utterance]:
    """Utterances with the alignments found in a file, or in all files of a folder."""
    if not source.exists():
        raise ValueError(f"there is no alignment {source}")
    found: dict[str, Tiers] = {}
    for name, tiers in _read(source, problems):
        into = found.setdefault(name, {})
        for tier, labels in tiers.items():
            into.setdefault(tier, []).extend(labels)
    found = _by_utterance(found, utterances, problems)
    return [_aligned(utterance, found.get(utterance.id, {}), problems) for utterance in utterances]


def _by_utterance(
    found: dict[str, Tiers], utterances: Sequence[Utterance], problems: Problems
) -> dict[str, Tiers]:
    """By id; a bare file name will do where only one utterance has it."""
    known = {utterance.id for utterance in utterances}
    named = Counter(Path(name).name for name in known)
    alone = {Path(name).name: name for name in known if named[Path(name).name] == 1}
    matched: dict[str, Tiers] = {}
    for name in sorted(found, key=lambda name: name not in known):  # exact ones first
        own = name if name in known else alone.get(Path(name).name)
        if own is None or own in matched:
            problems.note("alignment without utterance", name, used=True)
        else:
            matched[own] = found[name]
    return matched


def _read(source: Path, problems: Problems) -> Iterator[tuple[str, Tiers]]:
    files = [source]
    if source.is_dir():
        files = sorted(f for f in source.rglob("*") if f.suffix.lower() in (".ctm", ".textgrid"))
    if not files:
        raise ValueError(f"there is no .ctm or .TextGrid in {source}")
    for file in files:
        if file.suffix.lower() == ".textgrid":
            inner = file.relative_to(source) if source.is_dir() else Path(file.name)
            try:
                yield inner.with_suffix("").as_posix(), textgrid(_decoded(file))
            except (ValueError, OSError, BadUtterance) as error:
                problems.note("broken alignment", file.name, str(error), used=True)
        else:
            yield from ctm(file, problems)


def ctm(path: Path, problems: Problems) -> Iterator[tuple[str, Tiers]]:
    """RECORDING CHANNEL START DURATION LABEL [CONFIDENCE], of words; of phones in *phone*.ctm."""
    tier = "phones" if "phone" in path.name.lower() else "words"
    for number, line in lines(path, problems):
        if line.startswith(";;"):
            continue
        fields = line.split()
        try:
            start, length = seconds(fields[2], "start"), seconds(fields[3], "duration")
            yield fields[0], {tier: [label_of((start, start + length, fields[4]), tier)]}
        except (IndexError, BadUtterance):
            where = f"{path.name}:{number}"
            problems.note("broken line", where, "not RECORDING CHANNEL START DURATION LABEL")


def textgrid(text: str) -> Tiers:
    """Interval tiers by name; every other one that is not of phones is of words."""
    if "ooTextFile" not in text[:40] or "TextGrid" not in text[:80]:
        raise ValueError("not a TextGrid")
    tokens: list[str | float] = []
    for match in _TOKEN.finditer(_without_keys(text)):
        quoted, number, flag = match.groups()
        if flag is None:
            tokens.append(float(number) if quoted is None else quoted.replace('""', '"'))
    return _tiers(tokens[2:])  # after the two words of the file's type


def _without_keys(text: str) -> str:
    """A long TextGrid is a short one with a name before each value."""
    return re.sub(r"(?m)^\s*(?:item|intervals|points) ?\[\d*\]:?\s*$", "", text)


def _tiers(tokens: list[str | float]) -> Tiers:
    found: Tiers = {}
    at = 3  # after the start, the end and the number of tiers
    try:
        for _ in range(int(float(tokens[2]))):
            kind, name = tokens[at], tokens[at + 1]
            count = int(float(tokens[at + 4]))
            at += 5
            width = 3 if kind == "IntervalTier" else 2
            if not 0 <= count * width <= len(tokens) - at:
                raise IndexError
            rows = [tokens[at + width * n : at + width * (n + 1)] for n in range(count)]
            at += width * count
            if kind == "IntervalTier":
                last = str(name).lower().split(" - ")[-1].strip()  # anna - phones
                tier = "phones" if last in _PHONE_TIERS else "words"
                labels = [
                    label_of((max(0.0, float(a)), float(b), str(label).strip()), tier)
                    for a, b, label in rows
                ]
                found.setdefault(tier, []).extend(x for x in labels if x.name not in _SILENCE)
        if at != len(tokens):
            raise IndexError
    except (IndexError, OverflowError, TypeError, ValueError):
        raise ValueError("the TextGrid is cut short or misshapen") from None
    return found


def _decoded(path: Path) -> str:
    """Praat writes UTF-8 or UTF-16."""
    raw = path.read_bytes()
    return raw.decode("utf-16" if raw[:2] in (b"\xff\xfe", b"\xfe\xff") else "utf-8-sig")


def _aligned(utterance: Utterance, tiers: Tiers, problems: Problems) -> Utterance:
    kept: dict[str, tuple[Label, ...]] = {}
    for tier, labels in tiers.items():
        ordered = sorted(labels)
        overlap = any(b.start < a.end - 0.02 for a, b in pairwise(ordered))
        end = max((label.end for label in ordered), default=0.0)
        beyond = utterance.duration is not None and end > utterance.duration + 0.1
        if overlap or beyond:
            detail = "labels overlap" if overlap else f"a label ends at {end:g} s"
            problems.note("broken alignment", utterance.id, f"{tier}: {detail}", used=True)
        else:
            kept[tier] = tuple(ordered)
    words, phones = kept.get("words", utterance.words), kept.get("phones", utterance.phones)
    return replace(utterance, words=words, phones=phones)
