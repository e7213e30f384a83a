"""Recordings of people, beside the project: read as they are, by nothing made for them."""

from __future__ import annotations

import pytest
from speaking import REAL

from regatta.data.alphabet import alphabet_of
from regatta.data.checks import Checks
from regatta.data.corpora import Reading, read
from regatta.data.extract import Extraction, extract
from regatta.data.loader import Loader, Loading
from regatta.data.plan import Batching
from regatta.data.survey import survey

DIGITS = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")
FSDD = Reading(
    name="{text}_{speaker}_{index}", words={str(n): word for n, word in enumerate(DIGITS)}
)
YESNO = Reading(name="{text}", words={"0": "no", "1": "yes"})
SETS = [
    ("fsdd/recordings", FSDD, 3000, 6, {"other rate": 3000}),
    ("spoken-digits", Reading(), 2400, 12, {}),
    ("sentences", Reading(), 400, 50, {}),
    ("ljspeech", Reading(), 100, 1, {}),
    ("german", Reading(), 80, 1, {}),
    ("yesno", YESNO, 60, 1, {"other rate": 60}),
    ("mini-an4/an4", Reading(), 7, 5, {"no transcript": 1}),
]

pytestmark = pytest.mark.skipif(not REAL.is_dir(), reason=f"there are no recordings in {REAL}")


@pytest.mark.parametrize(("name", "reading", "number", "speakers", "expected"), SETS)
def test_real_corpora_import_as_they_are(name, reading, number, speakers, expected):
    corpus = read(REAL / name, reading)
    assert len(corpus.utterances) == number
    assert len({utterance.speaker for utterance in corpus.utterances}) == speakers
    corpus.utterances = corpus.utterances[::10] if number > 1000 else corpus.utterances
    looked = survey(corpus, Checks(alphabet_of(u.text for u in corpus.utterances)), thorough=True)
    found = looked.problems.counts()
    short = found.pop("transcript too long for its audio", 0)  # some digits last 0.15 s
    assert short <= 0.01 * number
    assert {kind: expected[kind] // (10 if number > 1000 else 1) for kind in expected} == found


@pytest.mark.parametrize("name", ["german", "mini-an4/an4", "ljspeech"])
def test_real_corpora_become_batches(name, tmp_path):
    corpus = read(REAL / name)
    corpus.utterances = corpus.utterances[:24]
    index = extract(corpus, tmp_path / "features", Extraction(per_shard=8))
    loader = Loader(index, Loading(Batching(size=2, window=2), normalise="speaker"))
    heard = sum(len(batch.numbers) for batch in loader.batches(0))
    assert heard == len(corpus.utterances) // 2 * 2
    assert loader.utterances.problems.counts() == {}
