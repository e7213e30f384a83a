"""Every kind of corpus, as its own tools write it, reads into the same utterances."""

from __future__ import annotations

import gzip
import json

import pytest
from speaking import folder_of_texts, manifest, record

from regatta.data.arrange import merge, split
from regatta.data.corpora import KINDS, Reading, read
from regatta.data.corpora.alignments import textgrid
from regatta.data.manifest import Label, Utterance, write

TEXTS = {"84-121123-0000": "GO DO YOU HEAR", "84-121123-0001": "BUT IN LESS THAN FIVE MINUTES"}


def by_id(corpus) -> dict[str, Utterance]:
    return {utterance.id: utterance for utterance in corpus.utterances}


def test_librispeech(tmp_path):
    chapter = tmp_path / "LibriSpeech" / "dev-clean" / "84" / "121123"
    for name in TEXTS:
        record(chapter / f"{name}.flac")
    lines = "".join(f"{name} {text}\n" for name, text in TEXTS.items())
    (chapter / "84-121123.trans.txt").write_text(lines)
    for root in (tmp_path / "LibriSpeech", tmp_path / "LibriSpeech" / "dev-clean"):
        found = by_id(read(root))
        assert {name: u.text for name, u in found.items()} == TEXTS
        utterance = found["84-121123-0001"]
        assert (utterance.speaker, utterance.split, utterance.language) == ("84", "dev-clean", "en")
        assert (root / utterance.audio).is_file()


def test_librispeech_names_audio_without_transcript(tmp_path):
    chapter = tmp_path / "dev-clean" / "84" / "121123"
    record(chapter / "84-121123-0000.flac")
    record(chapter / "84-121123-0009.flac")
    (chapter / "84-121123.trans.txt").write_text("84-121123-0000 GO\nnonsense\n")
    corpus = read(tmp_path)
    assert list(by_id(corpus)) == ["84-121123-0000"]
    assert corpus.problems.counts() == {"broken line": 1, "no transcript": 1}


COLUMNS = ["accents", "client_id", "sentence", "path", "up_votes", "locale"]


def test_common_voice_by_the_names_of_its_columns(tmp_path):
    root = tmp_path / "cv-corpus" / "it"
    for split_name, clip in (("train", "a"), ("dev", "b"), ("validated", "a")):
        record(root / "clips" / f"{clip}.mp3", 0.5)
        row = ["", f"who-{clip}", f"detto {clip}", f"{clip}.mp3", "2", "it"]
        table = "\t".join(COLUMNS) + "\n" + "\t".join(row) + "\n"
        (root / f"{split_name}.tsv").write_text(table)
    found = by_id(read(root))
    assert {u.split for u in found.values()} == {"train", "dev"}  # validated holds them again
    assert found["a"].text == "detto a"
    assert found["a"].speaker == "who-a"
    assert found["a"].language == "it"
    assert list(by_id(read(root / "validated.tsv"))) == ["a"]
    assert list(by_id(read(root, Reading(split="validated")))) == ["a"]
    with pytest.raises(ValueError, match=r"no nowhere\.tsv; there are dev, train, validated"):
        read(root, Reading(split="nowhere"))


def test_a_table_without_sentences_is_refused(tmp_path):
    (tmp_path / "clips").mkdir()
    (tmp_path / "train.tsv").write_text("client_id\tpath\n")
    with pytest.raises(ValueError, match="no column sentence"):
        read(tmp_path)


def test_an4(tmp_path):
    etc = tmp_path / "etc"
    etc.mkdir()
    for part, speaker, name in (("train", "fash", "an251-fash-b"), ("test", "mmxg", "cen8-mmxg-b")):
        record(tmp_path / "wav" / f"an4_{part}" / speaker / f"{name}.wav")
        (etc / f"an4_{part}.fileids").write_text(f"an4_{part}/{speaker}/{name}\n")
        (etc / f"an4_{part}.transcription").write_text(f"<s> YES NO </s> ({name})\n")
    found = by_id(read(tmp_path))
    assert found["an251-fash-b"].text == "YES NO"
    assert found["an251-fash-b"].split == "train"
    assert found["cen8-mmxg-b"].speaker == "mmxg"
    assert found["cen8-mmxg-b"].split == "test"


