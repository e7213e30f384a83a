"""Error rates of a corpus, and how they are shown."""

from __future__ import annotations

import json
import random
import time
from functools import cache

import jiwer
import pytest
from hypothesis import given
from hypothesis import strategies as st

from regatta.decode.errors import Comparison, ErrorRates, Pair
from regatta.decode.listing import confusions, listing, report, table

TEXTS = st.lists(st.sampled_from(["a", "b", "c", "dd", "e'e"]), max_size=6).map(" ".join)
PAIRS = st.lists(st.builds(Pair, TEXTS, TEXTS, st.sampled_from(["", "ann", "bob"])), max_size=8)


def fewest_edits(one, other):
    """By the definition, every alignment tried."""

    @cache
    def of(i, j):
        if i == len(one) or j == len(other):
            return len(one) - i + len(other) - j
        return min(of(i + 1, j) + 1, of(i, j + 1) + 1, of(i + 1, j + 1) + (one[i] != other[j]))

    return of(0, 0)


@given(PAIRS)
def test_edits_are_the_fewest_that_there_are(pairs):
    rates = ErrorRates.of(pairs)
    split = [(p.reference.split(), p.hypothesis.split()) for p in pairs]
    assert rates.word_edits == sum(fewest_edits(a, b) for a, b in split)
    assert rates.character_edits == sum(fewest_edits(p.reference, p.hypothesis) for p in pairs)
    assert rates.words == sum(len(a) for a, _ in split)
    assert rates.correct + rates.substituted + rates.inserted == sum(len(b) for _, b in split)


@given(PAIRS.filter(bool))
def test_rates_are_those_of_jiwer(pairs):
    said, heard = [p.reference for p in pairs], [p.hypothesis for p in pairs]
    rates, theirs = ErrorRates.of(pairs), jiwer.process_words(said, heard)
    assert rates.wer == pytest.approx(theirs.wer)
    assert rates.cer == pytest.approx(jiwer.process_characters(said, heard).cer)
    assert (rates.correct, rates.substituted) == (theirs.hits, theirs.substitutions)
    assert (rates.deleted, rates.inserted) == (theirs.deletions, theirs.insertions)


@given(PAIRS, st.randoms())
def test_the_order_of_utterances_changes_nothing(pairs, chance):
    mixed = list(pairs)
    chance.shuffle(mixed)
    assert ErrorRates.of(pairs) == ErrorRates.of(mixed)
    assert Comparison.of(pairs).to_json() == Comparison.of(mixed).to_json()


@given(PAIRS)
def test_an_alignment_holds_every_word_once(pairs):
    for alignment in Comparison.of(pairs).alignments:
        steps = list(alignment)
        assert [s.reference for s in steps if s.reference] == alignment.pair.reference.split()
        assert [s.hypothesis for s in steps if s.hypothesis] == alignment.pair.hypothesis.split()
        assert all((s.kind == "equal") == (s.reference == s.hypothesis) for s in steps)


def test_a_corpus_is_summed_before_it_is_divided():
    pairs = [Pair("a", "b"), Pair("a b c d e f g h i", "a b c d e f g h i")]
    assert ErrorRates.of(pairs).wer == pytest.approx(0.1)  # not the mean of 1 and 0


def test_the_two_character_error_rates():
    rates = ErrorRates.of([Pair("ab", "abcd"), Pair("abcdefgh", "abcdefgh")])
    assert rates.cer == pytest.approx(2 / 10)
    assert rates.cer_longer == pytest.approx((2 / 4 + 0) / 2)


@pytest.mark.parametrize(
    ("said", "heard", "wer", "cer", "longer"),
    [
        ("", "", 0, 0, 0),
        ("a b", "", 1, 1, 1),
        ("", "a b", 2, 3, 1),  # nothing to divide by: the insertions themselves
        ("a", "a b c d", 3, 6, 6 / 7),  # not clipped
        (" a \t b\n", "a b", 0, 0, 0),
    ],
)
def test_texts_that_are_empty_or_too_long(said, heard, wer, cer, longer):
    rates = ErrorRates.of([Pair(said, heard)])
    assert (rates.wer, rates.cer, rates.cer_longer) == pytest.approx((wer, cer, longer))


