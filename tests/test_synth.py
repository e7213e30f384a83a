"""Speech made on the spot: the same bytes for the same seed, and times that are true."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import zlib
from pathlib import Path

import numpy as np
import pytest
import soundfile
from speaking import RATE, tone

from regatta.data.corpora import read
from regatta.data.synth import corpus as synth_corpus
from regatta.data.synth import espeak
from regatta.data.synth.corpus import Synth, make
from regatta.data.synth.room import NOISES, Room, speech_power
from regatta.data.synth.speakers import SPLITS, VARIANTS, speakers
from regatta.data.synth.texts import LANGUAGES, STYLES, script

HOURS = 0.012
VOICELESS = {"s", "f", "θ", "ʃ", "p", "t", "k", "tʃ", "h", "ts"}
VOWELS = set("aeiouyɑɐɒæɔəɛɜɪʊʌøœɨʉɚɝ")

loader = pytest.importorskip("espeakng_loader", reason=espeak.MISSING)


def contents(folder: Path) -> dict[str, bytes]:
    files = (path for path in sorted(folder.rglob("*")) if path.is_file())
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in files}


@pytest.fixture(scope="module")
def made(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("synth") / "all"
    make(Synth(hours=HOURS, languages=LANGUAGES), folder, jobs=2)
    return folder


@pytest.mark.parametrize("jobs", [1, 4])
def test_the_same_bytes_whatever_the_number_of_jobs(made, tmp_path, jobs):
    make(Synth(hours=HOURS, languages=LANGUAGES), tmp_path / "again", jobs)
    assert contents(tmp_path / "again") == contents(made)


def test_another_seed_makes_other_speech(made, tmp_path):
    make(Synth(hours=HOURS, languages=LANGUAGES, seed=1), tmp_path / "other", jobs=2)
    other, first = contents(tmp_path / "other"), contents(made)
    assert not {data for name, data in other.items() if name.endswith(".flac")} & set(
        first.values()
    )


def test_a_corpus_that_was_interrupted_is_finished(made, tmp_path):
    out = tmp_path / "cut"
    code = (
        "import sys, os, signal\nfrom pathlib import Path\n"
        "from regatta.data.synth.corpus import Synth, make\n"
        "told = []\n"
        "def tell(seconds, total):\n"
        "    told.append(seconds)\n"
        "    if len(told) == 9: os.killpg(0, signal.SIGKILL)\n"
        f"if __name__ == '__main__':\n"
        f"    make(Synth(hours={HOURS}, languages={LANGUAGES}), Path(sys.argv[1]), 2, tell)\n"
    )
    script_file = tmp_path / "cut.py"
    script_file.write_text(code)
    command = [sys.executable, str(script_file), str(out)]
    child = subprocess.Popen(command, start_new_session=True)
    assert child.wait() == -signal.SIGKILL
    assert not (out / "manifest.jsonl").exists()
    make(Synth(hours=HOURS, languages=LANGUAGES), out, jobs=2)
    assert contents(out) == contents(made)


@pytest.mark.parametrize("damage", ["gone", "emptied"])
def test_what_is_missing_of_an_interrupted_corpus_is_made(made, tmp_path, damage):
    """As if the ledger were complete, but a file is not there."""
    out = tmp_path / "damaged"
    shutil.copytree(made, out)
    rows = read(made).utterances
    (out / "manifest.jsonl").unlink()
    lines = [[u.to_json(), zlib.crc32((out / u.audio).read_bytes())] for u in rows]
    (out / synth_corpus.LEDGER).write_text("".join(json.dumps(line) + "\n" for line in lines))
    victim = out / rows[3].audio
    victim.unlink() if damage == "gone" else victim.write_bytes(b"")
    make(Synth(hours=HOURS, languages=LANGUAGES), out, jobs=2)
    assert contents(out) == contents(made)


def test_a_full_disk_is_told(tmp_path):
    code = (
        "import resource, sys\nfrom pathlib import Path\n"
        "from regatta.data.synth.corpus import Synth, make\n"
        "if __name__ == '__main__':\n"
        "    resource.setrlimit(resource.RLIMIT_FSIZE, (12_000, 12_000))\n"
        "    make(Synth(hours=0.01), Path(sys.argv[1]), 1)\n"
    )
    (tmp_path / "full.py").write_text(code)
    done = subprocess.run(
        [sys.executable, str(tmp_path / "full.py"), str(tmp_path / "out")],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert "make room and run the same command again" in done.stderr
    assert not (tmp_path / "out" / "manifest.jsonl").exists()


def test_a_folder_of_other_speech_is_left_alone(made, tmp_path):
    with pytest.raises(ValueError, match="other options"):
        make(Synth(hours=1), made)
    (tmp_path / "note.txt").write_text("mine")
    with pytest.raises(ValueError, match="not empty"):
        make(Synth(), tmp_path)


def test_all_of_it_can_be_used(made):
    from regatta.data.checks import Checks
    from regatta.data.survey import survey

    corpus = read(made)
    found = survey(corpus, Checks(), thorough=True)
    assert found.problems.counts() == {}
    assert found.seconds == pytest.approx(3600 * HOURS, rel=0.3)
    assert set(found.groups("language")) == set(LANGUAGES)
    for path in (made / "audio").rglob("*.flac"):
        assert soundfile.info(path).samplerate == RATE


def test_no_two_splits_share_a_voice_or_a_sentence(made):
    parts = read(made).splits()
    assert set(parts) == set(SPLITS)
    voices = [{u.speaker.partition("+")[2] for u in part} for part in parts.values()]
    texts = [{u.text for u in part if " " in u.text} for part in parts.values()]
    for kinds in (voices, texts):
        assert len(set.union(*kinds)) == sum(map(len, kinds))


@pytest.mark.parametrize("language", LANGUAGES)
def test_manners_of_speaking_are_of_one_split(language):
    shares = (0.8, 0.1, 0.1)
    found = {split: speakers(language, split, shares, seed=3) for split in SPLITS}
    variants = {split: {s.voice.variant for s in some} for split, some in found.items()}
    assert set.union(*variants.values()) == set(VARIANTS)
    assert sum(map(len, variants.values())) == len(VARIANTS)
    assert min(map(len, variants.values())) >= 2


def test_the_synthesiser_has_all_voices():
    folder = Path(loader.get_data_path()) / "voices" / "!v"
    assert set(VARIANTS) <= {path.name for path in folder.iterdir()}


@pytest.mark.parametrize("language", LANGUAGES)
def test_every_accent_speaks(language):
    for accent in script(language).accents:
        spoken = espeak.speak(script(language).digits[4], espeak.Voice(accent, "f2"), 160, 50, 1)
        assert len(spoken.samples) > 2000


def test_a_voice_that_is_not_there_is_named():
    with pytest.raises(ValueError, match=r"no voice xx\+nobody"):
        espeak.speak("hello", espeak.Voice("xx", "nobody"), 160, 50, 1)


def test_what_was_spoken_before_changes_nothing():
    def said() -> bytes:
        return espeak.speak("seven", espeak.Voice("en-us", "m2"), 160, 50, 5).samples

    first = said()
    espeak.speak("something else entirely", espeak.Voice("fr", "f3"), 200, 70, 9)
    assert said() == first


def test_what_to_install_is_said(monkeypatch):
    espeak._library.cache_clear()
    monkeypatch.setitem(sys.modules, "espeakng_loader", None)
    with pytest.raises(ValueError, match=r"pip install 'regatta-train\[synth\]'"):
        espeak.version()
    espeak._library.cache_clear()


# -- the times are true ----------------------------------------------------------------------


def frames_and_labels(folder: Path):
    """Energy and voicing every 5 ms, and what the alignment says is spoken there."""
    for utterance in read(folder).utterances:
        samples, _ = soundfile.read(folder / utterance.audio)
        for first in range(0, len(samples) - 512, 80):
            frame = samples[first : first + 512] - samples[first : first + 512].mean()
            energy = float(np.mean(frame**2))
            spectrum = np.abs(np.fft.rfft(frame, 1024)) ** 2
            repeats = np.fft.irfft(spectrum)[:512]
            voicing = repeats[40:267].max() / (repeats[0] + 1e-9) if energy > 1e-7 else 0.0
            yield energy, voicing, _spoken_at(utterance, (first + 256) / RATE)
        for _ in range(40):  # no shift reaches from one utterance into the next
            yield np.nan, np.nan, None


def _spoken_at(utterance, when: float) -> str:
    for start, end, name in utterance.phones:
        if start <= when < end:
            return "vowel" if name[0] in VOWELS else "voiceless" if name in VOICELESS else "other"
    return "silence"


def test_energy_and_voicing_change_where_the_events_say(tmp_path):
    clean = Synth(hours=HOURS, languages=LANGUAGES, room=Room(clean=1.0))
    make(clean, tmp_path / "clean", jobs=2)
    energy, voicing, label = map(np.array, zip(*frames_and_labels(tmp_path / "clean"), strict=True))
    level = {k: np.median(energy[label == k]) for k in ("vowel", "voiceless", "silence")}
    assert level["vowel"] > 3 * level["voiceless"] > 3000 * level["silence"]
    assert np.median(voicing[label == "vowel"]) > 2 * np.median(voicing[label == "voiceless"])
    expected = np.where(label == "vowel", 1.0, 0.0)
    judged = (label == "vowel") | (label == "voiceless") | (label == "silence")

    def agreement(shift: int) -> float:
        moved = np.roll(voicing, -shift)
        both = judged & ~np.isnan(moved)
        return float(np.corrcoef(expected[both], moved[both])[0, 1])

    best = max(range(-20, 21), key=agreement)
    assert abs(best) <= 2  # frames of 5 ms
    assert agreement(best) > 0.65
    assert agreement(0) - max(agreement(-12), agreement(12)) > 0.1  # 60 ms off is much worse


def test_words_and_phones_lie_in_order_within_the_utterance(made):
    for utterance in read(made).utterances:
        for labels in (utterance.words, utterance.phones):
            times = [t for label in labels for t in (label.start, label.end)]
            assert times == sorted(times)
            assert times[0] >= 0
            assert times[-1] <= utterance.duration
        assert " ".join(word.name for word in utterance.words) == utterance.text


# -- rooms -----------------------------------------------------------------------------------


def utterance_and_silence() -> np.ndarray:
    return np.concatenate([np.zeros(RATE), tone(1.0, 300), np.zeros(RATE)]).astype(np.float32)


@pytest.mark.parametrize("noise", NOISES)
@pytest.mark.parametrize("snr", [0.0, 10.0, 20.0])
def test_noise_is_as_loud_as_stated(noise, snr, monkeypatch):
    monkeypatch.setattr("regatta.data.synth.room.NOISES", (noise,))
    room = Room(clean=0.0, snr=(snr, snr), rt60=(0.02, 0.02))
    burst = 0.1 * np.random.default_rng(5).standard_normal(RATE)
    dry = np.concatenate([np.zeros(RATE), burst, np.zeros(RATE)]).astype(np.float32)
    heard, about = room.record(dry, RATE, np.random.default_rng(0))
    assert about["noise"] == noise
    assert about["snr"] == snr
    before = float(np.mean(np.square(heard[: RATE - 200], dtype=np.float64)))
    during = float(np.mean(np.square(heard[RATE : 2 * RATE], dtype=np.float64)))
    assert 10 * np.log10((during - before) / before) == pytest.approx(snr, abs=1.5)


def test_an_echo_comes_after_the_sound_and_dies_away():
    dry = np.zeros(RATE, np.float32)
    dry[4000] = 1.0
    room = Room(clean=0.0, snr=(200.0, 200.0), rt60=(0.2, 0.2))
    heard, _ = room.record(dry, RATE, np.random.default_rng(1))
    quiet = np.abs(heard[:4000]).max()
    assert np.abs(heard).argmax() == 4000
    assert quiet < 1e-4
    early = np.mean(heard[4200:4800] ** 2)
    late = np.mean(heard[4000 + int(0.2 * RATE) - 300 : 4000 + int(0.2 * RATE)] ** 2)
    assert 10 * np.log10(early / late) > 30


def test_levels_stay_below_full_scale():
    room = Room(level=(0.0, 0.0), clean=1.0)
    heard, about = room.record(utterance_and_silence(), RATE, np.random.default_rng(2))
    assert np.abs(heard).max() <= 0.95 + 1e-6
    assert about == {}
    level = Room(level=(-20.0, -20.0), clean=1.0)
    heard, _ = level.record(utterance_and_silence(), RATE, np.random.default_rng(2))
    assert 10 * np.log10(speech_power(heard)) == pytest.approx(-20, abs=0.1)


@pytest.mark.parametrize(
    ("kind", "options", "said"),
    [
        (Synth, {"hours": 0}, "hours must be above 0"),
        (Synth, {"languages": ("de",)}, "languages must be some of en, fr, it"),
        (Synth, {"styles": ()}, "styles must be some of"),
        (Synth, {"shares": (0.5, 0.1, 0.1)}, "must sum to 1"),
        (Synth, {"rate": 100}, "rate must be 8000"),
        (Room, {"clean": 2.0}, "clean must be from 0 to 1"),
        (Room, {"snr": (9.0, 3.0)}, "snr must be LOW,HIGH"),
        (Room, {"snr": (float("nan"), 3.0)}, "snr must be LOW,HIGH"),
        (Room, {"rt60": (0.0, 1.0)}, "rt60 must be above 0"),
    ],
)
def test_options_that_make_no_sense_are_refused(kind, options, said):
    with pytest.raises(ValueError, match=said):
        kind(**options)


# -- texts -----------------------------------------------------------------------------------


@pytest.mark.parametrize("language", LANGUAGES)
@pytest.mark.parametrize("style", STYLES)
def test_texts_are_made_of_known_lists(language, style):
    random = np.random.default_rng(0)
    texts = {script(language).draw(style, random) for _ in range(300)}
    assert len(texts) > 150
    assert all("{" not in text and text == text.lower().strip() for text in texts)
    assert all(c.isalpha() or c in "' " for text in texts for c in text)


def test_the_manifest_tells_how_it_was_made(made):
    options = json.loads((made / synth_corpus.OPTIONS).read_text())
    assert options["hours"] == HOURS
    assert options["espeak"]
    assert {"speed", "pitch"} <= set(read(made).utterances[0].about)
    assert os.path.getsize(made / "manifest.jsonl") > 1000