def kaldi(root, segments: str | None = None, scp: str = "rec1 rec1.wav\n"):
    record(root / "rec1.wav", 3.0)
    (root / "wav.scp").write_text(scp)
    (root / "text").write_text("utt1 hello there\nutt2 good bye\nrec1 all of it\n")
    (root / "utt2spk").write_text("utt1 anna\nutt2 ben\nrec1 anna\n")
    if segments is not None:
        (root / "segments").write_text(segments)
    return root


def test_kaldi_with_segments(tmp_path):
    corpus = read(kaldi(tmp_path, "utt1 rec1 0.5 1.25\nutt2 rec1 1.5 -1\n"))
    found = by_id(corpus)
    assert (found["utt1"].start, found["utt1"].duration) == (0.5, 0.75)
    assert (found["utt2"].start, found["utt2"].duration) == (1.5, None)
    assert found["utt1"].text == "hello there"
    assert found["utt2"].speaker == "ben"
    assert corpus.problems.counts() == {"missing file": 1}  # rec1 has a text, but is no segment


def test_kaldi_without_segments(tmp_path):
    assert [u.text for u in read(kaldi(tmp_path)).utterances] == ["all of it"]


def test_kaldi_segments_that_make_no_sense_are_named(tmp_path):
    wrong = "utt1 rec1 2 1\nutt2 rec9 0 1\nutt3 rec1 x y\nutt4 rec1 -3 1\n"
    wrong += "utt5 rec1 0 nan\nutt6 rec1 0 inf\nutt7 rec1 0 1e308\n"
    corpus = read(kaldi(tmp_path, wrong))
    assert corpus.utterances == []
    assert corpus.problems.counts() == {"broken line": 5, "missing file": 4, "bad segment": 1}


def test_kaldi_channels(tmp_path):
    kaldi(tmp_path, "utt1 rec1 0 1 B\nutt2 rec1 1 2\n")
    (tmp_path / "reco2file_and_channel").write_text("rec1 rec1 A\n")
    found = by_id(read(tmp_path))
    assert (found["utt1"].channel, found["utt2"].channel) == (1, 0)
    (tmp_path / "segments").unlink()
    assert by_id(read(tmp_path))["rec1"].channel == 0


def test_programs_in_wav_scp_are_run_only_if_allowed(tmp_path):
    kaldi(tmp_path, scp=f"rec1 cat {tmp_path}/rec1.wav |\n")
    corpus = read(tmp_path)
    assert corpus.utterances == []
    assert corpus.problems.counts() == {"command refused": 1, "missing file": 2}
    assert len(read(tmp_path, Reading(allow_pipes=True)).utterances) == 1


def test_nemo(tmp_path):
    record(tmp_path / "a.wav")
    rows = [
        {"audio_filepath": "a.wav", "duration": 1.0, "text": "one", "speaker": 7, "lang": "en"},
        {"audio_filepath": str(tmp_path / "a.wav"), "offset": 0.5, "duration": 0.25, "text": "two"},
    ]
    found = by_id(read(manifest(tmp_path, rows)))
    assert found["a"].speaker == "7"
    assert found["a-0.5"].audio == "a.wav"
    assert (found["a-0.5"].start, found["a-0.5"].duration) == (0.5, 0.25)


