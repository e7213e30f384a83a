"""`regatta transcribe`: recordings of all kinds to texts, times and subtitles."""

from __future__ import annotations

import json
import re
import resource
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import soundfile
import torch
from real import command
from recognising import NETWORK, WORDS, another, recorded, regatta, said
from speaking import REAL

from regatta import checkpoint
from regatta.data import audio
from regatta.data.problems import BadUtterance, Problem
from regatta.decode.decoding import Decoding
from regatta.decode.greedy import Greedy
from regatta.recognise.cutting import Cutting, pieces
from regatta.recognise.forms import cues, subtitles, written
from regatta.recognise.options import decoding_of
from regatta.recognise.trained import Trained
from regatta.recognise.transcribing import Transcriber
from regatta.recognise.transcripts import Guess, Part, Spoken, Transcript

LONG = " ".join(WORDS * 8)  # 27 s: several pieces


# -- texts and times --------------------------------------------------------------------------


def test_a_recording_is_written_down(tones, tmp_path):
    done = regatta("transcribe", tones, recorded(tmp_path / "a.wav", "cab ace"), "-j", 1)
    assert (done.code, done.out) == (0, "cab ace\n")
    assert re.search(r"1 recording: 1\.0 s of audio in .* s, real-time factor \d", done.err)


def test_any_rate_and_any_channels_will_do_and_it_is_said_once(tones, tmp_path):
    for name, channels in (("a.flac", 2), ("b.ogg", 1), ("c.wav", 3)):
        recorded(tmp_path / name, "dace bad", 44_100, channels)
    done = regatta("transcribe", tones, tmp_path, "-j", 1)
    assert done.out.splitlines() == [
        f"{tmp_path / n}\tdace bad" for n in ("a.flac", "b.ogg", "c.wav")
    ]
    assert done.err.count("other rate (44100 Hz): it is resampled") == 1
    assert done.err.count("several channels") == 1


def test_words_have_times_of_the_whole_recording(tones, tmp_path):
    done = regatta("transcribe", tones, recorded(tmp_path / "a.wav", LONG), "-f", "json", "-j", 1)
    told = json.loads(done.out)
    assert told["text"] == LONG
    assert told["seconds"] == pytest.approx(len(said(LONG)) / 16_000, abs=1e-3)
    assert told["file"] == str(tmp_path / "a.wav")
    assert "nbest" not in told
    when = 0.05
    for word, text in zip(told["words"], LONG.split(), strict=True):
        assert word["word"] == text
        assert word["start"] == pytest.approx(when, abs=0.1)
        when += 0.09 * len(text)
        assert word["end"] == pytest.approx(when, abs=0.12)
        when += 0.33


def test_it_is_the_recogniser_of_the_python_interface(trained, tmp_path):
    path = recorded(tmp_path / "a.wav", "bead bad")
    outputs, frames = trained.outputs([trained.described(audio.read(path, 16_000).samples)])
    whole = Greedy(trained.alphabet).decode(outputs, frames)[0][0]
    [found] = Transcriber(trained, Greedy(trained.alphabet)).transcribe([path])
    assert found.text == whole.text
    assert found.guesses[0].score == pytest.approx(whole.score, abs=1e-4)


def test_files_do_not_depend_on_those_beside_them(trained, tmp_path):
    texts = ["bad", LONG, "ace cab bead", "dace"]
    paths = [recorded(tmp_path / f"{n}.wav", text) for n, text in enumerate(texts)]
    together = list(Transcriber(trained, Greedy(trained.alphabet)).transcribe(paths))
    assert [one.text for one in together] == texts
    for path, one in zip(paths, together, strict=True):
        [alone] = Transcriber(trained, Greedy(trained.alphabet)).transcribe([path])
        assert alone.words == one.words
        assert alone.guesses[0].score == pytest.approx(one.guesses[0].score, abs=1e-3)


