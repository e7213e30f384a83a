"""kill -9 of a rank in mid-run, then resume: nothing is lost beyond the last checkpoint."""

from dataclasses import replace

import pytest
from real import RECIPE, command, light_fuse, plan

from regatta import checkpoint, folders, runs
from regatta.events import Checkpointed, Evaluated, RankEnded, Resumed, read
from regatta.strategies import registry
from regatta.worlds.launch import RankFailed

pytestmark = pytest.mark.real
OFTEN = ("checkpointing.every=0.25", "stop.epochs=1.5")
DETERMINISTIC = [name for name, kind in registry().items() if kind().deterministic]


def digests(folder):
    return {e.rank: e.digest for e in read(folder / "events.jsonl") if isinstance(e, RankEnded)}


def kill_and_resume(folder, tmp_path, name, workers, turn):
    rank = 0 if workers == 1 else 1
    settings = ("death.then=stop", *OFTEN, *light_fuse(tmp_path, rank, turn))
    made = plan(folder, name, workers, settings)
    with pytest.raises(RankFailed, match="SIGKILL"):
        runs.train(made)
    saved = checkpoint.newest(made.checkpoints).name
    runs.train(made, resume=True)
    return saved


@pytest.mark.parametrize("name", DETERMINISTIC)
def test_a_deterministic_run_ends_as_if_undisturbed(name, tmp_path):
    workers = 1 if name == "single" else 2
    undisturbed = plan(tmp_path / "whole", name, workers, OFTEN)
    runs.train(undisturbed)
    kill_and_resume(tmp_path / "broken", tmp_path, name, workers, turn=25)
    assert digests(tmp_path / "broken") == digests(tmp_path / "whole")
    assert runs.replay(tmp_path / "broken").identical


def test_an_asynchronous_run_resumed_replays_as_a_whole(tmp_path):
    saved = kill_and_resume(tmp_path / "run", tmp_path, "parameter-server", 2, turn=35)
    assert int(saved) >= 2, "it died too early to show anything"
    assert runs.replay(tmp_path / "run").identical
    events = read(tmp_path / "run" / "events.jsonl")
    resumed = next(e for e in events if isinstance(e, Resumed))
    assert resumed.segment == int(saved)
    times = [e.time for e in events if isinstance(e, Evaluated)]
    assert times == sorted(times), "the clock went on where the checkpoint was"
    segments = [e.segment for e in events if isinstance(e, Checkpointed)]
    assert segments == sorted(set(segments)), "every checkpoint counts once"


def test_resume_goes_on_beyond_the_first_end(tmp_path):
    """More epochs for a finished run, by the command line."""
    words = ("train", RECIPE, "-o", tmp_path / "run")
    first = command(*words, "-s", "all-reduce", "-n", "2", "--set", "stop.epochs=1")
    assert first.returncode == 0, first.stderr
    turns = max(e.turns for e in ended(tmp_path / "run"))
    more = command(*words, "--resume", "--set", "stop.epochs=2")
    assert more.returncode == 0, more.stderr
    assert max(e.turns for e in ended(tmp_path / "run")) == 2 * turns
    assert "resumed" in more.stdout
    assert runs.replay(tmp_path / "run").identical


@pytest.mark.parametrize("name", ["averaging", "parameter-server", "ring"])
def test_a_run_that_was_stopped_goes_on_and_replays_as_a_whole(name, tmp_path):
    """Stopped by the clock in the middle of a segment, then given more epochs."""
    stopped = plan(tmp_path / "run", name, 2, ("stop.epochs=1000", "stop.seconds=0.3"))
    turns = max(e.turns for e in runs.train(stopped))
    per_epoch = 1024 // (2 * 16)
    epochs = turns // per_epoch + 2
    more = plan(tmp_path / "run", name, 2, (f"stop.epochs={epochs}",))
    stops = folders.open_plan(tmp_path / "run")[0].stops
    again = runs.train(replace(more, stops=stops), resume=True)
    assert {e.turns for e in again if e.role == "worker"} == {epochs * per_epoch}
    assert runs.replay(tmp_path / "run").identical


def ended(folder):
    return [e for e in read(folder / "events.jsonl") if isinstance(e, RankEnded)]


def test_a_damaged_checkpoint_is_refused_by_name(tmp_path):
    made = plan(tmp_path / "run", "all-reduce", 2, ("stop.epochs=0.5",))
    runs.train(made)
    tensors = checkpoint.newest(made.checkpoints) / "rank-1.safetensors"
    tensors.write_bytes(tensors.read_bytes()[:-7])
    before = sorted(p for p in made.folder.rglob("*") if p.is_file())
    done = command("train", RECIPE, "-o", made.folder, "--resume")
    assert done.returncode == 1
    assert "rank-1.safetensors is damaged" in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1
    assert sorted(p for p in made.folder.rglob("*") if p.is_file()) == before


@pytest.mark.parametrize("file", ["rank-1.safetensors", "rank-0.json", "answer.safetensors"])
def test_a_run_goes_on_before_a_damaged_checkpoint_and_says_so(file, tmp_path):
    settings = (*OFTEN, "checkpointing.keep=3")
    whole = plan(tmp_path / "whole", "all-reduce", 2, settings)
    runs.train(whole)
    made = plan(tmp_path / "run", "all-reduce", 2, (*settings, "stop.epochs=1"))
    runs.train(made)
    newest = checkpoint.newest(made.checkpoints)
    damaged = newest / file
    contents = bytearray(damaged.read_bytes())
    contents[len(contents) // 2] ^= 4
    damaged.write_bytes(contents)
    done = command("train", RECIPE, "-o", made.folder, "--resume", "--set", "stop.epochs=1.5")
    assert done.returncode == 0, done.stderr
    (note,) = [line for line in done.stderr.splitlines() if line.startswith("note:")]
    assert str(damaged) in note
    assert "is damaged" in note
    assert note.endswith("going on from 000003")
    assert digests(made.folder) == digests(whole.folder)
    assert runs.replay(made.folder).identical
    assert (newest.with_suffix(".damaged") / file).exists()


def test_a_foreign_checkpoint_is_refused(tmp_path):
    made = plan(tmp_path / "run", "all-reduce", 2, ("stop.epochs=0.5",))
    runs.train(made)
    done = command("train", RECIPE, "-o", made.folder, "--resume", "--set", "minibatch=32")
    assert done.returncode == 2
    assert "configured differently" in done.stderr