CUT = {
    "id": "cut-1", "start": 1.0, "duration": 1.5, "channel": 0, "type": "MonoCut",
    "supervisions": [
        {"id": "sup-1", "recording_id": "rec", "start": 0.25, "duration": 1.0, "channel": 0,
         "text": "good day", "language": "en", "speaker": "anna",
         "alignment": {"word": [["good", 0.25, 0.5], ["day", 0.75, 0.5, 0.9]]}},
    ],
    "recording": {"id": "rec", "sources": [{"type": "file", "channels": [0], "source": "r.wav"}],
                  "sampling_rate": 16000, "num_samples": 48000, "duration": 3.0,
                  "channel_ids": [0]},
}  # fmt: skip


@pytest.mark.parametrize("suffix", ["jsonl", "jsonl.gz"])
def test_lhotse_cuts(tmp_path, suffix):
    record(tmp_path / "r.wav", 3.0)
    path = tmp_path / f"cuts.{suffix}"
    opened = gzip.open if suffix.endswith("gz") else open
    with opened(path, "wt") as file:
        file.write(json.dumps(CUT) + "\n")
    (utterance,) = read(path).utterances
    assert (utterance.start, utterance.duration) == (1.25, 1.0)
    assert utterance.words == (Label(0.0, 0.5, "good"), Label(0.5, 1.0, "day"))
    assert utterance.speaker == "anna"


def test_lhotse_itself_writes_what_is_read(tmp_path):
    lhotse = pytest.importorskip("lhotse")
    record(tmp_path / "r.wav", 3.0)
    recording = lhotse.Recording.from_file(tmp_path / "r.wav", recording_id="r")
    said = lhotse.SupervisionSegment("s", "r", 0.5, 2.0, text="hello", speaker="ben")
    recordings = lhotse.RecordingSet.from_recordings([recording])
    supervisions = lhotse.SupervisionSet.from_segments([said])
    cuts = lhotse.CutSet.from_manifests(recordings, supervisions)
    cuts.to_file(tmp_path / "cuts.jsonl.gz")
    recordings.to_file(tmp_path / "x_recordings.jsonl.gz")
    supervisions.to_file(tmp_path / "x_supervisions.jsonl.gz")
    for name in ("cuts", "x_supervisions"):
        (utterance,) = read(tmp_path / f"{name}.jsonl.gz").utterances
        assert (utterance.audio, utterance.start, utterance.duration) == ("r.wav", 0.5, 2.0)
        assert (utterance.text, utterance.speaker) == ("hello", "ben")


@pytest.mark.parametrize(
    "change",
    [
        {"text": 5},
        {"alignment": {"word": [["good", 0.1]]}},
        {"alignment": {"word": [["good", 0.5, -0.9]]}},
        {"alignment": {"word": [["good", 0.5, float("nan")]]}},
        {"duration": 10**400},
        {"id": "\ud800"},
    ],
    ids=str,
)
def test_a_cut_that_makes_no_sense_is_named(tmp_path, change):
    record(tmp_path / "r.wav", 3.0)
    bad = json.loads(json.dumps(CUT))
    bad["supervisions"][0] |= change
    corpus = read(manifest(tmp_path, [CUT, bad], "cuts.jsonl"))
    assert [u.id for u in corpus.utterances] == ["sup-1"]
    assert len(corpus.problems) == 1


def test_a_supervision_that_began_before_its_cut(tmp_path):
    record(tmp_path / "r.wav", 3.0)
    early = json.loads(json.dumps(CUT))
    early["supervisions"][0] |= {"start": -0.4, "alignment": None}
    (utterance,) = read(manifest(tmp_path, [early], "cuts.jsonl")).utterances
    assert utterance.start == pytest.approx(1.0)
    assert utterance.duration == pytest.approx(0.6)


def test_a_recording_with_a_file_a_channel(tmp_path):
    cut = json.loads(json.dumps(CUT))
    cut["recording"]["channel_ids"] = [0, 1]
    cut["recording"]["sources"] = [
        {"type": "file", "channels": [n], "source": f"r{n}.wav"} for n in (0, 1)
    ]
    cut["supervisions"][0]["channel"] = 1
    (utterance,) = read(manifest(tmp_path, [cut], "cuts.jsonl")).utterances
    assert (utterance.audio, utterance.channel) == ("r1.wav", 0)


