"""What holds of every decoder, whatever is put out."""

from __future__ import annotations

import math

import pytest
import torch
from decoding import (
    AB,
    ALPHABETS,
    APART,
    NO_SPACE,
    alphabets,
    decoders,
    heard,
    lexicons,
    model_of,
    peaks,
    speech,
)
from hypothesis import given, settings
from hypothesis import strategies as st

from regatta.data.alphabet import Alphabet
from regatta.decode.beam import prefix_beam
from regatta.decode.greedy import Greedy
from regatta.decode.language import LanguageModel
from regatta.decode.lexicon import Lexicon
from regatta.decode.outputs import Pruning
from regatta.decode.rules import MODES
from regatta.decode.words import word_beam

SOME = settings(max_examples=80, deadline=None)
seeds = st.integers(0, 2**31)
peakiness = st.floats(0, 8)


def all_decoders(alphabet=AB, words=("a", "ab", "bab", "bb"), **options):
    lexicon = Lexicon.of_words(words, alphabet)
    model = model_of(lexicon)
    yield Greedy(alphabet)
    yield prefix_beam(alphabet, 8, **options)
    for mode in MODES:
        yield word_beam(lexicon, model, mode, 8, **options)


# -- texts -----------------------------------------------------------------------------------


@SOME
@given(
    st.data(), alphabets, st.sampled_from(MODES), st.integers(1, 9), st.integers(1, 5),
    st.integers(0, 30), seeds, peakiness, st.booleans(),
)  # fmt: skip
def test_no_word_is_written_that_is_not_in_the_lexicon(
    data, alphabet, mode, width, nbest, frames, seed, peaky, pruned
):
    lexicon = data.draw(lexicons(alphabet))
    pruning = Pruning(least=1e-2, symbols=2, sure=0.9) if pruned else Pruning()
    decoder = word_beam(
        lexicon, model_of(lexicon), mode, width, nbest=nbest, pruning=pruning, beta=4.0
    )
    for told in heard(decoder, speech(frames, alphabet, seed, peaky)):
        assert set(told.text.split()) <= set(lexicon.words)
        assert [word.text for word in told.words] == told.text.split()


@SOME
@given(st.data(), alphabets, st.integers(0, 25), seeds, peakiness)
def test_hypotheses_are_distinct_and_sorted_and_add_up(data, alphabet, frames, seed, peaky):
    found = heard(data.draw(decoders(alphabet, nbest=6)), speech(frames, alphabet, seed, peaky))
    assert 1 <= len(found) <= 6
    assert len({told.text for told in found}) == len(found)
    assert [told.score for told in found] == sorted((t.score for t in found), reverse=True)
    for told in found:
        assert told.score == told.acoustic + told.language
        assert math.isfinite(told.score)
        assert told.acoustic <= 1e-9


def test_as_many_hypotheses_are_told_as_there_are():
    every = heard(prefix_beam(AB, 50, nbest=50), speech(3))
    assert heard(prefix_beam(AB, 50, nbest=4), speech(3)) == every[:4]
    assert len(every) > 10


@pytest.mark.parametrize("alphabet", ALPHABETS)
def test_a_minute_of_guesses_does_not_underflow(alphabet):
    """A minute, of 50 frames a second; a chance of 1 to 4 a frame is 1e-1800 in the end."""
    flat = torch.full((3000, alphabet.outputs), -math.log(alphabet.outputs), dtype=torch.float64)
    for decoder in all_decoders(alphabet):
        for outputs in (flat, speech(3000, alphabet)):
            (told,) = heard(decoder, outputs)
            assert math.isfinite(told.score)
            assert told.acoustic <= 0
            assert told.score == told.acoustic + told.language


def test_a_minute_of_clear_speech_is_understood():
    alphabet = Alphabet(separator="~")
    words = ["the", "moss", "on", "all", "those", "tall", "trees", "is", "still", "green"]
    said = (words * 12)[:110]
    symbols = [n for n in alphabet.encoded(" ".join(said)) for _ in range(3)]
    symbols += [alphabet.blank] * (3000 - len(symbols))
    outputs = peaks(symbols, alphabet, 0.999)
    lexicon = Lexicon.of_words([*words, "these", "tree", "green's"], alphabet)
    model = LanguageModel.of_texts([" ".join(words)], lexicon)
    every = [Greedy(alphabet), prefix_beam(alphabet)]
    every += [word_beam(lexicon, model, mode) for mode in MODES]
    for decoder in every:
        (told,) = heard(decoder, outputs)
        assert told.text.split() == said
        assert told.acoustic > -math.inf


# -- what must not matter -----------------------------------------------------------------------


@SOME
@given(st.data(), alphabets, st.integers(0, 12), st.integers(0, 12), seeds)
def test_padding_never_matters(data, alphabet, short, more, seed):
    decoder = data.draw(decoders(alphabet, nbest=3))
    long = speech(short + more, alphabet, seed)
    padded = torch.full_like(long, float("nan"))
    padded[:short] = long[:short]
    found = decoder.decode(torch.stack((padded, long)), torch.tensor([short, short + more]))
    assert found == [heard(decoder, long[:short]), heard(decoder, long)]


