"""Decoders by their options: what these change, and what is said of wrong ones."""

from __future__ import annotations

import math
import re
from contextlib import contextmanager
from dataclasses import fields, replace
from pathlib import Path

import numpy as np
import pytest
import torch
from decoding import AB, heard, judged, log, peaks, speech

from regatta.data.alphabet import Alphabet
from regatta.decode import arpa
from regatta.decode.beam import prefix_beam
from regatta.decode.decoding import Decoding
from regatta.decode.greedy import Greedy
from regatta.decode.language import LanguageModel
from regatta.decode.lexicon import Lexicon
from regatta.decode.ngrams import UNKNOWN
from regatta.decode.outputs import Pruning
from regatta.decode.search import BeamSearch
from regatta.decode.smoothing import Estimation
from regatta.decode.words import word_beam

TEXTS = ["the cat sat", "on the mat", "the cat on the mat"]
ENGLISH = Alphabet(separator="~")
WORDS = Decoding("words")


@pytest.fixture
def files(tmp_path):
    """An ARPA file of the texts, the texts themselves, and their words."""
    model = Estimation().of([text.split() for text in TEXTS], [UNKNOWN])
    arpa.write(tmp_path / "model.arpa", model)
    (tmp_path / "texts.txt").write_text("\n".join(TEXTS))
    (tmp_path / "words.lst").write_text("\n".join({w for text in TEXTS for w in text.split()}))
    return tmp_path


# -- decoders ----------------------------------------------------------------------------------


def test_options_make_decoders():
    assert Decoding().build(ENGLISH) == Greedy(ENGLISH)
    prefix = Decoding("prefix", width=9, nbest=3).build(ENGLISH)
    assert isinstance(prefix, BeamSearch)
    assert (prefix.rules.width, prefix.nbest) == (9, 3)
    said = peaks(ENGLISH.encoded("the cat sat on the mat"), ENGLISH)
    for mode in ("words", "ngrams", "forecast", "sample"):
        (told,) = heard(replace(WORDS, mode=mode).build(ENGLISH, TEXTS), said)
        assert told.text == "the cat sat on the mat"
        assert (told.language != 0) == (mode != "words")


def test_a_language_model_is_read_or_counted(files):
    said = peaks(ENGLISH.encoded("the cat on the mat"), ENGLISH)
    found = [
        heard(replace(WORDS, mode="forecast", **where).build(ENGLISH, TEXTS), said)[0]
        for where in (
            {},
            {"lm": str(files / "texts.txt")},
            {"lm": str(files / "model.arpa"), "lexicon": str(files / "words.lst")},
        )
    ]
    assert found[0] == found[1]
    assert found[2].text == found[0].text == "the cat on the mat"
    assert found[2].language == pytest.approx(found[0].language, rel=0.2)  # it has <unk> too


def test_in_the_published_form_texts_are_counted_as_published(files):
    by = Decoding("words", mode="ngrams", paper=True)
    said = peaks(ENGLISH.encoded("the cat on the mat "), ENGLISH)
    counted = heard(by.build(ENGLISH, TEXTS), said)
    assert heard(replace(by, lm=str(files / "texts.txt")).build(ENGLISH, TEXTS), said) == counted
    lexicon = Lexicon.of_texts(TEXTS, ENGLISH)
    model = LanguageModel.of_texts(TEXTS, lexicon, paper=True)
    words = ["the", "cat", "on", "the", "mat"]
    assert counted[0].language == pytest.approx(judged(words, model, False) / len(words))


# -- last words --------------------------------------------------------------------------------


def test_the_last_word_is_judged_though_no_space_follows():
    """`ab` sounds better, but `a b` is a sentence that the model knows."""
    lexicon = Lexicon.of_words(["a", "b", "ab"], AB)
    model = LanguageModel.of_texts(["a b"] * 20, lexicon)
    outputs = log([[1, 0, 0, 0], [0, 0, 0.4, 0.6], [0, 1, 0, 0]])
    (plain,) = heard(word_beam(lexicon), outputs)
    assert plain.text == "ab"
    for mode in ("ngrams", "forecast", "sample"):
        (told,) = heard(word_beam(lexicon, model, mode, alpha=1.0, beta=0.0), outputs)
        assert told.text == "a b"
        assert told.language == pytest.approx(judged(["a", "b"], model, False))


def test_a_last_word_is_completed_where_nothing_else_is_left():
    lexicon = Lexicon.of_words(["abba", "baa", "bab"], AB)
    (told,) = heard(word_beam(lexicon), log([[1.0, 0, 0, 0], [0, 0.9, 0, 0.1]]))
    assert told.text == "abba"
    assert [(word.start, word.end) for word in told.words] == [(0, 2)]