def test_lhotse_supervisions_need_their_recordings(tmp_path):
    path = manifest(tmp_path, [CUT["supervisions"][0]], "x_supervisions.jsonl")
    with pytest.raises(ValueError, match=r"x_recordings\.jsonl beside it"):
        read(path)


def test_a_folder_of_recordings_and_texts(tmp_path):
    folder_of_texts(tmp_path, {"anna/one": "eins", "anna/two": "zwei", "three": "drei"})
    record(tmp_path / "alone.wav")
    (tmp_path / "silent.txt").write_text("nobody hears this")
    corpus = read(tmp_path)
    found = by_id(corpus)
    assert found["anna/two"].text == "zwei"
    assert found["anna/two"].speaker == "anna"
    assert found["three"].speaker == ""
    assert corpus.problems.counts() == {"no transcript": 1, "missing file": 1}


def test_file_names_can_tell_text_and_speaker(tmp_path):
    record(tmp_path / "7_jackson_32.wav")
    record(tmp_path / "1_0_theo_1.wav")
    record(tmp_path / "README.wav")
    words = {"7": "seven", "1": "one", "0": "zero"}
    corpus = read(tmp_path, Reading(name="{text}_{speaker}_{index}", words=words))
    assert {u.text: u.speaker for u in corpus.utterances} == {
        "seven": "jackson",
        "one zero": "theo",
    }
    assert corpus.problems.counts() == {"no transcript": 1}
    for wrong in ("nothing", "{text}_{text}", "{what}"):
        with pytest.raises(ValueError, match="--name"):
            read(tmp_path, Reading(name=wrong))


def test_a_manifest_of_our_own_comes_back_as_it_was(tmp_path):
    record(tmp_path / "a.wav")
    utterances = [
        Utterance("x", "a.wav", "hello", "anna", "en", "dev", 0.25, 0.5, 0,
                  (Label(0.0, 0.5, "hello"),), (Label(0.0, 0.1, "h"),), {"snr": 3.5}),
        Utterance("y", "a.wav", "ciao"),
    ]  # fmt: skip
    write(tmp_path / "m.jsonl", utterances, tmp_path)
    assert read(tmp_path / "m.jsonl").utterances == utterances
    write(tmp_path / "sub" / "m.jsonl", utterances, tmp_path)
    allowed = read(tmp_path / "sub" / "m.jsonl", Reading(allow_outside=True))
    assert {u.audio for u in allowed.utterances} == {"../a.wav"}
    assert read(tmp_path / "sub" / "m.jsonl").problems.counts() == {"path outside the corpus": 2}


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_says_what_it_expects(kind, tmp_path):
    said = f"read as {kind}: .+" if kind not in ("regatta", "nemo", "lhotse") else "cannot read .+"
    with pytest.raises(ValueError, match=said):
        read(tmp_path, Reading(kind=kind))


def test_what_is_no_corpus_is_told_what_would_be(tmp_path):
    with pytest.raises(ValueError, match="there is no corpus"):
        read(tmp_path / "nowhere")
    with pytest.raises(ValueError, match="the folder is empty"):
        read(tmp_path)
    (tmp_path / "a.m4a").write_bytes(b"x")
    with pytest.raises(ValueError, match=r"\.m4a cannot be read"):
        read(tmp_path)
    kaldi(tmp_path / "inner" / "data")
    with pytest.raises(ValueError, match=r"inner/data is: name that one"):
        read(tmp_path / "inner")
    manifest(tmp_path / "two", [{"audio_filepath": "a.wav", "text": "a"}], "train.jsonl")
    with pytest.raises(ValueError, match=r"holds train\.jsonl: name one of them"):
        read(tmp_path / "two")
    (tmp_path / "half").mkdir()
    (tmp_path / "half" / "manifest.jsonl.partial").write_text("")
    with pytest.raises(ValueError, match="never finished"):
        read(tmp_path / "half")
    with pytest.raises(ValueError, match="librispeech"):
        read(tmp_path, Reading(kind="librispeach"))


