"""What there is in a corpus: hours, speakers, lengths, symbols, and what is wrong with it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

from regatta.data import audio
from regatta.data.checks import Checks, num_frames
from regatta.data.jobs import processes
from regatta.data.manifest import Corpus, Utterance
from regatta.data.problems import BadUtterance, Problem, Problems

_TOGETHER = 64  # utterances that a process looks at
_HOP = 160
_RATE = 16_000


class Group(NamedTuple):
    utterances: int
    seconds: float


def _plain(groups: dict[str, Group]) -> dict[str, dict[str, float]]:
    return {name: group._asdict() for name, group in groups.items()}


@dataclass
class Survey:
    """The utterances that can be used, with measured durations, and why others cannot."""

    utterances: list[Utterance]
    problems: Problems
    thorough: bool  # every sample was read

    @property
    def seconds(self) -> float:
        return sum(utterance.duration or 0.0 for utterance in self.utterances)

    def lengths(self) -> list[float]:
        return sorted(utterance.duration or 0.0 for utterance in self.utterances)

    def symbols(self) -> Counter[str]:
        return Counter(symbol for utterance in self.utterances for symbol in utterance.text)

    def words(self) -> Counter[str]:
        return Counter(word for utterance in self.utterances for word in utterance.text.split())

    def groups(self, name: str) -> dict[str, Group]:
        """By split, language or speaker, most seconds first; "" are those without."""
        found: dict[str, Group] = {}
        for utterance in self.utterances:
            key = getattr(utterance, name)
            count, seconds = found.get(key, (0, 0.0))
            found[key] = Group(count + 1, seconds + (utterance.duration or 0.0))
        return dict(sorted(found.items(), key=lambda item: -item[1].seconds))

    def to_json(self) -> dict[str, Any]:
        lengths = self.lengths()
        return {
            "utterances": len(self.utterances),
            "hours": self.seconds / 3600,
            "splits": _plain(self.groups("split")),
            "languages": _plain(self.groups("language")),
            "speakers": _plain(self.groups("speaker")),
            "lengths": {name: quantile(lengths, at) for name, at in QUANTILES.items()},
            "words": self.words().total(),
            "different_words": len(self.words()),
            "symbols": dict(sorted(self.symbols().items())),
            "with_words": sum(bool(u.words) for u in self.utterances),
            "with_phones": sum(bool(u.phones) for u in self.utterances),
            "read_all_samples": self.thorough,
            "problems": self.problems.to_json(),
        }


QUANTILES = {"shortest": 0.0, "5 %": 0.05, "median": 0.5, "95 %": 0.95, "longest": 1.0}


def quantile(ordered: list[float], at: float) -> float:
    return ordered[min(len(ordered) - 1, int(at * len(ordered)))] if ordered else 0.0


def survey(
    corpus: Corpus,
    checks: Checks,
    thorough: bool = False,
    jobs: int = 1,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> Survey:
    """Look at every utterance: at what its file says of itself, or at every sample."""
    look = _Look(replace(corpus, utterances=[], problems=Problems()), checks, thorough)
    total = len(corpus.utterances)
    parts = [corpus.utterances[n : n + _TOGETHER] for n in range(0, total, _TOGETHER)]
    seen: list[Utterance] = []
    problems = Problems(corpus.problems)
    done = 0
    for part, (good, found) in zip(parts, _looked(look, parts, jobs), strict=True):
        seen += good
        problems.add(found)
        done += len(part)
        progress(done, total)
    return Survey(seen, problems, thorough)


def _looked(
    look: _Look, parts: list[list[Utterance]], jobs: int
) -> Iterator[tuple[list[Utterance], list[Problem]]]:
    if jobs <= 1 or len(parts) <= 1:
        yield from map(look, parts)
        return
    with processes(min(jobs, len(parts)), "reads audio") as pool:
        yield from pool.map(look, parts)


@dataclass(frozen=True)
class _Look:
    corpus: Corpus
    checks: Checks
    thorough: bool

    def __call__(self, utterances: list[Utterance]) -> tuple[list[Utterance], list[Problem]]:
        good: list[Utterance] = []
        problems: list[Problem] = []
        for utterance in utterances:
            try:
                samples = self._samples(utterance, problems)
                seconds = samples / _RATE
                self.checks.check(utterance.text, num_frames(samples, _HOP), seconds)
                good.append(replace(utterance, duration=seconds))
            except BadUtterance as error:
                problems.append(error.of(utterance.id))
        return good, problems

    def _samples(self, utterance: Utterance, problems: list[Problem]) -> int:
        """How many there are at the usual rate."""
        source = self.corpus.source(utterance)
        start, duration, channel = utterance.start, utterance.duration, utterance.channel
        if self.thorough or not isinstance(source, Path):
            whole = audio.read(source, _RATE, start, duration, channel)
            notes, samples = list(whole.notes), len(whole.samples)
        else:
            shape = audio.shape(source)
            _, found = audio.stretch(shape, start, duration)
            notes = shape.notes(_RATE, channel)
            notes += audio.other_duration(duration, found / shape.rate)
            samples = round(found * _RATE / shape.rate)
        problems += [Problem(kind, utterance.id, told, used=True) for kind, told in notes]
        return samples
