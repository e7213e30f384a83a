"""How far texts are from what was said: error rates of a whole corpus.

Edits are summed over all utterances before they are divided, so a short utterance weighs no more
than its words, and the order of utterances changes nothing. Texts are split at white space; the
spaces between words count as characters.

Rates are never clipped: insertions can bring them above 1. Where nothing was said, every word that
was heard is an insertion. If nothing was said in the whole corpus there is nothing to divide by:
the rate is then the number of insertions, as in jiwer.

The fewest edits are counted, and several alignments may have as few. So the split into substituted,
deleted and inserted words can differ from sclite's, whose substitutions cost more.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any, Literal, NamedTuple, cast

import jiwer
from rapidfuzz.distance import Levenshtein

Kind = Literal["equal", "substitute", "delete", "insert"]


@dataclass(frozen=True)
class Pair:
    """An utterance: what was said, and what was heard."""

    reference: str
    hypothesis: str
    speaker: str = ""
    name: str = ""


class Step(NamedTuple):
    """Two words that stand against each other; one is empty where a word is missing."""

    kind: Kind
    reference: str
    hypothesis: str


class Stretch(NamedTuple):
    """Steps of one kind in a row, by the places of their words."""

    kind: Kind
    start: int  # of the reference's words
    end: int
    heard_start: int  # of the hypothesis's words
    heard_end: int


@dataclass(frozen=True)
class Alignment:
    """The words of an utterance, each against what was heard in its place."""

    pair: Pair
    reference: tuple[str, ...]
    hypothesis: tuple[str, ...]
    stretches: tuple[Stretch, ...]

    def __iter__(self) -> Iterator[Step]:
        for kind, start, end, heard_start, heard_end in self.stretches:
            for place in range(max(end - start, heard_end - heard_start)):
                said = "" if kind == "insert" else self.reference[start + place]
                heard = "" if kind == "delete" else self.hypothesis[heard_start + place]
                yield Step(kind, said, heard)

    @cached_property
    def counts(self) -> dict[Kind, int]:
        """Of words, by kind."""
        number: dict[Kind, int] = {"equal": 0, "substitute": 0, "delete": 0, "insert": 0}
        for kind, start, end, heard_start, heard_end in self.stretches:
            number[kind] += max(end - start, heard_end - heard_start)
        return number


@dataclass(frozen=True)
class ErrorRates:
    """Of a corpus: what was counted, and the rates."""

    sentences: int
    wrong_sentences: int
    words: int  # of the references
    correct: int
    substituted: int
    deleted: int
    inserted: int
    characters: int  # of the references
    character_edits: int
    cer_longer: float  # mean over utterances of edits / length of the longer text, 0 to 1

    @classmethod
    def of(cls, pairs: Iterable[Pair]) -> ErrorRates:
        return cls.of_alignments(aligned(pairs))

    @classmethod
    def of_alignments(cls, alignments: Sequence[Alignment]) -> ErrorRates:
        total: Counter[Kind] = Counter()
        wrong = characters = edits = 0
        shares: list[float] = []
        for alignment in alignments:
            counts = alignment.counts
            total.update(counts)
            said, heard = " ".join(alignment.reference), " ".join(alignment.hypothesis)
            different = 0 if said == heard else Levenshtein.distance(said, heard)
            wrong += said != heard
            characters += len(said)
            edits += different
            shares.append(different / max(len(said), len(heard), 1))
        return cls(
            sentences=len(alignments),
            wrong_sentences=wrong,
            words=total["equal"] + total["substitute"] + total["delete"],
            correct=total["equal"],
            substituted=total["substitute"],
            deleted=total["delete"],
            inserted=total["insert"],
            characters=characters,
            character_edits=edits,
            cer_longer=math.fsum(shares) / max(len(shares), 1),  # exact, so in any order the same
        )

    @property
    def word_edits(self) -> int:
        return self.substituted + self.deleted + self.inserted

    @property
    def wer(self) -> float:
        return self.word_edits / max(self.words, 1)

    @property
    def cer(self) -> float:
        """The usual one: all edits by all characters of the references."""
        return self.character_edits / max(self.characters, 1)

    @property
    def sentence_error(self) -> float:
        return self.wrong_sentences / max(self.sentences, 1)

    def to_json(self) -> dict[str, Any]:
        rates = {"wer": self.wer, "cer": self.cer, "sentence_error": self.sentence_error}
        return rates | asdict(self)

    def __str__(self) -> str:
        """One line, as icefall has it."""
        return (
            f"%WER {100 * self.wer:.2f} [{self.word_edits} / {self.words}, {self.inserted} ins, "
            f"{self.deleted} del, {self.substituted} sub ]"
        )


@dataclass(frozen=True)
class Comparison:
    """All utterances of a corpus, aligned."""

    alignments: tuple[Alignment, ...]

    @classmethod
    def of(cls, pairs: Iterable[Pair]) -> Comparison:
        return cls(tuple(aligned(pairs)))

    @cached_property
    def rates(self) -> ErrorRates:
        return ErrorRates.of_alignments(self.alignments)

    @cached_property
    def by_speaker(self) -> dict[str, ErrorRates]:
        """In the order of their names; empty where no speaker is named."""
        groups: dict[str, list[Alignment]] = {}
        for alignment in self.alignments:
            groups.setdefault(alignment.pair.speaker, []).append(alignment)
        if not groups.keys() - {""}:
            return {}
        return {name: ErrorRates.of_alignments(groups[name]) for name in sorted(groups)}

    @cached_property
    def confusions(self) -> list[tuple[Step, int]]:
        """Every difference and how often it was found, the most frequent first."""
        found = Counter(
            step for alignment in self.alignments for step in alignment if step.kind != "equal"
        )
        return sorted(found.items(), key=lambda item: (-item[1], item[0]))

    def most(self, kind: Kind, number: int | None = None) -> list[tuple[Step, int]]:
        """The most frequent differences of a kind."""
        return [item for item in self.confusions if item[0].kind == kind][:number]

    def to_json(self, number: int = 20) -> dict[str, Any]:
        """With so many confusions of each kind."""
        return self.rates.to_json() | {
            "speakers": {name: rates.to_json() for name, rates in self.by_speaker.items()},
            "substitutions": [
                [step.reference, step.hypothesis, count]
                for step, count in self.most("substitute", number)
            ],
            "deletions": [[step.reference, count] for step, count in self.most("delete", number)],
            "insertions": [[step.hypothesis, count] for step, count in self.most("insert", number)],
        }


def aligned(pairs: Iterable[Pair]) -> list[Alignment]:
    """By the fewest edits of words."""
    given = list(pairs)
    if not given:
        return []
    found = jiwer.process_words(
        [" ".join(pair.reference.split()) for pair in given],
        [" ".join(pair.hypothesis.split()) for pair in given],
    )
    return [
        Alignment(pair, tuple(reference), tuple(hypothesis), tuple(map(_stretch, chunks)))
        for pair, reference, hypothesis, chunks in zip(
            given, found.references, found.hypotheses, found.alignments, strict=True
        )
    ]


def _stretch(chunk: jiwer.AlignmentChunk) -> Stretch:
    kind = cast(Kind, chunk.type)
    return Stretch(
        kind, chunk.ref_start_idx, chunk.ref_end_idx, chunk.hyp_start_idx, chunk.hyp_end_idx
    )
