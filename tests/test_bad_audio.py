"""Bad input: what can be used is used; what cannot is counted and named; nothing crashes.

Every kind is put among good utterances, and the whole way from corpus to batches is gone.
"""

from __future__ import annotations

import errno
import json
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
import soundfile
import torch
from speaking import RATE, manifest, record, tone

from regatta.data import audio, shards
from regatta.data.alphabet import Alphabet
from regatta.data.checks import Checks
from regatta.data.corpora import Reading, read
from regatta.data.extract import Extraction, extract
from regatta.data.loader import Loader, Loading
from regatta.data.manifest import Corpus, Utterance
from regatta.data.plan import Batching
from regatta.data.problems import BadUtterance
from regatta.data.shards import BadShard, open_index
from regatta.data.survey import survey

GOOD = 6


def corpus_with(root: Path, *bad: object):
    """Six good utterances and these rows."""
    rows: list[object] = []
    for n in range(GOOD):
        record(root / f"good{n}.wav", 0.8)
        rows.append({"id": f"good{n}", "audio": f"good{n}.wav", "text": "good", "speaker": "a"})
    return manifest(root, [*rows, *bad])


def row(name: str, **others: object) -> dict[str, object]:
    return {"id": "bad", "audio": name, "text": "bad", "speaker": "b", **others}


def outcome(path: Path, reading: Reading = Reading()) -> dict[str, int]:  # noqa: B008
    """Kinds of problems on the way from a corpus to batches; the good ones always arrive."""
    corpus = read(path, reading)
    looked = survey(corpus, Checks(), thorough=True)
    index = extract(corpus, path.parent / "features", Extraction())
    loader = Loader(index, Loading(Batching(size=1, shuffle=False)))
    heard = [n for batch in loader.batches(0) for n in batch.numbers]
    names = [index.texts("id")[n] for n in heard]
    assert {f"good{n}" for n in range(GOOD)} <= set(names)
    counts = dict(index.problems.counts())
    for kind, number in loader.utterances.problems.counts().items():
        counts[kind] = counts.get(kind, 0) + number
    assert looked.problems.counts() == counts  # validate foretells it
    assert len(names) == len(looked.utterances)
    return counts


# -- audio -----------------------------------------------------------------------------------


