"""`regatta evaluate`: a run's numbers again, other data, other decoders, what is refused."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from helpers import Quadratic, small_run
from phones import described, spoken
from speaking import folder_of_texts, manifest, record
from typer.testing import CliRunner

from regatta import checkpoint
from regatta.checkpoint import BadCheckpoint
from regatta.cli import app
from regatta.config import Checkpointing, Evaluation, Recording, Run, Stop
from regatta.data.features import Features
from regatta.decode.decoding import Decoding
from regatta.decode.errors import Comparison, Pair
from regatta.evaluating import Answer
from regatta.events import Evaluated, read
from regatta.folders import Plan
from regatta.learn.optimisers import Adam, Sgd
from regatta.models.recogniser import Network
from regatta.recognise.evaluating import Outputs, Scored, widths_table
from regatta.runs import simulate
from regatta.tasks.speech import Speech
from regatta.tasks.teacher import Teacher

RATES = ("wer", "cer", "cer_longer")


def trained(folder: Path, task: object, epochs: float = 8.0, **changes: object) -> Path:
    run = Run(
        task=task, optimiser=Adam(lr=0.05), minibatch=4, stop=Stop(epochs=epochs),
        evaluation=Evaluation(every=epochs), recording=Recording(sentences=0),
    )  # fmt: skip
    run = replace(run, **changes)
    simulate(run, Plan("speech", run, folder))
    return folder


@pytest.fixture(scope="module")
def home(tmp_path_factory) -> Path:
    """Corpora and features of utterances whose letters are tones, and a run that learnt them."""
    root = tmp_path_factory.mktemp("evaluate")
    for n, (name, size) in enumerate((("train", 40), ("dev", 10)), 1):
        corpus = spoken(root / f"{name}-corpus", size, phones="abcde", seed=n, repeats=False)
        described(corpus, root / name)
    network = Network(channels=8, kernel=3, stride=1, hidden=12, layers=1, dropout=0.0)
    task = Speech(str(root / "train"), str(root / "dev"), network=network)
    trained(root / "run", task)
    return root


def evaluated(*given: object) -> dict[str, object]:
    result = CliRunner().invoke(app, ["evaluate", *map(str, given), "--json"])
    assert result.exit_code == 0, result.exception
    found: dict[str, object] = json.loads(result.stdout)
    return found


def refused(*given: object) -> str:
    result = CliRunner().invoke(app, ["evaluate", *map(str, given)])
    assert isinstance(result.exception, ValueError), (result.exception, result.stdout)
    return str(result.exception)


def last_results(run: Path) -> dict[str, float]:
    return [e for e in read(run / "events.jsonl") if isinstance(e, Evaluated)][-1].results


# -- the numbers ------------------------------------------------------------------------------


def test_the_numbers_are_those_of_the_run(home):
    found, run = evaluated(home / "run"), last_results(home / "run")
    assert 0 < run["cer"] < 1
    assert {name: found[name] for name in run} == run
    assert found["recorded"] == run
    assert found["sentences"] == 10
    assert found["words"] == 10


@pytest.mark.parametrize("decoding", [Decoding("prefix", width=6), Decoding("words", 6),
                                      Decoding("words", 6, "ngrams")])  # fmt: skip
def test_a_run_that_decodes_otherwise_has_the_same_numbers_too(home, tmp_path, decoding):
    """Its own options are the default, and counted texts are those that it learnt from."""
    task = replace(Answer.open(home / "run").task, decoding=decoding)
    run = trained(tmp_path / "run", task, epochs=2.0)
    assert {name: evaluated(run)[name] for name in RATES} == {
        name: last_results(run)[name] for name in RATES
    }


def test_speakers_are_normalised_as_in_the_run(home, tmp_path):
    task = replace(Answer.open(home / "run").task, normalise="speaker")
    run = trained(tmp_path / "run", task, epochs=2.0)
    found = evaluated(run, "--data", home / "dev")
    assert {name: found[name] for name in RATES} == {n: last_results(run)[n] for n in RATES}


def test_a_file_features_and_a_corpus_are_the_same(home):
    run = evaluated(home / "run")
    file = home / "run" / "checkpoints" / "best.safetensors"
    for given in (
        (file,),
        (home / "run", "--data", home / "dev"),
        (file, "--data", home / "dev-corpus"),
        (file, "--data", home / "dev-corpus" / "manifest.jsonl", "--jobs", 2),
    ):
        found = evaluated(*given)
        assert [found[n] for n in (*RATES, "loss")] == [run[n] for n in (*RATES, "loss")]


def test_beam_widths_are_rows_beside_the_best_path(home):
    options = ("--decoder", "prefix", "--beam-widths", "1,4,16")
    found = evaluated(home / "run", *options)
    rows = found["beam_widths"]
    assert [row["width"] for row in rows] == [None, 1, 4, 16]
    assert rows[0]["wer"] == last_results(home / "run")["wer"]
    alone = evaluated(home / "run", "--decoder", "prefix", "--width", 4)
    assert {name: rows[2][name] for name in RATES} == {name: alone[name] for name in RATES}
    assert found["width"] == 16
    for row in rows:
        total = found["network_seconds"] + row["decoding_seconds"]
        assert row["seconds"] == pytest.approx(total)
        assert row["real_time_factor"] == pytest.approx(total / found["audio_seconds"])


def test_beams_search_words_where_the_run_has_none(home):
    rows = evaluated(home / "run", "--beam-widths", "4")["beam_widths"]
    assert [row["decoder"] for row in rows] == ["greedy", "words"]


def test_set_names_any_option_of_the_decoding(home):
    found = evaluated(home / "run", "--decoder", "prefix", "--set", "decoding.pruning.symbols=3")
    assert found["decoding"]["pruning"]["symbols"] == 3
    assert found["decoding"]["decoder"] == "prefix"


def test_one_speaker_alone(home):
    everyone, one = evaluated(home / "run"), evaluated(home / "run", "--speaker", "s1")
    assert one["sentences"] == 5
    assert list(one["speakers"]) == ["s1"]
    assert one["wer"] == everyone["speakers"]["s1"]["wer"]


def test_the_dev_data_may_outlive_the_training_data(home, tmp_path):
    shutil.copytree(home / "dev", tmp_path / "dev")
    task = replace(Answer.open(home / "run").task, train=str(tmp_path / "gone"),
                   dev=str(tmp_path / "dev"))  # fmt: skip
    tensors, about = checkpoint.load_answer(Answer.open(home / "run").file)
    about["task"] |= {"train": task.train, "dev": task.dev}
    checkpoint.save_answer(tmp_path / "moved.safetensors", tensors, about)
    assert evaluated(tmp_path / "moved.safetensors")["wer"] == last_results(home / "run")["wer"]
    complaint = refused(tmp_path / "moved.safetensors", "--decoder", "words", "--mode", "ngrams")
    assert "counts the texts of the training, which are not here" in complaint
    assert complaint.endswith("name a language model with --lm")
    shutil.rmtree(tmp_path / "dev")
    complaint = refused(tmp_path / "moved.safetensors")
    assert complaint.startswith("the run's own data are not here (task.dev=")
    assert complaint.endswith("name features or a corpus with --data")


# -- what is shown ----------------------------------------------------------------------------


def test_what_a_person_sees(home, tmp_path):
    file = tmp_path / "new" / "listing.txt"
    result = CliRunner().invoke(
        app,
        ["evaluate", str(home / "run"), "--by-speaker", "--confusions", "3", "--listing", str(file),
         "--beam-widths", "2"],
    )  # fmt: skip
    assert result.exit_code == 0, result.exception
    for part in ("WER", "CER", "in its run", "Sum/Avg", "substitutions:", "| BW ", "| greedy |"):
        assert part in result.stdout
    listing = file.read_text()
    assert listing.count("id: (u") == 10
    assert listing.startswith("%WER")
    before = file.stat()
    assert "is there already" in refused(home / "run", "--listing", file)
    assert file.stat() == before


def test_speakers_that_nobody_named(home, tmp_path):
    rows = [json.loads(line) for line in (home / "dev-corpus/manifest.jsonl").open()]
    for row in rows:
        del row["speaker"]
    shutil.copytree(home / "dev-corpus", tmp_path / "corpus")
    manifest(tmp_path / "corpus", rows)
    given = [str(home / "run"), "--data", str(tmp_path / "corpus"), "--by-speaker"]
    result = CliRunner().invoke(app, ["evaluate", *given])
    assert "The data name no speakers." in result.stdout
    assert "the data name none" in refused(*given, "--speaker", "s0")


def test_the_form_of_the_papers_table_3():
    """By hand: a network of 2 s and a decoder of 1 s, for 100 s of speech."""
    comparison = Comparison.of([Pair("ab cd", "ab ce"), Pair("ab", "ab")])
    outputs = Outputs(None, (), 0.0, 100.0, 2.0)
    rows = [Scored(Decoding("greedy"), outputs, comparison, 0.5),
            Scored(Decoding("words", 64), outputs, comparison, 1.0)]  # fmt: skip
    lines = [[cell.strip() for cell in line.split("|")[1:-1]]
             for line in widths_table(rows).splitlines()]  # fmt: skip
    assert lines[0] == ["BW", "Time (sec)", "decoding", "real time", "WER", "CER", "CER longer"]
    assert lines[2] == ["greedy", "2.50", "0.50", "0.0250", "33.33", "14.286", "10.000"]
    assert lines[3] == ["64", "3.00", "1.00", "0.0300", "33.33", "14.286", "10.000"]


# -- what is left out or refused --------------------------------------------------------------


def test_texts_that_the_recogniser_cannot_write_are_left_out_and_told(home, tmp_path):
    corpus = shutil.copytree(home / "dev-corpus", tmp_path / "corpus")
    rows = [json.loads(line) for line in (corpus / "manifest.jsonl").open()]
    rows[3]["text"] = "жук"
    manifest(corpus, rows)
    assert evaluated(home / "run", "--data", corpus)["left_out"] == {"unknown symbols": 1}
    result = CliRunner().invoke(app, ["evaluate", str(home / "run"), "--data", str(corpus)])
    assert "1 x unknown symbols, left out" in result.stderr
    assert "u3: ж к у" in result.stderr
    manifest(corpus, [row | {"text": "жук"} for row in rows])
    complaint = refused(home / "run", "--data", corpus)
    assert complaint.startswith(f"{corpus}: no utterance can be used (10 x unknown symbols)")
    assert "the recogniser writes abcdefghijklmnopqrstuvwxyz'␣" in complaint


def test_features_of_another_kind_are_refused_by_both_names(home, tmp_path):
    described(home / "dev-corpus", tmp_path / "other", Features(mels=10, mfcc=3))
    complaint = refused(home / "run", "--data", tmp_path / "other")
    assert f"the features in {tmp_path / 'other'} have mels=10, mfcc=3" in complaint
    assert "learnt from mels=8, mfcc=0" in complaint


def test_data_that_are_none_are_refused(home, tmp_path):
    (tmp_path / "empty").mkdir()
    assert "the folder is empty" in refused(home / "run", "--data", tmp_path / "empty")
    record(tmp_path / "mute" / "one.wav")
    assert "1 x no transcript" in refused(home / "run", "--data", tmp_path / "mute")
    assert "there is no corpus" in refused(home / "run", "--data", tmp_path / "nowhere")
    shutil.copytree(home / "dev", tmp_path / "half")
    (tmp_path / "half" / "features.json").unlink()
    assert "never finished" in refused(home / "run", "--data", tmp_path / "half")


def test_longer_recordings_are_left_out_as_in_training(home, tmp_path):
    corpus = folder_of_texts(tmp_path / "corpus", {"long": "abc"}, seconds=18.0)
    complaint = refused(home / "run", "--data", corpus)
    assert "no utterance can be used (1 x too long)" in complaint
    assert evaluated(home / "run", "--data", corpus, "--max-seconds", 20)["sentences"] == 1


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        (("--speaker", "bob"), "--speaker bob: nobody of that name speaks here; there are s0, s1"),
        (("--beam-widths", "4,x"), "--beam-widths '4,x': numbers of 1 or more"),
        (("--beam-widths", "0"), "--beam-widths '0': numbers of 1 or more"),
        (("--beam-widths", "4", "--decoder", "greedy"), "greedy has no beams"),
        (("--decoder", "best"), "decoding.decoder must be one of greedy, prefix, words, not best"),
        (("--set", "network.hidden=3"), "'network': (known: decoding)"),
        (("--set", "decoding.wide=3"), "did you mean width?"),
        (("--split", "dev"), "options that say how to read a corpus need one"),
        (("--decoder", "words", "--lexicon", "/nowhere"), "/nowhere"),
    ],
)
def test_options_that_make_no_sense_are_refused(home, options, complaint):
    assert complaint in refused(home / "run", *options)


def test_how_to_read_a_corpus_says_nothing_of_features(home):
    assert "holds features" in refused(home / "run", "--data", home / "dev", "--split", "dev")


# -- other tasks and other files --------------------------------------------------------------


def test_any_task_has_its_own_results(tmp_path):
    task = Teacher(hidden=(8,), train=256, dev=64)
    run = trained(tmp_path / "run", task, epochs=1.0, optimiser=Sgd(lr=0.1))
    for given in (run, run / "checkpoints" / "best.safetensors"):
        found = evaluated(given)
        assert found["task"] == "teacher"
        assert found["results"] == last_results(run) == found["recorded"]
    result = CliRunner().invoke(app, ["evaluate", str(run)])
    assert f"{last_results(run)['accuracy']:.4f} in its run" in result.stdout
    assert "--data, --by-speaker is for recognisers" in refused(run, "--data", "x", "--by-speaker")


OWN = """
from dataclasses import replace
import sys
sys.path.insert(0, {tests!r})
from helpers import Quadratic, small_run