def test_letters_that_were_not_heard_do_not_win_over_whole_words():
    """What was heard begins `bbba` more likely than it is `ab`, but only `ab` is all there."""
    lexicon = Lexicon.of_words(["ab", "bbba"], AB)
    outputs = log([[0.4, 0.6, 0, 0], [0, 1, 0, 0]])
    (told,) = heard(word_beam(lexicon), outputs)
    assert (told.text, told.acoustic) == ("ab", pytest.approx(math.log(0.4)))


def test_without_a_whole_word_those_before_are_told():
    lexicon = Lexicon.of_words(["a", "baa", "bab"], AB)
    a, b, space = log([[1, 0, 0, 0], [0, 1, 0, 0], [0, 0, 1, 0]])
    (told,) = heard(word_beam(lexicon), torch.stack([a, space, b]))
    assert told.text == "a"
    (told,) = heard(word_beam(lexicon, paper=True), torch.stack([a, space, b]))
    assert told.text == "a b"  # as it was published


# -- sampling ----------------------------------------------------------------------------------


def sampled(lexicon: Lexicon, model: LanguageModel, seed: int, mode: str = "sample") -> float:
    """What one letter that begins half of the words is worth."""
    decoder = word_beam(lexicon, model, mode, alpha=1.0, beta=0.0, seed=seed)
    told = decoder.listen().step(log([[1, 0, 0, 0]]))
    assert told.text == "a"
    return math.exp(told.language)


def test_drawn_words_are_worth_the_forecast_in_the_mean():
    words = [f"{n:06b}".replace("0", "a").replace("1", "b") for n in range(64)]
    lexicon = Lexicon.of_words(words, AB)
    weights = np.random.default_rng(0).integers(1, 9, 64)
    model = LanguageModel.of_texts(
        [word for word, weight in zip(words, weights, strict=True) for _ in range(weight)], lexicon
    )
    exact = sampled(lexicon, model, 0, "forecast")
    drawn = np.array([sampled(lexicon, model, seed) for seed in range(400)])
    assert len(set(drawn)) > 100
    assert drawn.mean() == pytest.approx(exact, abs=4 * drawn.std() / 20)
    assert sampled(lexicon, model, 7) == sampled(lexicon, model, 7)
    # Whole words are never drawn: hypotheses are judged as by any other mode.
    by = {mode: word_beam(lexicon, model, mode, 4000, nbest=20) for mode in ("sample", "ngrams")}
    outputs = speech(7)
    assert heard(by["sample"], outputs) == heard(by["ngrams"], outputs)


def test_few_words_are_not_drawn():
    words = [f"{n:06b}".replace("0", "a").replace("1", "b") for n in range(19)]
    lexicon = Lexicon.of_words(words, AB)
    model = LanguageModel.of_texts(words, lexicon)
    assert sampled(lexicon, model, 0) == sampled(lexicon, model, 1)
    assert sampled(lexicon, model, 0) == sampled(lexicon, model, 0, "forecast")


# -- pruning -----------------------------------------------------------------------------------


def test_pruning_takes_symbols_away_but_never_the_blank():
    rows = [[0.5, 0.3, 0.15, 0.05], [0.01, 0.02, 0.01, 0.96]]

    def kept(**options):
        numbers = log(rows).numpy().copy()
        Pruning(**options).apply(numbers, AB.blank)
        return np.isfinite(numbers).astype(int).tolist()

    assert kept() == [[1, 1, 1, 1], [1, 1, 1, 1]]
    assert kept(least=0.2) == [[1, 1, 0, 1], [0, 0, 0, 1]]
    assert kept(symbols=1) == [[1, 0, 0, 1], [0, 1, 0, 1]]
    assert kept(sure=0.95) == [[1, 1, 1, 1], [0, 0, 0, 1]]


def test_mild_pruning_finds_the_same_text():
    said = peaks(ENGLISH.encoded("the cat sat"), ENGLISH)
    pruned = replace(WORDS, pruning=Pruning(least=1e-3, symbols=10, sure=0.99))
    for by in (pruned, replace(pruned, decoder="prefix")):
        assert heard(by.build(ENGLISH, TEXTS), said)[0].text == "the cat sat"


@contextmanager
def refusal(said: str):
    """In one line."""
    with pytest.raises(ValueError, match=re.escape(said)) as error:
        yield
    assert "\n" not in str(error.value)