def test_no_utterances_have_no_errors():
    comparison = Comparison.of([])
    assert comparison.rates.wer == comparison.rates.cer_longer == comparison.rates.cer == 0
    assert "Sum/Avg" in report(comparison)


SOME = [
    Pair("the quick brown fox", "the quack brown the fox", "ann", "u1"),
    Pair("the dog", "dog", "bob", "u2"),
    Pair("quick dog", "quack dog", "bob", "u3"),
]


def test_a_table_has_a_row_a_speaker_and_a_sum():
    lines = table(Comparison.of(SOME)).splitlines()
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    assert cells[0] == ["speaker", "Snt", "Wrd", "Corr", "Sub", "Del", "Ins", "Err", "S.Err"]
    assert cells[2] == ["ann", "1", "4", "75.0", "25.0", "0.0", "25.0", "50.0", "100.0"]
    assert cells[3] == ["bob", "2", "4", "50.0", "25.0", "25.0", "0.0", "50.0", "100.0"]
    assert cells[4] == ["Sum/Avg", "3", "8", "62.5", "25.0", "12.5", "12.5", "50.0", "100.0"]
    assert len(set(map(len, lines))) == 1
    assert len(table(Comparison.of([Pair("a", "a")])).splitlines()) == 3  # nobody is named


def test_what_was_heard_stands_under_what_was_said():
    assert listing(Comparison.of(SOME).alignments[:2]).splitlines() == [
        "id: (u1, ann)",
        "Scores: (#C #S #D #I) 3 1 0 1",
        "REF:  the QUICK brown *** fox",
        "HYP:  the QUACK brown THE fox",
        "Eval:     S           I",
        "",
        "id: (u2, bob)",
        "Scores: (#C #S #D #I) 1 0 1 0",
        "REF:  THE dog",
        "HYP:  *** dog",
        "Eval: D",
    ]


def test_what_is_confused_is_counted():
    assert confusions(Comparison.of(SOME)).splitlines() == [
        "substitutions: 2, 1 different",
        "     2  quick ==> quack",
        "",
        "deletions: 1, 1 different",
        "     1  the",
        "",
        "insertions: 1, 1 different",
        "     1  the",
    ]
    comparison = Comparison.of([*SOME, Pair("x y", "y x"), Pair("=> b", "c b")])
    assert "     1  => ==> c" in confusions(comparison)
    assert confusions(comparison, 0).count("\n") == 4


def test_one_line_as_icefall_writes_it():
    assert str(ErrorRates.of(SOME)) == "%WER 50.00 [4 / 8, 1 ins, 1 del, 2 sub ]"


def test_everything_is_in_the_json_form_and_the_report():
    comparison = Comparison.of(SOME)
    told = json.loads(json.dumps(comparison.to_json()))
    assert told["wer"] == 0.5
    assert told["substitutions"] == [["quick", "quack", 2]]
    assert told["deletions"] == told["insertions"] == [["the", 1]]
    assert told["speakers"]["bob"]["words"] == 4
    text = report(comparison)
    for part in (str(comparison.rates), table(comparison), "quick ==> quack", "HYP:  *** dog"):
        assert part in text


def test_ten_thousand_utterances_take_about_a_second():
    chance = random.Random(0)
    words = [f"w{n}" for n in range(2000)]
    said = [chance.choices(words, k=18) for _ in range(10_000)]
    pairs = [
        Pair(" ".join(text), " ".join(w if chance.random() > 0.2 else "oh" for w in text), f"s{n}")
        for n, text in enumerate(said)
    ]
    began = time.process_time()
    comparison = Comparison.of(pairs)
    assert 0.19 < comparison.rates.wer < 0.21
    assert comparison.confusions
    assert time.process_time() - began < 4  # 0.8 s on a quiet machine