def test_threads_change_nothing(trained, tmp_path):
    paths = [recorded(tmp_path / f"{n}.wav", " ".join(WORDS[: n % 5 + 1])) for n in range(40)]
    greedy = Greedy(trained.alphabet)
    alone = list(Transcriber(trained, greedy).transcribe(paths))
    assert list(Transcriber(trained, greedy, jobs=3).transcribe(paths)) == alone
    assert [one.text for one in alone] == [" ".join(WORDS[: n % 5 + 1]) for n in range(40)]


def test_several_texts_are_told_best_first(tones, tmp_path):
    path = recorded(tmp_path / "a.wav", LONG)
    done = regatta("transcribe", tones, path, "-f", "json", "--nbest", 3, "--decoder", "prefix",
                   "--width", 8, "-j", 1)  # fmt: skip
    told = json.loads(done.out)
    assert told["nbest"][0] == {"text": told["text"], "score": told["score"]}
    assert told["text"] == LONG
    assert len({guess["text"] for guess in told["nbest"]}) == 3
    scores = [guess["score"] for guess in told["nbest"]]
    assert scores == sorted(scores, reverse=True)


def test_the_best_of_a_whole_are_the_best_choices_of_its_parts():
    first = Part(0, 1, (), (Guess("a", -1.0), Guess("b", -1.5)))
    second = Part(1, 2, (), (Guess("", -1.0), Guess("c", -3.0)))
    whole = Transcript("x", 2.0, (first, second), nbest=3)
    assert whole.guesses == [Guess("a", -2.0), Guess("b", -2.5), Guess("a c", -4.0)]


def test_words_of_a_lexicon_and_a_language_model(tones, tmp_path):
    path, lexicon, texts = (tmp_path / name for name in ("a.wav", "words", "texts"))
    recorded(path, "cab ace")
    lexicon.write_text("cab\nface\nace\nнет\n")
    texts.write_text("cab ace\ncab face\n")
    options = ("--lexicon", lexicon, "--width", 8, "-j", 1)
    done = regatta("transcribe", tones, path, *options)
    assert done.out == "cab ace\n"
    assert "1 x unknown symbols" in done.err
    assert regatta("transcribe", tones, path, *options, "--lm", texts).out == "cab ace\n"
    arpa = tmp_path / "lm.arpa"
    assert regatta("language-model", texts, "-o", arpa).code == 0
    for mode in ("ngrams", "forecast"):
        assert regatta("transcribe", tones, path, *options, "--lm", arpa, "--mode", mode).out


def test_a_recording_is_one_speaker_where_speakers_were_normalised(tones, tmp_path):
    """Twice as loud is the same then, in every piece."""
    network = NETWORK
    path = another(tmp_path / "m.safetensors", tones, network, normalise="speaker")
    tensors, about = checkpoint.load_answer(Trained.open(tones).origin)
    about["description"]["normalise"] = "speaker"
    checkpoint.save_answer(path, tensors, about)
    trained = Trained.open(path)
    for name, gain in (("soft.wav", 0.2), ("loud.wav", 1.0)):
        soundfile.write(tmp_path / name, gain * said(LONG), 16_000, subtype="FLOAT")
    files = [tmp_path / "soft.wav", tmp_path / "loud.wav"]
    soft, loud = Transcriber(trained, Greedy(trained.alphabet)).transcribe(files)
    assert len(loud.parts) > 1
    assert soft.words == loud.words
    assert soft.guesses[0].score == pytest.approx(loud.guesses[0].score, rel=1e-3)


# -- cutting ----------------------------------------------------------------------------------


def cut(samples: np.ndarray, block: int = 10_000, rate: int = 1000) -> list[tuple[int, np.ndarray]]:
    blocks = (samples[at : at + block] for at in range(0, len(samples), block))
    return list(pieces(blocks, rate, Cutting()))


