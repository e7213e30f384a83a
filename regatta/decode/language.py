"""Which words are likely after which: language models over the words of a lexicon."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from regatta.data.problems import BadUtterance, Problems
from regatta.decode import arpa
from regatta.decode.graph import ALONE, CONTEXT, ENTRY, Graph, begin, end, score
from regatta.decode.lexicon import Lexicon
from regatta.decode.ngrams import BEGIN, END, UNKNOWN, Ngrams
from regatta.decode.smoothing import FLOOR, Estimation
from regatta.decode.texts import numbered, split_texts, texts_of


@dataclass(frozen=True)
class Fit:
    """How well a model foresees texts."""

    perplexity: float | None  # by word, ends of sentences counted where the model has them
    words: int
    unknown: int  # words that the lexicon lacks; they are passed over


@dataclass(frozen=True, eq=False)
class LanguageModel:
    lexicon: Lexicon
    graph: Graph
    order: int
    has_end: bool  # it says where sentences end
    unknown: int = 0  # words of the lexicon that the model has not: they share <unk>, or get FLOOR
    left_out: int = 0  # words of the model that the lexicon has not; nothing is renormalised
    problems: Problems = field(default_factory=Problems)

    @classmethod
    def of_texts(
        cls,
        texts: Iterable[str],
        lexicon: Lexicon,
        order: int = 3,
        smoothing: str = "kneser-ney",
        k: float = 0.01,
        paper: bool = False,
    ) -> LanguageModel:
        """Counted. It knows the words of the texts and of the lexicon.

        `paper`: the model that word beam search was published with, of order 2 with add-k.
        """
        estimation = Estimation(order, smoothing, k, paper)
        return cls._counted(numbered(texts), lexicon, estimation, Problems())

    @classmethod
    def of_file(cls, path: Path | str, lexicon: Lexicon, paper: bool = False) -> LanguageModel:
        """An ARPA file, or texts to count: a sentence a line, or a .jsonl manifest.

        A model that knows none of the lexicon's words is refused: it could judge nothing.
        """
        path, problems = Path(path), Problems()
        if arpa.is_arpa(path):
            model = cls.of_ngrams(arpa.read(path), lexicon)
            known = len(lexicon) - model.unknown
        else:
            named = texts_of(path, problems)
            words = _words(named, lexicon)
            if not words:
                raise ValueError(
                    f"there is no text in {path} that the alphabet {lexicon.alphabet.symbols!r} "
                    "can write: name other texts, or an ARPA file"
                )
            model = cls._counted(named, lexicon, Estimation(paper=paper), problems)
            known = sum(word in lexicon.numbers for word in words)
        if not known:
            raise ValueError(
                f"{path} has none of the {len(lexicon)} words of the lexicon, as "
                f"{lexicon.words[0]!r}: name a language model of the same language and spelling"
            )
        return model

    @classmethod
    def _counted(
        cls,
        named: Iterable[tuple[str, str]],
        lexicon: Lexicon,
        estimation: Estimation,
        problems: Problems,
    ) -> LanguageModel:
        sentences = split_texts(named, lexicon.alphabet, problems)
        return cls.of_ngrams(estimation.of(sentences, lexicon.words), lexicon, problems)

    @classmethod
    def of_ngrams(
        cls, ngrams: Ngrams, lexicon: Lexicon, problems: Problems | None = None
    ) -> LanguageModel:
        number = _numbers(ngrams, lexicon)
        left_out = sum(
            at < 0 and word.lower() not in (BEGIN, END, UNKNOWN)
            for at, word in zip(number, ngrams.words, strict=True)
        )
        return cls(
            lexicon,
            _graph(ngrams, number, len(lexicon)),
            ngrams.order,
            END in map(str.lower, ngrams.words),
            len(lexicon) - int((number >= 0).sum()),
            left_out,
            Problems() if problems is None else problems,
        )

    def fit(self, sentences: Iterable[Sequence[str]]) -> Fit:
        """How well sentences are foreseen, each a list of words."""
        numbers = self.lexicon.numbers
        total, words, unknown, ends = 0.0, 0, 0, 0
        for sentence in sentences:
            context = begin(self.graph)
            for word in sentence:
                if word in numbers:
                    logp, context = score(self.graph, context, numbers[word])
                    total += logp
                else:
                    context, unknown = 0, unknown + 1
            total += end(self.graph, context)
            words, ends = words + len(sentence), ends + self.has_end
        said = words - unknown + ends
        return Fit(math.exp(-total / said) if said else None, words, unknown)


def _words(named: Iterable[tuple[str, str]], lexicon: Lexicon) -> set[str]:
    return set(chain.from_iterable(split_texts(named, lexicon.alphabet, Problems())))


def _numbers(ngrams: Ngrams, lexicon: Lexicon) -> NDArray[np.int64]:
    """The lexicon's numbers of words, or -1. Where two are spelled alike the exact one is taken."""
    found = [lexicon.numbers.get(word, -1) for word in ngrams.words]
    taken = set(found)
    for place, word in enumerate(ngrams.words):
        if found[place] < 0 and not word.startswith("<"):
            try:
                number = lexicon.numbers.get(lexicon.alphabet.normalised(word), -1)
            except BadUtterance:
                continue
            if number not in taken:
                found[place] = number
                taken.add(number)
    return np.array(found, np.int64)