def mine():
    return small_run("single")
"""


def test_a_task_of_ones_own_is_found_by_its_recipe(tmp_path):
    recipe = tmp_path / "mine.py"
    recipe.write_text(OWN.format(tests=str(Path(__file__).parent)))
    run = small_run("single", checkpointing=Checkpointing(), task=Quadratic())
    simulate(run, Plan(f"{recipe}:mine", run, tmp_path / "run"))
    assert evaluated(tmp_path / "run")["results"] == last_results(tmp_path / "run")
    complaint = refused(tmp_path / "run" / "checkpoints" / "best.safetensors")
    assert "is of a task of one's own, quadratic: name the folder of its run" in complaint


def test_files_that_hold_no_model_are_refused(home, tmp_path):
    assert "does not exist" in refused(tmp_path / "nowhere")
    (tmp_path / "empty").mkdir()
    assert "holds no run" in refused(tmp_path / "empty")
    tensors, about = checkpoint.load_answer(Answer.open(home / "run").file)
    checkpoint.save_answer(tmp_path / "bare.safetensors", tensors, {})
    assert "does not say what it learnt" in refused(tmp_path / "bare.safetensors")
    about["description"]["alphabet"] = {"symbols": "xyz ", "fold": True, "separator": ""}
    checkpoint.save_answer(tmp_path / "other.safetensors", tensors, about)
    with pytest.raises(BadCheckpoint, match=r"other\.safetensors does not describe a recogniser"):
        CliRunner().invoke(
            app, ["evaluate", str(tmp_path / "other.safetensors")], catch_exceptions=False
        )
    (tmp_path / "cut.safetensors").write_bytes(Answer.open(home / "run").file.read_bytes()[:-40])
    assert "cut short" in refused(tmp_path / "cut.safetensors")


def test_weights_that_do_not_fit_their_task_are_refused(tmp_path):
    run = trained(tmp_path / "run", Teacher(hidden=(8,), train=256, dev=64), epochs=1.0)
    tensors, about = checkpoint.load_answer(Answer.open(run).file)
    about["task"]["hidden"] = [9]
    checkpoint.save_answer(tmp_path / "odd.safetensors", tensors, about)
    assert "does not fit the model of the task teacher" in refused(tmp_path / "odd.safetensors")