# -- alignments ------------------------------------------------------------------------------

LONG = """File type = "ooTextFile"
Object class = "TextGrid"

xmin = 0
xmax = 1.0
tiers? <exists>
size = 2
item []:
    item [1]:
        class = "IntervalTier"
        name = "words"
        xmin = 0
        xmax = 1.0
        intervals: size = 2
        intervals [1]:
            xmin = 0
            xmax = 0.4
            text = "said ""yes"" 2"
        intervals [2]:
            xmin = 0.4
            xmax = 1.0
            text = ""
    item [2]:
        class = "IntervalTier"
        name = "phones"
        xmin = 0
        xmax = 1.0
        intervals: size = 1
        intervals [1]:
            xmin = 0.1
            xmax = 0.4
            text = "s"
"""
SHORT = """File type = "ooTextFile"
Object class = "TextGrid"

0
1.0
<exists>
2
"IntervalTier"
"words"
0
1.0
2
0
0.4
"said ""yes"" 2"
0.4
1.0
""
"IntervalTier"
"phones"
0
1.0
1
0.1
0.4
"s"
"""


@pytest.mark.parametrize("text", [LONG, SHORT], ids=["long", "short"])
def test_textgrids_long_and_short(text):
    assert textgrid(text) == {
        "words": [Label(0.0, 0.4, 'said "yes" 2')],
        "phones": [Label(0.1, 0.4, "s")],
    }


@pytest.mark.parametrize("text", ["", "hello", LONG[:300], SHORT[:140]])
def test_a_textgrid_that_is_cut_short_is_refused(text):
    with pytest.raises(ValueError, match=r"TextGrid"):
        textgrid(text)


@pytest.mark.parametrize("encoding", ["utf-8", "utf-16"])
def test_alignments_are_attached(tmp_path, encoding):
    folder_of_texts(tmp_path / "audio", {"one": "eins", "two": "zwei"})
    ctm = "one 1 0.1 0.2 eins 0.99\ntwo A 0.5 0.25 zwei\n;; a remark\nnine 1 0 1 x\nbroken\n"
    (tmp_path / "words.ctm").write_text(ctm)
    corpus = read(tmp_path / "audio", Reading(align=tmp_path / "words.ctm"))
    (word,) = by_id(corpus)["one"].words
    assert word.name == "eins"
    assert word.end == pytest.approx(0.3)
    assert corpus.problems.counts() == {"broken line": 1, "alignment without utterance": 1}
    grids = tmp_path / "grids"
    grids.mkdir()
    (grids / "two.TextGrid").write_text(LONG, encoding=encoding)
    (grids / "one.TextGrid").write_text("nonsense")
    corpus = read(tmp_path / "audio", Reading(align=grids))
    assert by_id(corpus)["two"].phones == (Label(0.1, 0.4, "s"),)
    assert corpus.problems.counts() == {"broken alignment": 1}
    with pytest.raises(ValueError, match="there is no alignment"):
        read(tmp_path / "audio", Reading(align=tmp_path / "nowhere"))


def test_alignments_of_files_that_are_named_alike(tmp_path):
    """As aligners write them: a folder a speaker."""
    folder_of_texts(tmp_path / "audio", {"s1/001": "eins", "s2/001": "zwei", "003": "drei"})
    grids = tmp_path / "grids"
    for name in ("s1/001", "far/003", "s9/001"):
        (grids / name).parent.mkdir(parents=True, exist_ok=True)
        (grids / f"{name}.TextGrid").write_text(LONG)
    corpus = read(tmp_path / "audio", Reading(align=grids))
    found = by_id(corpus)
    assert found["s1/001"].phones
    assert not found["s2/001"].phones
    assert found["003"].phones  # no other is called so
    assert [p.where for p in corpus.problems] == ["s9/001"]