# -- what is said of wrong options -----------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"decoder": "best"}, "decoding.decoder must be one of greedy, prefix, words, not best"),
        ({"mode": "bigram"}, "decoding.mode must be one of words, ngrams, forecast, sample, not"),
        ({"width": 0}, "decoding.width must be 1 or more, not 0"),
        ({"nbest": 0}, "decoding.nbest must be 1 or more, not 0"),
        ({"jobs": -1}, "decoding.jobs must be 1 or more, not -1"),
        ({"alpha": -0.5}, "decoding.alpha must be a number of 0 or more, not -0.5"),
        ({"alpha": math.nan}, "decoding.alpha must be"),
        ({"beta": math.inf}, "decoding.beta must be a number, not inf"),
        ({"lexicon": "words.lst"}, "decoding.lexicon is of use with decoding.decoder=words only"),
        ({"lm": "a.arpa", "decoder": "prefix"}, "decoding.lm is of use with"),
        ({"lm": "a.arpa", "decoder": "words"}, "decoding.lm is not asked with decoding.mode=words"),
    ],
)
def test_wrong_options_are_named(options, said):
    with refusal(said):
        Decoding(**options).check()


@pytest.mark.parametrize(
    ("options", "name"),
    [
        ({"least": -0.1}, "least"), ({"least": 2.0}, "least"), ({"least": math.nan}, "least"),
        ({"sure": 1.5}, "sure"), ({"symbols": -1}, "symbols"),
    ],
)  # fmt: skip
def test_wrong_pruning_is_named(options, name):
    with pytest.raises(ValueError, match=f"^{name} must be"):
        Pruning(**options)


def test_wrong_options_of_searches_are_named():
    lexicon = Lexicon.of_words(["a"], AB)
    model = LanguageModel.of_texts(["a"], lexicon)
    for name in ("width", "nbest", "jobs"):
        for build in (lambda **o: prefix_beam(AB, **o), lambda **o: word_beam(lexicon, **o)):
            with pytest.raises(ValueError, match=f"^{name} must be 1 or more, not 0"):
                build(**{name: 0})
    with pytest.raises(ValueError, match=r"^mode must be one of words, ngrams.*not bigram"):
        word_beam(lexicon, model, "bigram")
    with pytest.raises(ValueError, match=r"^mode=ngrams needs a language model"):
        word_beam(lexicon, mode="ngrams")
    with pytest.raises(ValueError, match=r"^alpha must be"):
        word_beam(lexicon, model, "ngrams", alpha=-1)
    with pytest.raises(ValueError, match=r"^beta must be"):
        word_beam(lexicon, model, "ngrams", beta=math.nan)


def test_outputs_of_another_shape_are_refused():
    for decoder in (Greedy(AB), prefix_beam(AB)):
        for outputs, frames in (
            (torch.zeros(2, 5, 3), [5, 5]),  # symbols
            (torch.zeros(2, 5, 4), [5]),  # utterances
            (torch.zeros(5, 4), [5]),
            (torch.zeros(1, 5, 4), [6]),
            (torch.zeros(1, 5, 4), [-1]),
        ):
            with pytest.raises(ValueError, match=r"outputs .*are \[|frames in outputs of 5"):
                decoder.decode(outputs, frames)


def test_words_without_words_are_refused():
    with pytest.raises(ValueError, match=r"decoder=words needs words.*decoding\.lexicon"):
        WORDS.build(ENGLISH)


def test_a_mode_without_a_model_is_refused(files):
    by = Decoding("words", mode="forecast", lexicon=str(files / "words.lst"))
    with pytest.raises(ValueError, match=r"mode=forecast needs a language model.*decoding\.lm"):
        by.build(ENGLISH)


@pytest.mark.parametrize("option", ["lexicon", "lm"])
@pytest.mark.parametrize("name", ["missing.txt", "missing.arpa", ""])
def test_missing_files_are_named(files, option, name):
    by = Decoding("words", mode="ngrams", **{option: str(files / name)})
    with refusal(str(files / name)):
        by.build(ENGLISH, TEXTS)


@pytest.mark.parametrize("packed", [False, True])
def test_half_an_arpa_file_is_told_in_a_line(files, packed):
    model = Estimation().of([text.split() for text in TEXTS])
    whole = files / ("half.arpa.gz" if packed else "half.arpa")
    arpa.write(whole, model)
    written = whole.read_bytes()
    for size in (len(written) // 2, 3 * len(written) // 4, 0):
        whole.write_bytes(written[:size])
        with refusal(str(whole)):
            Decoding("words", mode="ngrams", lm=str(whole)).build(ENGLISH, TEXTS)


@pytest.mark.parametrize("form", ["model.arpa", "texts.txt"])
def test_a_model_of_other_words_is_refused(files, form):
    by = Decoding("words", mode="ngrams", lm=str(files / form))
    with refusal(f"{files / form} has none of the 3 words of the lexicon"):
        by.build(ENGLISH, ["le chat noir"])
    by.build(ENGLISH, ["le cat noir"])  # one is enough


def test_the_page_names_every_option():
    page = (Path(__file__).parent.parent / "docs" / "decoders.md").read_text()
    for field in fields(Decoding):
        assert f"| `{field.name}` |" in page
    for field in fields(Pruning):
        assert f"| `pruning.{field.name}` |" in page
