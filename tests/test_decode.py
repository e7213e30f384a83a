"""Decoders against all paths and texts, written out."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from decoding import (
    AB,
    EVERYTHING,
    STRINGS,
    add,
    alphabets,
    heard,
    judged,
    lexicons,
    log,
    model_of,
    only_words,
    outputs_of_few_frames,
    texts_by_path,
)
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from torch import Tensor

from regatta.decode.beam import prefix_beam
from regatta.decode.language import LanguageModel
from regatta.decode.lexicon import Lexicon
from regatta.decode.rules import MODES
from regatta.decode.words import word_beam


@settings(max_examples=60, deadline=None)
@given(st.data(), alphabets)
def test_prefix_beams_are_sums_over_all_paths(data, alphabet):
    outputs = data.draw(outputs_of_few_frames(alphabet))
    expected: dict[str, float] = {}
    if alphabet.separator:  # it says no more than a blank
        both = torch.logaddexp(outputs[:, -1:], outputs[:, -2:-1])
        by_path = texts_by_path(torch.cat((outputs[:, :-2], both), 1), AB)
    else:
        by_path = texts_by_path(outputs, alphabet)
    for text, logp in by_path.items():
        add(expected, " ".join(text.split()), logp)
    found = heard(prefix_beam(alphabet, EVERYTHING, nbest=EVERYTHING), outputs)
    assert {told.text: told.acoustic for told in found} == pytest.approx(expected, abs=1e-9)


@settings(max_examples=200, deadline=None)
@given(
    st.data(),
    alphabets,
    st.sampled_from(MODES),
    st.floats(0, 2),
    st.floats(-2, 2),
    st.booleans(),
)
def test_word_beams_are_sums_over_all_paths(data, alphabet, mode, alpha, beta, ends):
    outputs, lexicon = data.draw(outputs_of_few_frames(alphabet)), data.draw(lexicons(alphabet))
    expected = only_words(texts_by_path(outputs, alphabet), lexicon)
    assume(expected)
    model = model_of(lexicon)
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


def published(outputs: Tensor, lexicon: Lexicon, model: LanguageModel, mode: str):
    """Scheidl et al.: scores and texts, the best first, with their last words completed."""
    found = []
    for text, logp in texts_by_path(outputs).items():
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
        found.append((logp + language / max(factors, 1), text))
    return sorted(found, reverse=True)


@settings(max_examples=100, deadline=None)
@given(outputs_of_few_frames(), lexicons(AB), st.sampled_from(["words", "ngrams", "forecast"]))
def test_the_published_form_takes_geometric_means_and_leaves_the_last_word(outputs, lexicon, mode):
    model = model_of(lexicon)
    expected = published(outputs, lexicon, model, mode)
    assume(expected)
    decoder = word_beam(lexicon, model, mode, EVERYTHING, paper=True)
    (told,) = heard(decoder, outputs)
    (best, text), *others = expected
    assert told.score == pytest.approx(best, abs=1e-9)
    if not others or best - others[0][0] > 1e-9:  # else either may be told
        assert told.text == text


def test_the_published_example_is_completed():
    outputs = log([[0.9, 0.1, 0, 0], [0, 0, 0, 1], [0.6, 0.4, 0, 0]])
    for mode in ("words", "ngrams", "forecast", "sample"):
        lexicon = Lexicon.of_texts(["a ba"], AB)
        model = LanguageModel.of_texts(["a ba"], lexicon, paper=True)
        (told,) = heard(word_beam(lexicon, model, mode, 25, paper=True), outputs)
        assert told.text == "ba"


@settings(max_examples=40, deadline=None)
@given(outputs_of_few_frames())
def test_a_lexicon_of_all_strings_is_none(outputs):
    every = Lexicon.of_words(STRINGS, AB)
    with_words = heard(word_beam(every, width=EVERYTHING, nbest=EVERYTHING), outputs)
    without = heard(prefix_beam(AB, EVERYTHING, nbest=EVERYTHING), outputs)
    assert {told.text: told.score for told in with_words} == pytest.approx(
        {told.text: told.score for told in without}, abs=1e-9
    )
