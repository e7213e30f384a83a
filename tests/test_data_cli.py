"""The data commands, as a person types them."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest
from real import REGATTA
from speaking import corpus_of, folder_of_texts, manifest, record

from regatta.data.problems import Problems


def regatta(*words: object, code: int = 0) -> str:
    done = subprocess.run(
        [*REGATTA, "data", *map(str, words)],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == code, done.stdout + done.stderr
    return done.stdout + done.stderr


def test_from_nothing_to_features(tmp_path):
    pytest.importorskip("espeakng_loader")
    speech, features = tmp_path / "speech", tmp_path / "features"
    told = json.loads(regatta("synth", "--hours", 0.005, "--out", speech, "--json"))
    assert told["hours"] == pytest.approx(0.005, rel=0.6)
    looked = json.loads(regatta("inspect", speech, "--json"))
    assert looked["utterances"] == told["utterances"]
    assert looked["with_phones"] == told["utterances"]
    assert "can be used" in regatta("validate", speech)
    made = json.loads(regatta("features", speech, "--split", "train", "--out", features, "--json"))
    assert made["utterances"] == looked["splits"]["train"]["utterances"]
    assert "80 log-mels and 13 cepstra" in regatta("inspect", features)
    assert "no split valid: there are dev, test, train" in regatta(
        "inspect", speech, "--split", "valid", code=2
    )


def test_features_are_neither_replaced_nor_trusted_blindly(tmp_path):
    speech, features = corpus_of(tmp_path / "c", 8), tmp_path / "features"
    regatta("features", speech, "--out", features)
    told = regatta("features", speech, "--out", features, "--set", "mels=40", code=2)
    assert "made with other options: name another folder, or let them go with --force" in told
    regatta("features", speech, "--out", features, "--set", "mels=40", "--force")
    shard = features / "shard-00000.arrow"
    shard.write_bytes(shard.read_bytes()[:-9])
    assert "has changed since it was written" in regatta("validate", features, code=2)


def test_a_corpus_with_problems(tmp_path):
    root = corpus_of(tmp_path, 4)
    text = (root / "manifest.jsonl").read_text()
    (root / "manifest.jsonl").write_text(
        text + '{"id": "gone", "audio": "gone.wav", "text": "x"}\n'
    )
    told = regatta("validate", root, code=1)
    assert "1 x missing file, left out: restore the file" in told
    assert "gone" in told
    assert "4 can be used, 1 left out" in told
    again = regatta("features", root, "--out", tmp_path / "f", "--set", "mels=40")
    assert "1 x missing file" in again
    assert "40 log-mels" in again


def test_import_split_and_merge(tmp_path):
    digits = tmp_path / "digits"
    for digit in range(4):
        for speaker in ("anna", "ben", "carl"):
            record(digits / f"{digit}_{speaker}_0.wav", 0.5)
    words = "0=zero,1=one,2=two,3=three"
    options = ("--name", "{text}_{speaker}_{index}", "--words", words)
    made = digits / "manifest.jsonl"
    assert "12 utterances" in regatta("import", digits, *options, "--out", made)
    texts = {json.loads(line)["text"] for line in made.read_text().splitlines()}
    assert texts == {"zero", "one", "two", "three"}
    assert "there already" in regatta("import", digits, *options, "--out", made, code=2)
    told = regatta("split", digits, "--dev", 0.3, "--test", 0.3, "--out", digits)
    assert told.count("1 speaker") == 3
    assert "already" in regatta("split", digits, "--out", digits, code=2)
    folder_of_texts(tmp_path / "more", {"a": "hello"})
    merged = tmp_path / "all.jsonl"
    assert "13 utterances" in regatta("merge", digits, tmp_path / "more", "--out", merged)
    assert json.loads(regatta("inspect", merged, "--json"))["utterances"] == 13


def test_a_manifest_elsewhere_says_how_it_is_read(tmp_path):
    folder_of_texts(tmp_path / "a", {"one": "eins"})
    far = tmp_path / "far" / "m.jsonl"
    assert "--allow-outside" in regatta("import", tmp_path / "a", "--out", far)
    assert "path outside the corpus" in regatta("inspect", far)
    assert "1 can be used" in regatta("inspect", far, "--allow-outside")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("inspect", "nowhere"), "there is no corpus nowhere"),
        (("synth", "--languages", "de", "--out", "x"), "some of en, fr, it"),
        (("synth", "--snr", "9", "--out", "x"), "--snr '9' is not 2 numbers"),
        (("synth", "--hours", "0", "--out", "x"), "hours must be above 0"),
        (("features", ".", "--out", "x", "--set", "melz=3"), "mels"),
        (("features", ".", "--out", "x", "--dtype", "int8"), "float32 or float16"),
        (("inspect", ".", "--words", "zero"), "written=spoken"),
        (("inspect", "a.wav"), "it is a recording; name the folder"),
        (("import", ".", "--out", "m"), "name ends with .jsonl"),
        (("import", ".", "--out", "a.wav/m.jsonl"), "cannot write to a.wav/m.jsonl"),
        (("synth", "--out", "a.wav"), "a.wav is a file"),
        (("validate", ".", "--jobs", "0"), "--jobs"),
        (("inspect", ".", "--kind", "nemmo"), "nemo"),
    ],
)
def test_errors_name_the_option(words, said, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    record(Path("a.wav"))
    Path("a.txt").write_text("a")
    assert said in regatta(*words, code=2)


def test_features_in_the_way_of_others_are_refused(tmp_path):
    root = corpus_of(tmp_path / "c", 3)
    assert "is not empty" in regatta("features", root, "--out", root, code=2)


def test_an_alphabet_can_be_named(tmp_path):
    record(tmp_path / "a.wav", 2.0)
    manifest(tmp_path, [{"id": "a", "audio": "a.wav", "text": "привет"}])
    assert "unknown symbols" in regatta("validate", tmp_path, code=1)
    assert "1 can be used" in regatta("validate", tmp_path, "--alphabet", "auto")
    assert "1 can be used" in regatta("validate", tmp_path, "--alphabet", "приветь ")


def test_a_line_tells_what_is_left_out_from_what_is_used_all_the_same():
    found = Problems()
    for number in range(5):
        found.note("other rate", f"u{number}", used=True)
    found.note("missing file", "u9")
    used, left_out = found.lines()
    assert used.startswith("5 x other rate, used all the same: ")
    assert used.endswith("(u0, u1, u2, ...)")
    assert left_out.startswith("1 x missing file, left out: ")
    assert left_out.endswith("(u9)")