@SOME
@given(st.data(), alphabets, st.lists(st.integers(0, 9), max_size=6), seeds, peakiness)
def test_a_stream_in_pieces_is_the_whole(data, alphabet, pieces, seed, peaky):
    decoder = data.draw(decoders(alphabet, nbest=3))
    outputs = speech(sum(pieces), alphabet, seed, peaky)
    listener = decoder.listen()
    for piece in outputs.split(pieces):
        best = listener.step(piece)
    found = listener.finish()
    assert found == heard(decoder, outputs)
    if isinstance(decoder, Greedy) and pieces:
        assert best == found[0]


def test_a_stream_tells_what_was_said_so_far():
    text = "ab bab"
    symbols = AB.encoded(text)
    for decoder in all_decoders():
        listener = decoder.listen()
        told = [listener.step(peaks([symbol], AB)).text for symbol in symbols]
        assert told == ["a", "ab", "ab", "ab b", "ab ba", "ab bab"]


def test_long_streams_forget_what_no_beam_comes_of():
    """More rows than the table has at first: it is swept, and grows."""
    lexicon = Lexicon.of_words(["a", "ab", "bab"], AB)
    decoder = word_beam(lexicon, model_of(lexicon), "forecast", 3, nbest=3)
    outputs = speech(2000, seed=3)
    listener = decoder.listen()
    for piece in outputs.split(7):
        listener.step(piece)
    assert listener.finish() == heard(decoder, outputs)
    assert len(listener._rows) < 2000


def test_threads_change_nothing():
    outputs = torch.stack([speech(40, seed=seed) for seed in range(6)])
    frames = [40, 3, 0, 17, 40, 25]
    for one, two in zip(all_decoders(nbest=3), all_decoders(nbest=3, jobs=2), strict=True):
        assert one.decode(outputs, frames) == two.decode(outputs, frames)


# -- outputs that say nothing -----------------------------------------------------------------


@pytest.mark.parametrize("alphabet", ALPHABETS)
@pytest.mark.parametrize("value", [math.nan, -math.inf])
def test_outputs_of_nothing_are_empty_texts(alphabet, value):
    nothing = torch.full((5, alphabet.outputs), value)
    for decoder in all_decoders(alphabet, nbest=3):
        (told,) = heard(decoder, nothing)
        assert (told.text, told.words) == ("", ())
        assert math.isfinite(told.score)


@pytest.mark.parametrize("value", [math.nan, -math.inf])
def test_a_frame_of_nothing_is_passed_over(value):
    outputs = speech(8, seed=5)
    broken = torch.cat((outputs[:4], torch.full((1, AB.outputs), value), outputs[4:]))
    for decoder in all_decoders(nbest=3):
        kept = [(told.text, told.score) for told in heard(decoder, outputs)]
        assert [(told.text, told.score) for told in heard(decoder, broken)] == kept


def test_a_symbol_that_is_no_number_is_impossible():
    outputs = speech(6, seed=2)
    outputs[:, 0] = math.nan
    for decoder in all_decoders(nbest=3):
        assert all("a" not in told.text for told in heard(decoder, outputs))


def test_no_frames_and_no_utterances():
    for alphabet in ALPHABETS:
        for decoder in all_decoders(alphabet):
            (told,) = heard(decoder, torch.zeros(0, alphabet.outputs))
            assert (told.text, told.score, told.words) == ("", 0.0, ())
            assert decoder.decode(torch.zeros(0, 7, alphabet.outputs), []) == []
            assert decoder.listen().finish() == [told]


def test_the_end_of_silence_is_judged_where_ends_are():
    lexicon = Lexicon.of_words(["a"], AB)
    model = model_of(lexicon)
    (told,) = heard(word_beam(lexicon, model, "ngrams", ends=True), torch.zeros(0, 4))
    assert told.text == ""
    assert told.language < 0


# -- when words are said ---------------------------------------------------------------------


@SOME
@given(st.data(), alphabets, st.integers(1, 25), seeds, peakiness)
def test_words_follow_each_other_within_the_utterance(data, alphabet, frames, seed, peaky):
    for told in heard(
        data.draw(decoders(alphabet, nbest=4)), speech(frames, alphabet, seed, peaky)
    ):
        latest = 0
        for word in told.words:
            assert latest <= word.start < word.end <= frames
            latest = word.end


@pytest.mark.parametrize("alphabet", [AB, APART])
def test_words_are_timed_where_they_are_heard(alphabet):
    a, b, space, blank = 0, 1, 2, alphabet.blank
    symbols = [blank, a, a, blank, b, blank, space, space, blank, b, a, a, b, b, blank, blank]
    outputs = peaks(symbols, alphabet, 0.99)
    for decoder in all_decoders(alphabet, words=("ab", "bab", "a", "b")):
        (told,) = heard(decoder, outputs)
        assert [(word.text, word.start, word.end) for word in told.words] == [
            ("ab", 1, 5),
            ("bab", 9, 14),
        ]


def test_a_word_is_timed_without_a_space_in_the_alphabet():
    for decoder in all_decoders(NO_SPACE, words=("ab", "bab")):
        (told,) = heard(decoder, peaks([2, 0, 1, 1, 2], NO_SPACE, 0.99))
        assert [(word.text, word.start, word.end) for word in told.words] == [("ab", 1, 4)]