def truncated_wav(path: Path) -> None:
    whole = record(path).read_bytes()
    path.write_bytes(whole[: len(whole) // 2])


def truncated_flac(path: Path) -> None:
    whole = record(path).read_bytes()
    path.write_bytes(whole[: len(whole) // 2])


def corrupt_flac(path: Path) -> None:
    whole = bytearray(record(path).read_bytes())
    whole[200:4000] = bytes(3800)
    path.write_bytes(whole)


def lying_flac(path: Path) -> None:
    """Its header promises 2**36 - 1 samples."""
    whole = bytearray(record(path).read_bytes())
    whole[21] |= 0x0F
    whole[22:26] = b"\xff" * 4
    path.write_bytes(whole)


def most(path: Path) -> None:
    whole = record(path, 2.0).read_bytes()
    path.write_bytes(whole[: round(0.8 * len(whole))])


def nearly_all(path: Path) -> None:
    path.write_bytes(record(path, 2.0).read_bytes()[:-5])


def half_after_a_long_comment(path: Path) -> None:
    whole = with_comment(record(path), b"x" * 3000)
    path.write_bytes(whole[: len(whole) // 2])


def with_comment(path: Path, text: bytes) -> bytes:
    whole = path.read_bytes()
    chunk = b"LIST" + len(text).to_bytes(4, "little") + text
    return whole[:12] + chunk + whole[12:]


def text_named_wav(path: Path) -> None:
    path.write_text("this is no audio at all\n" * 50)


def empty(path: Path) -> None:
    path.write_bytes(b"")


def no_samples(path: Path) -> None:
    soundfile.write(path, np.zeros(0, np.float32), RATE)


def silent(path: Path) -> None:
    soundfile.write(path, np.zeros(RATE, np.float32), RATE)


def not_numbers(path: Path) -> None:
    samples = tone(1.0)
    samples[100:110] = np.nan
    soundfile.write(path, samples, RATE, subtype="FLOAT")


def infinite(path: Path) -> None:
    samples = tone(1.0)
    samples[5] = np.inf
    soundfile.write(path, samples, RATE, subtype="FLOAT")


def folder_instead(path: Path) -> None:
    path.mkdir()


def very_short(path: Path) -> None:
    record(path, 0.05)


def very_long(path: Path) -> None:
    record(path, 17.0)


@pytest.mark.parametrize(
    ("make", "name", "kind"),
    [
        (truncated_wav, "bad.wav", "truncated audio"),
        (truncated_flac, "bad.flac", "truncated audio"),
        (corrupt_flac, "bad.flac", "truncated audio"),
        (lying_flac, "bad.flac", "truncated audio"),
        (most, "bad.aiff", "truncated audio"),
        (most, "bad.au", "truncated audio"),
        (most, "bad.ogg", "truncated audio"),
        (nearly_all, "bad.ogg", "truncated audio"),
        (half_after_a_long_comment, "bad.wav", "truncated audio"),
        (text_named_wav, "bad.wav", "unreadable audio"),
        (empty, "bad.wav", "empty audio"),
        (no_samples, "bad.wav", "empty audio"),
        (silent, "bad.wav", "silent audio"),
        (not_numbers, "bad.wav", "broken samples"),
        (infinite, "bad.wav", "broken samples"),
        (folder_instead, "bad.wav", "missing file"),
        (very_short, "bad.wav", "too short"),
        (very_long, "bad.wav", "too long"),
    ],
)
def test_audio_that_cannot_be_used_is_named(tmp_path, make, name, kind):
    make(tmp_path / name)
    assert outcome(corpus_with(tmp_path, row(name))) == {kind: 1}


def stereo(path: Path) -> None:
    both = np.stack([tone(1.0), 0.5 * tone(1.0, 700)], axis=1)
    soundfile.write(path, both, RATE)


def wrong_rate(path: Path) -> None:
    record(path, 1.0, rate=8_000)


def clipped(path: Path) -> None:
    soundfile.write(path, np.clip(20 * tone(1.0), -1, 1), RATE)


@pytest.mark.parametrize(
    ("make", "kind"),
    [(stereo, "several channels"), (wrong_rate, "other rate"), (clipped, "clipped audio")],
)
def test_audio_that_can_be_mended_is_used_and_told(tmp_path, make, kind):
    make(tmp_path / "odd.wav")
    assert outcome(corpus_with(tmp_path, row("odd.wav"))) == {kind: 1}


def test_a_comment_is_no_data(tmp_path):
    path = record(tmp_path / "a.wav")
    path.write_bytes(with_comment(path, b"raw metadata, not so long"[:24]))
    assert len(audio.read(path, RATE).samples) == RATE


def test_a_stream_that_does_not_know_its_length_is_read(tmp_path):
    """As sox writes to a pipe."""
    path = record(tmp_path / "a.wav")
    whole = bytearray(path.read_bytes())
    place = whole.find(b"data") + 4
    whole[place : place + 4] = (0x7FFFF000).to_bytes(4, "little")
    path.write_bytes(whole)
    assert len(audio.read(path, RATE).samples) == RATE


@pytest.mark.parametrize("samples", [1679, 1680, 1681, 1760])
def test_validate_and_the_loader_count_frames_alike(tmp_path, samples):
    soundfile.write(tmp_path / "a.wav", tone(1.0)[:samples], RATE)
    assert outcome(corpus_with(tmp_path, row("a.wav", text="a"))) in ({}, {"too short": 1})


@pytest.mark.parametrize("subtype", ["PCM_16", "PCM_24", "PCM_32", "FLOAT", "DOUBLE", "PCM_U8"])
def test_samples_of_any_width_are_the_same(tmp_path, subtype):
    path = record(tmp_path / "a.wav", subtype=subtype)
    tolerance = 1e-2 if subtype == "PCM_U8" else 1e-4
    found = audio.read(path, RATE)
    np.testing.assert_allclose(found.samples, tone(1.0, 200 + ord("a")), atol=tolerance)
    assert found.notes == ()


def test_other_rates_are_resampled(tmp_path):
    path = record(tmp_path / "a.wav", 1.0, rate=44_100, hertz=440)
    found = audio.read(path, RATE)
    assert len(found.samples) == pytest.approx(RATE, abs=2)
    inner = slice(2000, -2000)
    clean = 0.3 * np.sin(2 * np.pi * 440 * np.arange(RATE) / RATE)
    np.testing.assert_allclose(found.samples[:RATE][inner], clean[inner], atol=0.06)


def test_channels_are_averaged_or_chosen(tmp_path):
    stereo(tmp_path / "s.wav")
    one, other = (audio.read(tmp_path / "s.wav", RATE, channel=n).samples for n in (0, 1))
    both = audio.read(tmp_path / "s.wav", RATE).samples
    np.testing.assert_allclose(both, (one + other) / 2, atol=1e-6)
    with pytest.raises(BadUtterance, match="no such channel"):
        audio.read(tmp_path / "s.wav", RATE, channel=2)


# -- manifests -------------------------------------------------------------------------------


def test_a_missing_file_is_named(tmp_path):
    assert outcome(corpus_with(tmp_path, row("nowhere.wav"))) == {"missing file": 1}


@pytest.mark.parametrize("spelt", [".", "manifest.jsonl", "../c", "inner/.."])
def test_no_path_leaves_the_corpus_however_it_is_spelt(tmp_path, monkeypatch, spelt):
    record(tmp_path / "secret.wav")
    corpus_with(tmp_path / "c", row("../secret.wav"))
    (tmp_path / "c" / "inner").mkdir()
    monkeypatch.chdir(tmp_path / "c")
    assert read(spelt).problems.counts() == {"path outside the corpus": 1}


def test_no_command_runs_that_was_not_allowed(tmp_path):
    mark = tmp_path / "ran"
    command = Utterance("a", f"touch {mark} |", "text")
    corpus = Corpus(tmp_path, [command])
    looked = survey(corpus, Checks(), thorough=True)
    assert looked.problems.counts() == {"command refused": 1}
    with pytest.raises(ValueError, match="command refused"):
        extract(corpus, tmp_path / "f")
    assert not mark.exists()


@pytest.mark.parametrize("escape", ["../secret.wav", "/etc/passwd", "a/../../secret.wav"])
def test_a_path_that_leaves_the_corpus_is_refused(tmp_path, escape):
    record(tmp_path / "secret.wav")
    assert outcome(corpus_with(tmp_path / "c", row(escape))) == {"path outside the corpus": 1}


def test_a_path_that_leaves_the_corpus_can_be_allowed(tmp_path):
    record(tmp_path / "elsewhere.wav", 0.9)
    path = corpus_with(tmp_path / "c", row("../elsewhere.wav"))
    assert outcome(path, Reading(allow_outside=True)) == {}


def test_a_command_that_fails_is_named(tmp_path):
    path = corpus_with(tmp_path, row("echo no >&2; exit 3 |"))
    assert outcome(path, Reading(allow_pipes=True)) == {"command failed": 1}


@pytest.mark.parametrize("text", ["", "   ", "?!", "..."])
def test_an_empty_transcript_is_named(tmp_path, text):
    record(tmp_path / "a.wav")
    assert outcome(corpus_with(tmp_path, row("a.wav", text=text))) == {"empty transcript": 1}


@pytest.mark.parametrize("text", ["1984", "привет", "a & b"])
def test_unknown_symbols_are_named(tmp_path, text):
    record(tmp_path / "a.wav", 2.0)
    assert outcome(corpus_with(tmp_path, row("a.wav", text=text))) == {"unknown symbols": 1}


def test_a_transcript_that_ctc_cannot_write_is_named(tmp_path):
    record(tmp_path / "a.wav", 0.5)  # 50 frames: 20 symbols
    path = corpus_with(tmp_path, row("a.wav", text="abcdefghijklmnopqrstu"))
    assert outcome(path) == {"transcript too long for its audio": 1}


def test_letters_that_are_alike_need_a_blank_between_them(tmp_path):
    record(tmp_path / "a.wav", 0.5)
    fits = corpus_with(tmp_path, row("a.wav", text="abababababababababab"))
    assert outcome(fits) == {}
    fits.write_text(fits.read_text().replace("abababababababababab", "aabbaabbaabbaabbaabb"))
    assert outcome(fits) == {"transcript too long for its audio": 1}


def test_a_duplicate_id_is_used_once(tmp_path):
    record(tmp_path / "a.wav")
    assert outcome(corpus_with(tmp_path, row("a.wav", id="good1"))) == {"duplicate id": 1}


@pytest.mark.parametrize(
    "line",
    [
        '{"id": "x", "audio": ',
        "[1, 2]",
        '{"id": "x"}',
        '{"id": 7, "audio": "a.wav"}',
        '{"id": "x", "audio": "a.wav", "start": -1}',
        '{"id": "x", "audio": "a.wav", "duration": "long"}',
        '{"id": "x", "audio": "a.wav", "duration": NaN}',
        '{"id": "x", "audio": "a.wav", "text": 5}',
        '{"id": "x", "audio": "a.wav", "words": [[1, 2]]}',
        '{"id": "x", "audio": "a.wav", "colour": "red"}',
        '{"id": "x", "audio": "a.wav", "channel": "a"}',
        '{"id": "x", "audio": "a.wav", "channel": 0.5}',
        '{"id": "x", "audio": "a.wav", "channel": -1}',
        '{"id": "x", "audio": "a.wav", "words": 5}',
        '{"id": "x", "audio": "a.wav", "start": 1e306}',
        '{"id": "x", "audio": "a.wav", "start": ' + "9" * 400 + "}",
        '{"id": "x", "audio": "a\\u0000.wav"}',
        "[" * 100_000,
    ],
)
def test_a_broken_line_is_named(tmp_path, line):
    assert outcome(corpus_with(tmp_path, line)) == {"broken line": 1}


def test_names_that_no_file_can_have_are_named(tmp_path):
    bad = row("x" * 300 + ".wav"), row("y.wav", id="\ud800")
    assert outcome(corpus_with(tmp_path, *bad)) == {"not UTF-8": 1, "unreadable file": 1}


def test_times_may_be_written_as_texts(tmp_path):
    record(tmp_path / "a.wav", 2.0)
    path = corpus_with(tmp_path, row("a.wav", start="0.5", duration="1.0"))
    assert outcome(path) == {}
    assert read(path).utterances[-1].duration == 1.0


def test_nothing_said_is_as_good_as_a_default(tmp_path):
    record(tmp_path / "a.wav")
    plain = row("a.wav", start=None, duration=None, words=None, channel=None)
    assert outcome(corpus_with(tmp_path, plain)) == {}


def test_a_line_that_is_not_utf8_is_named(tmp_path):
    path = corpus_with(tmp_path)
    latin = '{"id": "x", "audio": "a.wav", "text": "caf\xe9"}\n'.encode("latin-1")
    path.write_bytes(path.read_bytes() + latin)
    assert outcome(path) == {"not UTF-8": 1}


@pytest.mark.parametrize(
    ("times", "kind"),
    [
        ({"start": 5.0}, "bad segment"),
        ({"start": 0.5, "duration": 3.0}, "bad segment"),
        ({"start": 0.2, "duration": 0.0}, "bad segment"),
        ({"duration": 3.0}, "other duration"),  # the recording's own end is believed
    ],
)
def test_segments_outside_their_recording_are_named(tmp_path, times, kind):
    record(tmp_path / "a.wav")
    assert outcome(corpus_with(tmp_path, row("a.wav", **times))) == {kind: 1}


def test_a_corpus_of_nothing_usable_says_why(tmp_path):
    empty(tmp_path / "bad.wav")
    corpus = read(manifest(tmp_path, [row("bad.wav")]))
    with pytest.raises(ValueError, match=r"no utterance could be used \(1 x empty audio\)"):
        extract(corpus, tmp_path / "f")


def test_fuzzed_files_never_crash(tmp_path):
    """Bytes changed anywhere: a recording or a problem, nothing else."""
    random = np.random.default_rng(1)
    for suffix in (".wav", ".flac", ".ogg"):
        whole = record(tmp_path / f"w{suffix}", 0.3).read_bytes()
        for number in range(60):
            changed = bytearray(whole)
            for place in random.integers(0, len(changed), 1 + number % 8):
                changed[place] = random.integers(256)
            path = tmp_path / f"fuzzed{suffix}"
            path.write_bytes(changed[: random.integers(1, len(changed) + 1)])
            with suppress(BadUtterance):
                assert np.isfinite(audio.read(path, RATE).samples).all()


# -- features on disk ------------------------------------------------------------------------


def features_of(root: Path):
    corpus = read(corpus_with(root))
    return extract(corpus, root / "f", Extraction(per_shard=2))


def drain(index) -> None:
    list(Loader(index, Loading(Batching(size=1))).batches(0))


@pytest.mark.parametrize("place", [0.02, 0.3, 0.5, 0.9, 0.999])
def test_a_flipped_byte_in_a_shard_is_found(tmp_path, place):
    index = features_of(tmp_path)
    path = tmp_path / "f" / "shard-00001.arrow"
    whole = bytearray(path.read_bytes())
    whole[int(place * len(whole))] ^= 1
    path.write_bytes(whole)
    with pytest.raises(BadShard, match=r"shard-00001\.arrow has changed .* remove it and run"):
        drain(index)
    again = extract(read(tmp_path), tmp_path / "f", Extraction(per_shard=2))  # as it was told
    drain(again)


def test_a_line_that_broke_since_is_told(tmp_path):
    features_of(tmp_path)
    path = tmp_path / "manifest.jsonl"
    path.write_text(path.read_text() + '{"id": broken\n')
    again = extract(read(tmp_path), tmp_path / "f", Extraction(per_shard=2))
    assert again.problems.counts() == {"broken line": 1}


def test_files_of_others_are_not_taken_for_ours(tmp_path):
    corpus = read(corpus_with(tmp_path))
    for name in ("shard-train.arrow", "shard-00000.arrow"):
        folder = tmp_path / name[:8]
        folder.mkdir()
        (folder / name).write_text("precious")
        with pytest.raises(ValueError, match="not empty"):
            extract(corpus, folder)
        assert (folder / name).read_text() == "precious"


@pytest.mark.parametrize(
    "name", ["index.arrow", "sums.arrow", "shard-00002.arrow", "problems.jsonl"]
)
@pytest.mark.parametrize("damage", ["gone", "flipped", "cut"])
def test_damaged_files_are_found_and_made_again(tmp_path, name, damage):
    features_of(tmp_path)
    path = tmp_path / "f" / name
    whole = bytearray(path.read_bytes()) or bytearray(b"{}")
    if damage == "gone":
        path.unlink()
    elif damage == "flipped":
        whole[len(whole) // 2] ^= 8
        path.write_bytes(whole)
    else:
        path.write_bytes(whole[: len(whole) // 2] + b"." * (name == "problems.jsonl"))
    with pytest.raises(BadShard, match=name):
        drain(open_index(tmp_path / "f"))
    drain(extract(read(tmp_path), tmp_path / "f", Extraction(per_shard=2)))


def test_features_without_their_marker_are_not_finished(tmp_path):
    features_of(tmp_path)
    (tmp_path / "f" / shards.MARKER).unlink()
    with pytest.raises(BadShard, match="never finished"):
        open_index(tmp_path / "f")
    with pytest.raises(BadShard, match="no features in"):
        open_index(tmp_path)


@pytest.mark.parametrize(
    "text", ["{", "[]", '{"regatta_features": 99}', "{}", '{"regatta_features": 1}']
)
def test_a_marker_of_something_else_is_refused_and_made_again(tmp_path, text):
    features_of(tmp_path)
    (tmp_path / "f" / shards.MARKER).write_text(text)
    with pytest.raises(BadShard):
        open_index(tmp_path / "f")
    drain(extract(read(tmp_path), tmp_path / "f", Extraction(per_shard=2)))


def test_a_full_disk_loses_nothing_that_was_done(tmp_path, monkeypatch):
    corpus = read(corpus_with(tmp_path))
    real = shards.write_aside
    written: list[str] = []

    def full_after_one(path: Path, content: bytes) -> None:
        if path.name.startswith("shard-") and written:
            raise OSError(errno.ENOSPC, f"cannot write {path}: No space left on device")
        written.append(path.name)
        real(path, content)

    monkeypatch.setattr(shards, "write_aside", full_after_one)
    with pytest.raises(ValueError, match="No space left on device: make room and run the same"):
        extract(corpus, tmp_path / "f", Extraction(per_shard=2))
    monkeypatch.setattr(shards, "write_aside", real)
    stamp = (tmp_path / "f" / "shard-00000.arrow").stat().st_mtime_ns
    drain(extract(corpus, tmp_path / "f", Extraction(per_shard=2)))
    assert (tmp_path / "f" / "shard-00000.arrow").stat().st_mtime_ns == stamp


def test_a_disk_that_is_really_full(tmp_path):
    """/dev/full refuses every byte, as a full disk does."""
    if not Path("/dev/full").exists():
        pytest.skip("this system has no /dev/full")
    link = tmp_path / "shard.arrow.partial"
    link.symlink_to("/dev/full")
    with pytest.raises(OSError, match="cannot write"):
        shards.write_aside(tmp_path / "shard.arrow", b"x" * 100_000)
    assert not (tmp_path / "shard.arrow").exists()


def test_a_folder_with_something_else_in_it_is_left_alone(tmp_path):
    corpus = read(corpus_with(tmp_path))
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").write_text("years of work")
    with pytest.raises(ValueError, match=r"not empty \(thesis\.txt\)"):
        extract(corpus, tmp_path / "mine")


# -- texts -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "written"),
    [
        ("Hello, World!", "hello world"),
        ("don’t", "don't"),
        ("l’été à Zürich", "l'ete a zurich"),
        ("well-known – and   wide", "well known and wide"),
        ("Straße", "strasse"),
        ("'tis", "'tis"),
        ("an ' alone", "an alone"),
    ],
)
def test_texts_are_brought_to_the_alphabet(text, written):
    assert Alphabet().normalised(text) == written


def test_numbers_of_symbols_lead_back_to_the_text():
    alphabet = Alphabet()
    assert alphabet.decoded(alphabet.encoded("it's ok")) == "it's ok"
    with pytest.raises(ValueError, match="names every symbol once"):
        Alphabet("aab")


def test_targets_are_the_texts(tmp_path):
    loader = Loader(features_of(tmp_path), Loading(Batching(size=2, shuffle=False)))
    batch = next(loader.batches(0))
    texts = [Alphabet().decoded(row[row >= 0].tolist()) for row in batch.targets]
    assert texts == ["good", "good"]
    assert batch.symbols.tolist() == [4, 4]
    assert torch.equal((batch.targets >= 0).sum(1), batch.symbols)


def test_problems_are_kept_beside_the_features(tmp_path):
    extract(read(corpus_with(tmp_path, row("nowhere.wav"))), tmp_path / "f")
    (line,) = (tmp_path / "f" / shards.PROBLEMS).read_text().splitlines()
    assert json.loads(line)["where"] == "bad"
