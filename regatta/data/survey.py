"""What there is in a corpus: hours, speakers, lengths, symbols, and what is wrong with it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from multiprocessing import get_context
from typing import Any

from regatta.data import audio
from regatta.data.checks import Checks
from regatta.data.manifest import Corpus, Utterance
from regatta.data.problems import BadUtterance, Problem, Problems

_TOGETHER = 64  # utterances that a process looks at
_HOP_SECONDS = 0.01
_RATE = 16_000


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

    def groups(self, name: str) -> dict[str, tuple[int, float]]:
        """Utterances and seconds by split, language or speaker, most seconds first."""
        found: dict[str, tuple[int, float]] = {}
        for utterance in self.utterances:
            key = getattr(utterance, name) or "(none)"
            count, seconds = found.get(key, (0, 0.0))
            found[key] = count + 1, seconds + (utterance.duration or 0.0)
        return dict(sorted(found.items(), key=lambda item: -item[1][1]))

    def to_json(self) -> dict[str, Any]:
        lengths = self.lengths()
        return {
            "utterances": len(self.utterances),
            "hours": self.seconds / 3600,
            "splits": self.groups("split"),
            "languages": self.groups("language"),
            "speakers": self.groups("speaker"),
            "lengths": {name: quantile(lengths, at) for name, at in QUANTILES.items()},
            "words": len(self.words()),
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
) -> Iterable[tuple[list[Utterance], list[Problem]]]:
    if jobs <= 1 or len(parts) <= 1:
        return map(look, parts)
    pool = ProcessPoolExecutor(min(jobs, len(parts)), get_context("spawn"))
    with pool:
        return list(pool.map(look, parts))


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
                seconds = self._seconds(utterance, problems)
                self.checks.check(utterance.text, round(seconds / _HOP_SECONDS), seconds)
                good.append(replace(utterance, duration=seconds))
            except BadUtterance as error:
                problems.append(error.of(utterance.id))
        return good, problems

    def _seconds(self, utterance: Utterance, problems: list[Problem]) -> float:
        is_command = utterance.audio.rstrip().endswith("|")
        source = utterance.audio if is_command else self.corpus.path(utterance)
        if is_command or self.thorough:
            whole = audio.read(
                source, _RATE, utterance.start, utterance.duration, utterance.channel
            )
            notes, heard = whole.notes, len(whole.samples) / _RATE
        else:
            shape = audio.shape(self.corpus.path(utterance))
            _, samples = audio.stretch(shape, utterance.start, utterance.duration)
            heard = samples / shape.rate
            notes = tuple(audio.other_duration(utterance.duration, heard))
        problems += [Problem(kind, utterance.id, told, used=True) for kind, told in notes]
        return heard
