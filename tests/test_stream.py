"""Live speech: what comes in pieces gives what the whole gives, and ends where it is silent."""

from __future__ import annotations

import io
import json
import os
import pty
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest
import soundfile
import torch
from real import REGATTA
from recognising import NETWORK, another, regatta, said

from regatta.data.features import Extractor, Features
from regatta.decode.decoding import Decoding
from regatta.decode.greedy import Greedy
from regatta.models.recogniser import Network
from regatta.recognise.sources import microphone, pipe
from regatta.recognise.streaming import Feed, Heard, Stream, Utterance
from regatta.recognise.trained import Trained

PAUSE = np.random.default_rng(4).normal(0, 0.01, 12_800).astype(np.float32)  # 0.8 s


def in_pieces(samples: np.ndarray, size: int) -> list[np.ndarray]:
    return [samples[at : at + size] for at in range(0, len(samples), size)]


def pcm(samples: np.ndarray) -> bytes:
    return (samples * 32767).astype("<i2").tobytes()


def wav(samples: np.ndarray, rate: int, **options: str) -> bytes:
    file = io.BytesIO()
    soundfile.write(file, samples, rate, format="WAV", **options)
    return file.getvalue()


# -- features and outputs ---------------------------------------------------------------------


@pytest.mark.parametrize("length", [0, 1, 50, 79, 80, 200, 511, 513, 4000, 16_007])
@pytest.mark.parametrize("size", [1, 37, 160, 1000, 20_000])
@pytest.mark.parametrize("features", [Features(), Features(mels=8, mfcc=0, window=400, hop=200)])
def test_features_in_pieces_are_those_of_the_whole(length, size, features):
    if length // size > 2000:
        length //= 8
    random = np.random.default_rng(length)
    samples = random.standard_normal(length).astype(np.float32)
    extractor = Extractor(features)
    feed = Feed(extractor)
    parts = [feed.step(piece) for piece in in_pieces(samples, size)]
    found = torch.cat([*parts, feed.finish()])
    whole = extractor(torch.from_numpy(samples))
    assert found.shape == whole.shape
    assert torch.allclose(found, whole, atol=1e-4)
    if length > 10 * size and length > 4000:
        assert sum(map(len, parts)) > len(whole) - 10  # not all at the end


@pytest.mark.parametrize("size", [97, 1600, 100_000])
@pytest.mark.parametrize(
    "network", [None, Network(hidden=9, layers=3, cell="gru", norm="layer"), Network(hidden=8)]
)
def test_outputs_in_pieces_are_those_of_the_whole(tones, trained, tmp_path, size, network):
    if network is not None:
        trained = Trained.open(another(tmp_path / "m.safetensors", tones, network))
    samples = said("cab dace bead")
    utterance, heard = Utterance(trained, Greedy(trained.alphabet)), []
    feed = utterance._feed
    for piece in in_pieces(samples, size):
        heard.append(utterance.outputs(feed.step(piece)))
    heard.append(utterance.outputs(feed.finish()))
    whole, frames = trained.outputs([trained.described(samples)])
    found = torch.cat(heard)
    assert len(found) == int(frames[0])
    assert torch.allclose(found, whole[0], atol=1e-4)


@pytest.mark.parametrize("decoder", ["greedy", "prefix"])
def test_an_utterance_in_pieces_is_the_whole_one(trained, decoder):
    made = Decoding(decoder=decoder, width=8).build(trained.alphabet)
    samples = said("cab dace")
    whole = made.decode(*trained.outputs([trained.described(samples)]))[0][0]
    utterance = Utterance(trained, made)
    partial = [utterance.step(piece).text for piece in in_pieces(samples, 1600)]
    [found] = utterance.finish()
    assert found.text == whole.text == "cab dace"
    assert found.score == pytest.approx(whole.score, abs=1e-3)
    assert found.words == whole.words
    assert "cab" in partial  # before the end


# -- parts ------------------------------------------------------------------------------------


def heard(trained: Trained, samples: np.ndarray, size: int = 1000) -> list[Heard]:
    stream = Stream(trained, Greedy(trained.alphabet))
    found = [one for piece in in_pieces(samples, size) for one in stream.hear(piece)]
    found += stream.finish()
    assert stream.seconds == pytest.approx(len(samples) / 16_000)
    return found


def test_a_stream_is_parted_at_silences(trained):
    samples = np.concatenate([said("cab dace bead"), PAUSE, said("ace bad"), PAUSE, said("cab")])
    found = heard(trained, samples)
    finals = [one.part for one in found if one.final]
    assert [part.text for part in finals] == ["cab dace bead", "ace bad", "cab"]
    second = len(said("cab dace bead")) + len(PAUSE)
    assert finals[1].words[0].start == pytest.approx(second / 16_000 + 0.05, abs=0.1)
    assert any(not one.final and one.part.text.startswith("cab da") for one in found)
    assert finals[0].end < second / 16_000  # it did not wait for the next


@pytest.mark.parametrize("size", [1, 333, 40_000])
def test_how_a_stream_arrives_changes_nothing(trained, size):
    samples = np.concatenate([said("cab dace bead"), PAUSE, said("ace")])
    if size == 1:
        samples = samples[-9000:]
    assert heard(trained, samples, size) == heard(trained, samples)