@pytest.mark.parametrize("seconds", [0.05, 0.9, 14.9, 15.01, 15.9, 16, 31, 200])
@pytest.mark.parametrize("kind", ["noise", "zeros", "bursts"])
def test_every_sample_is_in_one_piece_of_the_right_length(seconds, kind):
    random = np.random.default_rng(1)
    samples = random.standard_normal(round(1000 * seconds)).astype(np.float32)
    if kind == "zeros":
        samples[:] = 0
    if kind == "bursts":
        samples *= (np.arange(len(samples)) // 700 % 3 > 0) + 1e-3
    found = cut(samples)
    assert np.array_equal(np.concatenate([piece.samples for piece in found]), samples)
    assert [piece.start for piece in found] == np.cumsum(
        [0] + [len(piece.samples) for piece in found[:-1]]
    ).tolist()
    lengths = [len(piece.samples) for piece in found]
    assert max(lengths) <= 15_000
    assert min(lengths) >= min(1000, len(samples))
    assert [p.start for p in cut(samples, 777)] == [p.start for p in found]


def test_cuts_are_where_it_is_silent():
    random = np.random.default_rng(2)
    samples = random.standard_normal(60_000).astype(np.float32)
    quiet = [(8_000, 8_600), (20_500, 21_000), (33_000, 33_400), (45_000, 45_900)]
    for begin, end in quiet:
        samples[begin:end] *= 0.05
    starts = [piece.start for piece in cut(samples)][1:]
    assert len(starts) == 4
    for start, (begin, end) in zip(starts, quiet, strict=True):
        assert begin < start < end
    loud = 30 * samples  # the threshold is relative
    assert [piece.start for piece in cut(loud)][1:] == starts


def test_without_silence_the_quietest_place_is_cut():
    random = np.random.default_rng(3)
    samples = random.standard_normal(20_000).astype(np.float32)
    samples[11_000:11_150] *= 0.6
    assert 11_000 <= cut(samples)[1].start <= 11_150


@pytest.mark.parametrize("rate", [8000, 16_000, 44_100])
def test_blocks_are_what_the_whole_is(tmp_path, monkeypatch, rate):
    monkeypatch.setattr(audio, "_BLOCK", 5000)
    path = recorded(tmp_path / "a.flac", LONG, rate, 2)
    parts = list(audio.blocks(path, 16_000))
    whole = audio.read(path, 16_000).samples
    assert len(parts) > 10
    assert np.allclose(np.concatenate(parts), whole, atol=1e-5)


# -- subtitles --------------------------------------------------------------------------------


def test_subtitles_are_short_and_in_order(tones, tmp_path):
    done = regatta("transcribe", tones, recorded(tmp_path / "a.wav", LONG), "-f", "srt", "-j", 1)
    blocks = done.out.strip().split("\n\n")
    clock = r"(\d\d):(\d\d):(\d\d),(\d\d\d)"
    times, texts = [], []
    for number, block in enumerate(blocks, 1):
        first, span, *lines = block.split("\n")
        assert first == str(number)
        found = re.fullmatch(f"{clock} --> {clock}", span)
        h, m, s, ms, *end = map(int, found.groups())
        start = 3600 * h + 60 * m + s + ms / 1000
        stop = 3600 * end[0] + 60 * end[1] + end[2] + end[3] / 1000
        assert 0 < stop - start <= 7.0
        assert len(lines) <= 2
        assert all(len(line) <= 42 for line in lines)
        times += [start, stop]
        texts += lines
    assert times == sorted(times)
    assert " ".join(texts) == LONG
    assert len(blocks) >= 4


def test_subtitles_stay_long_enough_to_be_read_and_never_overlap():
    words = [Spoken("a", 3599.9, 3599.95), Spoken("b", 3700.0, 3700.1), Spoken("c", 3700.4, 3700.5)]
    shown = subtitles(cues([Part(0, 1, (word,)) for word in words]))
    assert "00:59:59,900 --> 01:00:00,900\na\n" in shown
    assert "01:01:40,000 --> 01:01:40,400\nb\n" in shown


# -- what cannot be heard ---------------------------------------------------------------------


def test_bad_files_are_named_and_the_others_go_on(tones, tmp_path):
    recorded(tmp_path / "good.wav", "bad")
    soundfile.write(tmp_path / "silence.wav", np.zeros(16_000), 16_000)
    soundfile.write(tmp_path / "short.wav", said("a")[:300], 16_000)
    soundfile.write(tmp_path / "none.wav", np.zeros(0), 16_000)
    soundfile.write(tmp_path / "nan.wav", np.full(8000, np.nan), 16_000, subtype="FLOAT")
    (tmp_path / "empty.wav").touch()
    (tmp_path / "text.wav").write_text("this is no audio")
    whole = recorded(tmp_path / "cut.wav", LONG).read_bytes()
    (tmp_path / "cut.wav").write_bytes(whole[: len(whole) // 2])
    done = regatta("transcribe", tones, tmp_path, tmp_path / "gone.wav", "-j", 1)
    assert done.code == 1
    assert done.out == f"{tmp_path / 'good.wav'}\tbad\n"
    for name, what in (
        ("silence", "silent audio"), ("short", "too short"), ("none", "empty audio"),
        ("nan", "broken samples"), ("empty", "empty audio"), ("text", "unreadable audio"),
        ("cut", "truncated audio"), ("gone", "missing file"),
    ):  # fmt: skip
        assert re.search(f"^failed: .*{name}.wav: {what}", done.err, re.MULTILINE), done.err
    assert "1 recording, 8 failed" in done.err


def test_fifty_milliseconds_say_how_much_is_needed(tones, tmp_path):
    path = another(tmp_path / "m.safetensors", tones, NETWORK.__class__(kernel=11, hidden=8))
    soundfile.write(tmp_path / "a.wav", said("abc")[:800], 16_000)
    done = regatta("transcribe", path, tmp_path / "a.wav", "-j", 1)
    assert done.code == 1
    assert "a.wav: too short (0.05 s; the network sees 0.11 s at once)" in done.err
    assert done.out == ""


def test_silence_in_a_recording_is_no_words(trained, tmp_path):
    sounds = np.concatenate([said("bad"), np.zeros(16_000 * 40), said("cab")])
    soundfile.write(tmp_path / "a.wav", sounds, 16_000)
    [found] = Transcriber(trained, Greedy(trained.alphabet)).transcribe([tmp_path / "a.wav"])
    assert found.text.split()[0] == "bad"
    assert found.text.split()[-1] == "cab"
    assert found.words[-1].start == pytest.approx(40.4, abs=0.3)


def test_an_hour_needs_no_more_memory_than_three_minutes(trained, tmp_path):
    """Peaks are of the process: the long one comes last, and must add nearly nothing."""
    once = said(" ".join(WORDS * 16) + " ", 8000)

    def peak(minutes: int) -> tuple[float, Transcript | Problem]:
        path = tmp_path / f"{minutes}.wav"
        with soundfile.SoundFile(path, "w", 8000, 1) as file:
            for _ in range(round(minutes * 60 * 8000 / len(once))):
                file.write(once)
        [found] = Transcriber(trained, Greedy(trained.alphabet)).transcribe([path])
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024, found

    before, _ = peak(3)
    after, found = peak(60)
    assert after - before < 60  # MB; the samples alone are 230 MB at the recogniser's rate
    assert found.seconds == pytest.approx(3600, abs=60)
    assert len(found.parts) > 240
    assert found.words
    assert all(a.end <= b.start + 1e-6 for a, b in pairwise(found.words))


# -- where it goes ----------------------------------------------------------------------------


def test_files_are_written_whole_and_never_over_others(tones, tmp_path):
    folder, target = tmp_path / "in", tmp_path / "out"
    (folder / "sub").mkdir(parents=True)
    for name in ("a.wav", "a.flac", "sub/b.wav"):
        recorded(folder / name, "bad cab")
    words = ("transcribe", tones, folder, "-j", 1, "--out", target)
    done = regatta(*words, "-f", "srt")
    assert (done.code, done.out) == (0, "")
    written = sorted(str(p.relative_to(target)) for p in target.rglob("*") if p.is_file())
    assert written == ["a.flac.srt", "a.wav.srt", "sub/b.srt"]
    assert "bad cab\n" in (target / "sub" / "b.srt").read_text()
    (target / "a.wav.srt").write_text("mine")
    done = regatta(*words, "-f", "srt")
    assert "a.flac.srt and 2 more is there already: name another --out, or add --force" in done.err
    assert (target / "a.wav.srt").read_text() == "mine"
    assert regatta(*words, "-f", "srt", "--force").code == 0
    assert (target / "a.wav.srt").read_text() != "mine"


def test_one_recording_goes_to_one_file(tones, tmp_path):
    path = recorded(tmp_path / "a.wav", "bad cab")
    assert regatta("transcribe", tones, path, "-o", tmp_path / "new" / "x.txt", "-j", 1).code == 0
    assert (tmp_path / "new" / "x.txt").read_text() == "bad cab\n"
    assert regatta("transcribe", tones, path, "-o", tmp_path / "new", "-j", 1).code == 0
    assert (tmp_path / "new" / "a.txt").read_text() == "bad cab\n"


def test_a_score_that_is_no_number_is_still_json():
    told = written(Transcript("x", 1.0, (Part(0, 1, (), (Guess("", -np.inf),)),)), "json")
    assert json.loads(told, parse_constant=pytest.fail)["score"] is None


# -- wrong usage ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ([], "name recordings to transcribe"),
        (["-"], "- is a stream: add --stream"),
        (["a.wav", "--stream"], "--stream hears a pipe"),
        (["a.wav", "--rate", "8000"], "--rate is for --stream"),
        (["a.wav", "-f", "doc"], "--format must be one of txt, json, srt"),
        (["a.wav", "--nbest", "2"], "--nbest is for --format json"),
        (["a.wav", "-f", "json", "--nbest", "2"], "nbest is for the decoders prefix and words"),
        (["a.wav", "--force"], "--force is for --out"),
        (["a.wav", "--width", "3"], "width is for the decoders prefix and words"),
        (["a.wav", "--decoder", "prefix", "--lm", "x"], "lm is for the decoder words"),
        (["a.wav", "--mode", "words", "--lm", "x"], "lm is for a language model, which mode words"),
        (["a.wav", "--mode", "ngrams"], "mode ngrams needs a language model: name one with --lm"),
        (["a.wav", "--decoder", "gredy"], "decoding.decoder must be one of"),
        (["a.wav", "--set", "decoding.widht=3"], "did you mean width?"),
        (["a.wav", "b.wav", "-f", "srt"], "--format srt of several recordings needs --out"),
        (["-", "--stream", "-o", "x"], "--out is not for --stream"),
    ],
)
def test_what_does_not_go_together_is_refused(tones, words, says):
    done = regatta("transcribe", tones, *words)
    assert done.code != 0
    assert says in done.err
    assert done.out == ""


def test_who_names_a_language_model_wants_it_used():
    assert decoding_of({"lm": "x"}, []).mode == "ngrams"
    assert decoding_of({"lm": "x"}, []).decoder == "words"
    assert decoding_of({"lexicon": "x", "lm": None}, []).mode == "words"
    assert decoding_of({}, []) == Decoding()
    set_ = decoding_of({"decoder": "prefix"}, ["decoding.pruning.least=0.01", "decoding.width=3"])
    assert (set_.pruning.least, set_.width) == (0.01, 3)


def test_a_folder_without_audio_says_what_was_looked_for(tones, tmp_path):
    (tmp_path / "notes.txt").write_text("nothing")
    done = regatta("transcribe", tones, tmp_path)
    assert f"{tmp_path} holds no audio: looked for files that end in .aif, .aiff" in done.err


def test_an_arpa_file_cut_in_half_is_named(tones, tmp_path):
    texts, arpa = tmp_path / "texts", tmp_path / "lm.arpa"
    texts.write_text("cab ace\nbad bead\n")
    regatta("language-model", texts, "-o", arpa)
    arpa.write_bytes(arpa.read_bytes()[: arpa.stat().st_size // 2])
    path = recorded(tmp_path / "a.wav", "cab")
    done = regatta("transcribe", tones, path, "--lm", arpa, "-j", 1)
    assert done.code != 0
    assert "lm.arpa" in done.err
    assert "cut short" in done.err


def test_words_in_other_letters_are_refused_by_name(tones, tmp_path):
    path, other = recorded(tmp_path / "a.wav", "cab"), tmp_path / "russian"
    other.write_text("да нет\nнет да\n")
    done = regatta("transcribe", tones, path, "--lexicon", other, "-j", 1)
    assert f"there is no word in {other} that the alphabet" in done.err
    done = regatta("transcribe", tones, path, "--lm", other, "-j", 1)
    assert f"there is no text in {other} that the alphabet" in done.err
    arpa = tmp_path / "lm.arpa"
    assert regatta("language-model", other, "--alphabet", "auto", "-o", arpa).code == 0
    done = regatta("transcribe", tones, path, "--lm", arpa, "-j", 1)
    assert f"{arpa} has none of the 5 words of the lexicon" in done.err


def test_what_is_no_recogniser_is_refused(tones, tmp_path):
    path = recorded(tmp_path / "a.wav", "cab")
    other = tmp_path / "other.safetensors"
    checkpoint.save_answer(other, {"weight": torch.zeros(3)}, {"task": {"name": "teacher"}})
    assert "holds no recogniser" in regatta("transcribe", other, path).err
    whole = Trained.open(tones).origin.read_bytes()
    (tmp_path / "cut.safetensors").write_bytes(whole[: len(whole) // 2])
    done = regatta("transcribe", tmp_path / "cut.safetensors", path)
    assert "cut.safetensors is no whole safetensors file" in done.err
    done = regatta("transcribe", tmp_path / "nowhere", path)
    assert "nowhere does not exist: name the folder of a run" in done.err


def test_late_trouble_in_a_file_is_found(tmp_path):
    path = tmp_path / "a.wav"
    sounds = np.concatenate([said("bad"), [np.nan]])
    soundfile.write(path, sounds, 16_000, subtype="FLOAT")
    with pytest.raises(BadUtterance, match="broken samples"):
        list(audio.blocks(path, 16_000))


# -- as people run it -------------------------------------------------------------------------


def test_the_command_keeps_its_output_clean(tones, tmp_path):
    path = recorded(tmp_path / "a.wav", "dace", 22_050)
    done = command("transcribe", tones, path, tmp_path / "gone.wav", "--jobs", "1")
    assert done.stdout == f"{path}\tdace\n"
    assert done.returncode == 1
    assert len(done.stderr.splitlines()) == 3  # resampled, failed, speed
    cut = tmp_path / "cut.safetensors"
    cut.write_bytes(b"nothing")
    done = command("transcribe", cut, path)
    assert done.returncode == 1
    assert len(done.stderr.splitlines()) == 1
    done = command("transcribe", tones, tmp_path / "none" / "such.wav", "--lexicon", "nowhere")
    assert done.returncode in (1, 2)
    assert len(done.stderr.splitlines()) == 1


@pytest.mark.skipif(not REAL.exists(), reason="the recordings by people are not here")
def test_recordings_by_people_are_read(trained):
    paths = sorted(Path(REAL).rglob("*.flac"))[:3]
    results = list(Transcriber(trained, Greedy(trained.alphabet)).transcribe(paths))
    assert all(isinstance(result, Transcript) for result in results)