def _place(ngrams: Ngrams, mark: str) -> int:
    """Of a mark among the words, however it is written; -1 if there is none."""
    return next((at for at, word in enumerate(ngrams.words) if word.lower() == mark), -1)


def _graph(ngrams: Ngrams, number: NDArray[np.int64], size: int) -> Graph:
    """Of the contexts that utterances of the lexicon's words can come to."""
    start, stop = _place(ngrams, BEGIN), _place(ngrams, END)
    parent, word, shorter = ngrams.parent, ngrams.word, ngrams.shorter
    alive = np.zeros(len(word), bool)
    alive[0] = True
    for length in range(1, ngrams.order + 1):
        here = ngrams.level(length)
        usable = number[word[here]] >= 0
        if length == 1 and start >= 0:
            usable[start] = True
        alive[here] = usable & alive[parent[here]]
    ends = (word == stop) & (stop >= 0) & alive[parent]
    is_context = alive & (ngrams.backoff != 0)
    is_context[parent[1:][(alive | ends)[1:]]] = True
    is_context[0] = True
    context = np.cumsum(is_context) - 1
    for length in range(1, ngrams.order + 1):  # who is none stands for its longest end that is
        here = ngrams.level(length)
        context[here] = np.where(is_context[here], context[here], context[shorter[here]])

    entries = np.flatnonzero(alive & (parent > 0))
    entries = entries[np.lexsort((number[word[entries]], context[parent[entries]]))]
    first = np.searchsorted(context[parent[entries]], np.arange(int(is_context.sum()) + 1))
    own, instead = ngrams.logp[entries], ngrams.backoff[parent[entries]] + ngrams.backed[entries]
    graph = Graph(
        int(context[1 + start]) if start >= 0 else 0,
        np.zeros(len(first), CONTEXT),
        np.zeros(len(entries), ENTRY),
        _alone(ngrams, number, size, context),
    )
    graph.contexts["first"] = first
    graph.contexts["shorter"][:-1] = context[shorter[is_context]]
    graph.contexts["backoff"][:-1] = ngrams.backoff[is_context]
    graph.contexts["end"][:-1] = _ends(ngrams, np.flatnonzero(is_context), stop)
    graph.entries["word"] = number[word[entries]]
    graph.entries["after"] = context[entries]
    graph.entries["logp"] = own
    graph.entries["gained"] = _running_sums(np.exp(own) - np.exp(instead), first)
    return graph


def _alone(
    ngrams: Ngrams, number: NDArray[np.int64], size: int, context: NDArray[np.int64]
) -> NDArray[np.void]:
    """Of every word of the lexicon: log P without a context, and the context after it."""
    known = np.flatnonzero(number >= 0)
    missing = size - len(known)
    unknown = _place(ngrams, UNKNOWN)
    shared = math.log(FLOOR)
    if missing and unknown >= 0:
        shared = max(shared, float(ngrams.logp[1 + unknown]) - math.log(missing))
    alone = np.zeros(size + 1, ALONE)
    alone["logp"] = shared
    alone["logp"][number[known]] = ngrams.logp[1 + known]
    alone["after"][number[known]] = context[1 + known]
    alone["before"][1:] = np.cumsum(np.exp(alone["logp"][:-1]).astype(np.longdouble))
    return alone


def _running_sums(values: NDArray[np.float64], first: NDArray[np.int64]) -> NDArray[np.float64]:
    """Within each context by itself: sums over all contexts would lose digits."""
    sums = values.copy()
    for context in np.flatnonzero(np.diff(first) > 1):
        here = slice(first[context], first[context + 1])
        np.cumsum(values[here], out=sums[here])
    return sums


def _ends(ngrams: Ngrams, nodes: NDArray[np.int64], stop: int) -> NDArray[np.float64]:
    """log P(</s>) after each of the nodes."""
    if stop < 0:
        return np.zeros(len(nodes))
    total, at = np.zeros(len(nodes)), nodes.copy()
    waiting = np.arange(len(nodes))
    while len(waiting):
        found = ngrams.child(at[waiting], np.full(len(waiting), stop))
        there = waiting[found > 0]
        total[there] += ngrams.logp[found[found > 0]]
        waiting = waiting[found == 0]
        total[waiting] += ngrams.backoff[at[waiting]]
        at[waiting] = ngrams.shorter[at[waiting]]
    return total