def test_times_before_the_start_are_the_start(tmp_path):
    folder_of_texts(tmp_path, {"one": "eins"})
    early = LONG.replace("xmin = 0.1", "xmin = -0.1").replace('"phones"', '"anna - phones"')
    (tmp_path / "one.TextGrid").write_text(early)
    corpus = read(tmp_path, Reading(align=tmp_path / "one.TextGrid"))
    assert corpus.utterances[0].phones == (Label(0.0, 0.4, "s"),)
    write(tmp_path / "m.jsonl", corpus.utterances, tmp_path)
    assert read(tmp_path / "m.jsonl").utterances == corpus.utterances


@pytest.mark.parametrize("count", ["1e999", "99999999", "-1", "nan"])
def test_a_textgrid_that_promises_too_much_is_refused(count):
    with pytest.raises(ValueError, match="TextGrid"):
        textgrid(LONG.replace("size = 1", f"size = {count}"))


def test_labels_that_overlap_are_left_out(tmp_path):
    folder_of_texts(tmp_path, {"one": "eins"})
    (tmp_path / "w.ctm").write_text("one 1 0.1 0.5 a\none 1 0.2 0.5 b\n")
    corpus = read(tmp_path, Reading(align=tmp_path / "w.ctm"))
    assert corpus.utterances[0].words == ()
    assert corpus.problems.counts() == {"broken alignment": 1}


# -- split and merge -------------------------------------------------------------------------


def rows_of(root, speakers: int, each: int):
    rows = []
    for speaker in range(speakers):
        for n in range(each):
            record(root / f"{speaker}-{n}.wav", 0.2 + 0.1 * speaker)
            rows.append({"id": f"{speaker}-{n}", "audio": f"{speaker}-{n}.wav",
                         "text": f"text {n % 3}", "speaker": str(speaker)})  # fmt: skip
    return manifest(root, rows)


@pytest.mark.parametrize("by", ["speaker", "text", "utterance"])
def test_no_two_splits_share_a_speaker_or_a_text(tmp_path, by):
    corpus = read(rows_of(tmp_path, 10, 4))
    parts = split(corpus, dev=0.2, test=0.2, by=by)
    keys = [
        {u.id if by == "utterance" else getattr(u, by) for u in part} for part in parts.values()
    ]
    assert sum(map(len, parts.values())) == 40
    assert all(parts.values())
    assert len(set.union(*keys)) == sum(map(len, keys))
    assert parts == split(read(tmp_path), dev=0.2, test=0.2, by=by)
    seconds = {name: sum(u.duration for u in part) for name, part in parts.items()}
    if by != "text":  # three texts cannot be split so finely
        assert seconds["dev"] / sum(seconds.values()) == pytest.approx(0.2, abs=0.06)


def test_a_split_that_cannot_be_is_refused(tmp_path):
    corpus = read(rows_of(tmp_path, 2, 2))
    with pytest.raises(ValueError, match="2 speakers cannot be split in 3"):
        split(corpus, 0.2, 0.2)
    with pytest.raises(ValueError, match="leave something to train on"):
        split(corpus, 0.5, 0.5)
    with pytest.raises(ValueError, match="--by"):
        split(corpus, 0.1, 0.1, by="age")


def test_merged_corpora_keep_their_audio_and_their_names(tmp_path):
    folder_of_texts(tmp_path / "a", {"one": "eins", "two": "zwei"})
    folder_of_texts(tmp_path / "b", {"one": "uno"})
    both = merge([read(tmp_path / "a"), read(tmp_path / "b")])
    assert {u.id: u.text for u in both.utterances} == {"one": "eins", "two": "zwei", "b/one": "uno"}
    assert all((both.root / u.audio).is_file() for u in both.utterances)