def test_a_stream_without_silence_is_parted_all_the_same(trained):
    random = np.random.default_rng(5)
    noise = 0.3 * random.standard_normal(16_000 * 50).astype(np.float32)
    stream = Stream(trained, Greedy(trained.alphabet))
    for piece in in_pieces(noise, 16_000):
        list(stream.hear(piece))
        assert stream._end - stream._start <= 16_000 * 20


def test_silence_says_nothing(trained):
    assert not [one for one in heard(trained, np.zeros(16_000 * 5, np.float32)) if one.final]


def test_a_network_of_both_directions_cannot_hear_a_stream(tones, tmp_path):
    both = another(tmp_path / "m.safetensors", tones, replace(NETWORK, bidirectional=True))
    done = regatta("transcribe", both, "-", "--stream", "-j", 1, given=pcm(said("cab")))
    assert "cannot hear a stream, only whole recordings" in done.err


# -- pipes ------------------------------------------------------------------------------------


def test_a_pipe_of_samples_is_heard(tones):
    samples = np.concatenate([said("cab dace"), PAUSE, said("ace")])
    done = regatta("transcribe", tones, "-", "--stream", "-j", 1, given=pcm(samples))
    assert (done.code, done.out) == (0, "cab dace\nace\n")
    assert f"{len(samples) / 16_000:.1f} s heard" in done.err


def test_a_pipe_may_have_another_rate(tones):
    samples = pcm(said("cab dace", 48_000))
    words = ("transcribe", tones, "-", "--stream", "-j", 1)
    assert regatta(*words, "--rate", 48_000, given=samples).out == "cab dace\n"
    assert regatta(*words, given=samples).out != "cab dace\n"


@pytest.mark.parametrize("channels", [1, 2])
def test_a_wav_header_is_believed(tones, channels):
    sound = np.column_stack([said("cab dace", 44_100)] * channels)
    done = regatta("transcribe", tones, "-", "--stream", "-j", 1, given=wav(sound, 44_100))
    assert (done.code, done.out) == (0, "cab dace\n")


def test_a_stream_as_json_and_as_subtitles(tones):
    samples = np.concatenate([said("cab dace"), PAUSE, said("ace")])
    words = ("transcribe", tones, "-", "--stream", "-j", 1, "-f")
    lines = regatta(*words, "json", given=pcm(samples)).out.splitlines()
    told = [json.loads(line) for line in lines]
    assert [one["text"] for one in told] == ["cab dace", "ace"]
    assert [word["word"] for word in told[0]["words"]] == ["cab", "dace"]
    assert told[1]["start"] == told[0]["end"]
    shown = regatta(*words, "srt", given=pcm(samples)).out
    assert shown.startswith("1\n00:00:00,0")
    assert "\n2\n00:00:0" in shown


def test_bad_streams_say_so(tones):
    words = ("transcribe", tones, "-", "--stream", "-j", 1)
    assert "nothing came" in regatta(*words, given=b"").err
    done = regatta(*words, given=pcm(said("cab")) + b"x")
    assert "the pipe ended within a sample (1 of 2 bytes)" in done.err
    assert done.out == "cab\n"  # what was heard counts
    done = regatta(*words, given=wav(said("cab"), 16_000, subtype="FLOAT"))
    assert "a stream needs 16-bit numbers" in done.err
    assert "it was cut short" in regatta(*words, given=wav(said("cab"), 16_000)[:30]).err


def test_two_samples_are_two_samples():
    assert np.concatenate(list(pipe(io.BytesIO(b"\0\x40\0\x20"), 8000, 8000))).tolist() == [
        0.5,
        0.25,
    ]


def test_chunks_after_the_samples_are_no_samples():
    sound = wav(said("a"), 16_000) + b"LIST\x04\0\0\0abcd"
    assert sum(map(len, pipe(io.BytesIO(sound), 1, 16_000))) == len(said("a"))


def test_a_missing_package_for_microphones_says_how_to_get_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "sounddevice", None)
    with pytest.raises(ValueError, match=r"pip install 'regatta-train\[microphone\]'"):
        microphone(16_000)


def test_a_terminal_sees_what_may_still_change(tones):
    """The line is written anew until it is sure; a pipe gets the last alone."""
    samples = pcm(np.concatenate([said("cab dace"), PAUSE]))
    ours, theirs = pty.openpty()
    with subprocess.Popen(
        [*REGATTA, "transcribe", str(tones), "-", "--stream", "-j", "1"],
        stdin=subprocess.PIPE, stdout=theirs, stderr=subprocess.DEVNULL,
    ) as process:  # fmt: skip
        os.close(theirs)
        process.stdin.write(samples)
        process.stdin.close()
        shown = b""
        try:
            while more := os.read(ours, 1000):
                shown += more
        except OSError:  # the other end is closed
            pass
    os.close(ours)
    lines = shown.decode().split("\r\x1b[K")
    assert lines[-1] == "cab dace\r\n"
    assert "cab" in lines[:-1]
    assert process.returncode == 0
