"""Decoders against all paths and texts, written out; and what must never change a result."""

from __future__ import annotations

import math
from itertools import groupby, product

import numpy as np
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from torch import Tensor

from regatta.data.alphabet import Alphabet
from regatta.decode import Hypothesis
from regatta.decode.beam import prefix_beam
from regatta.decode.graph import begin, end, score
from regatta.decode.greedy import Greedy
from regatta.decode.language import LanguageModel
from regatta.decode.lexicon import Lexicon
from regatta.decode.search import BeamSearch
from regatta.decode.words import word_beam

AB = Alphabet("ab ")
EVERYTHING = 4000  # more beams than there are texts
STRINGS = ["".join(letters) for n in range(1, 5) for letters in product("ab", repeat=n)]


def log(rows: list[list[float]]) -> Tensor:
    return torch.tensor(rows, dtype=torch.float64).log()


def speech(frames: int, alphabet: Alphabet = AB, seed: int = 0, peaky: float = 2.0) -> Tensor:
    """[frame, symbol]: as random as can be."""
    drawn = torch.randn(frames, alphabet.outputs, generator=torch.Generator().manual_seed(seed))
    return (peaky * drawn.double()).log_softmax(-1)


def heard(decoder: BeamSearch | Greedy, outputs: Tensor) -> list[Hypothesis]:
    (found,) = decoder.decode(outputs[None], [len(outputs)])
    return found


@st.composite
def outputs_of_few_frames(draw: st.DrawFn) -> Tensor:
    frames = draw(st.integers(1, 4))
    weight = st.one_of(st.just(0.0), st.floats(0.01, 1.0))
    rows = draw(
        st.lists(st.lists(weight, min_size=4, max_size=4), min_size=frames, max_size=frames)
    )
    assume(all(sum(row) > 0 for row in rows))
    return log([[value / sum(row) for value in row] for row in rows])


lexicons = st.sets(st.sampled_from(STRINGS), min_size=1, max_size=6).map(
    lambda words: Lexicon.of_words(words, AB)
)


def texts_by_path(outputs: Tensor) -> dict[str, float]:
    """Every text with its log probability: the sum over its paths."""
    found: dict[str, float] = {}
    for path in product(range(4), repeat=len(outputs)):
        logp = sum(float(outputs[frame, symbol]) for frame, symbol in enumerate(path))
        if logp > -math.inf:
            text = AB.decoded(symbol for symbol, _ in groupby(path) if symbol != AB.blank)
            found[text] = np.logaddexp(found.get(text, -math.inf), logp)
    return found


def judged(words: list[str], model: LanguageModel, ends: bool) -> float:
    graph, numbers = model.graph, model.lexicon.numbers
    total, context = 0.0, begin(graph)
    for word in words:
        logp, context = score(graph, context, numbers[word])
        total += logp
    return total + (end(graph, context) if ends else 0.0)


def only_words(texts: dict[str, float], lexicon: Lexicon) -> dict[str, float]:
    """Of texts whose words are all known; the last may be begun so that it can be one only."""
    found: dict[str, float] = {}
    for text, logp in texts.items():
        words = text.split()
        if words and words[-1] not in lexicon.words and not text.endswith(" "):
            longer = [word for word in lexicon.words if word.startswith(words[-1])]
            words[-1:] = longer if len(longer) == 1 else ["?"]
        if all(word in lexicon.words for word in words):
            said = " ".join(words)
            found[said] = np.logaddexp(found.get(said, -math.inf), logp)
    return found


# -- exactly ---------------------------------------------------------------------------------


@settings(max_examples=60, deadline=None)
@given(outputs_of_few_frames())
def test_prefix_beams_are_sums_over_all_paths(outputs):
    expected: dict[str, float] = {}
    for text, logp in texts_by_path(outputs).items():
        said = " ".join(text.split())
        expected[said] = np.logaddexp(expected.get(said, -math.inf), logp)
    found = heard(prefix_beam(AB, EVERYTHING, nbest=EVERYTHING), outputs)
    assert {told.text: told.acoustic for told in found} == pytest.approx(expected, abs=1e-9)


@settings(max_examples=150, deadline=None)
@given(
    outputs_of_few_frames(),
    lexicons,
    st.sampled_from(["words", "ngrams", "forecast", "sample"]),
    st.floats(0, 2),
    st.floats(-2, 2),
    st.booleans(),
)
def test_word_beams_are_sums_over_all_paths(outputs, lexicon, mode, alpha, beta, ends):
    expected = only_words(texts_by_path(outputs), lexicon)
    assume(expected)
    model = LanguageModel.of_texts(["a ab b", "ba a", "b"], lexicon, order=2)
    decoder = word_beam(
        lexicon, model, mode, EVERYTHING, alpha=alpha, beta=beta, ends=ends, nbest=EVERYTHING
    )
    found = heard(decoder, outputs)
    assert {told.text: told.acoustic for told in found} == pytest.approx(expected, abs=1e-9)
    for told in found:
        words = told.text.split()
        language = 0.0
        if mode != "words":
            language = alpha * judged(words, model, ends) + beta * len(words)
        assert told.language == pytest.approx(language, abs=1e-9)
        assert told.score == told.acoustic + told.language
    assert found == sorted(found, key=lambda told: (-told.score, told.text))


def published(texts: dict[str, float], lexicon: Lexicon, model: LanguageModel, mode: str):
    """Scheidl et al.: score and text of the best, with its last word completed."""
    best = (-math.inf, "")
    for text, logp in texts.items():
        *whole, last = text.split(" ")
        whole = [word for word in whole if word]
        ahead = [word for word in lexicon.words if word.startswith(last)]
        if not all(word in lexicon.words for word in whole) or not ahead:
            continue
        language, factors = 0.0, len(whole)
        if mode != "words":
            language = judged(whole, model, False)
            if mode == "forecast" and last:
                each = [judged([*whole, word], model, False) for word in ahead]
                language, factors = np.logaddexp.reduce(each), len(whole) + 1
        if len(ahead) == 1 and last:
            text = text.removesuffix(last) + ahead[0]
        best = max(best, (logp + language / max(factors, 1), text))
    return best


@settings(max_examples=100, deadline=None)
@given(outputs_of_few_frames(), lexicons, st.sampled_from(["words", "ngrams", "forecast"]))
def test_the_published_form_takes_geometric_means_and_leaves_the_last_word(outputs, lexicon, mode):
    model = LanguageModel.of_texts(["a ab b", "ba a", "b"], lexicon, order=2)
    expected, _ = published(texts_by_path(outputs), lexicon, model, mode)
    assume(expected > -math.inf)
    decoder = word_beam(lexicon, model, mode, EVERYTHING, paper=True)
    (told,) = heard(decoder, outputs)
    assert told.score == pytest.approx(expected, abs=1e-9)


@settings(max_examples=40, deadline=None)
@given(outputs_of_few_frames())
def test_a_lexicon_of_all_strings_is_none(outputs):
    every = Lexicon.of_words(STRINGS, AB)
    with_words = heard(word_beam(every, width=EVERYTHING, nbest=EVERYTHING), outputs)
    without = heard(prefix_beam(AB, EVERYTHING, nbest=EVERYTHING), outputs)
    assert {told.text: told.score for told in with_words} == pytest.approx(
        {told.text: told.score for told in without}, abs=1e-9
    )
