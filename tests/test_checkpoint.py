"""Checkpoints: whole or refused by name, and never half a one."""

from __future__ import annotations

import json
import random

import pytest
import torch
from helpers import Normalised, play_from, small_run
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from regatta import checkpoint
from regatta.checkpoint import BadCheckpoint
from regatta.config import Checkpointing, Stop
from regatta.learn.optimisers import Sgd
from regatta.runs import Plan, simulate


def save(checkpoints, segment, ranks=2, keep=10):
    for rank in range(ranks):
        tensors = {"weights": torch.full((100,), float(rank + segment))}
        checkpoint.save_rank(checkpoints, segment, rank, tensors, {"turns": 17 + segment})
    part = checkpoints / f"{segment:06d}.part" / "answer.safetensors"
    checkpoint.save_answer(part, {"weight": torch.ones(3)}, {"results": {}})
    return checkpoint.publish(checkpoints, segment, ranks, "digest", keep)


@pytest.fixture
def saved(tmp_path):
    return save(tmp_path, 3)


def test_what_was_saved_is_loaded(tmp_path, saved):
    assert checkpoint.newest(tmp_path) == saved == tmp_path / "000003"
    tensors, numbers = checkpoint.load_rank(saved, 1)
    assert torch.equal(tensors["weights"], torch.full((100,), 4.0))
    assert numbers["turns"] == 20
    assert checkpoint.about(saved)["ranks"] == 2


def test_no_checkpoint_is_said(tmp_path):
    with pytest.raises(BadCheckpoint, match="holds no checkpoint to resume from"):
        checkpoint.newest(tmp_path)
    with pytest.raises(BadCheckpoint, match="holds no checkpoint"):
        checkpoint.newest(tmp_path / "nowhere")


def cut_short(path):
    path.write_bytes(path.read_bytes()[:-10])


def emptied(path):
    path.write_bytes(b"")


def change_a_byte(path):
    """One that is still a number or a text, so that only a digest can tell."""
    contents = bytearray(path.read_bytes())
    if path.suffix == ".json":
        at = next(n for n, byte in enumerate(contents) if chr(byte) in "1234")
        contents[at] += 1
    else:
        contents[-1] ^= 1
    path.write_bytes(contents)


def remove(path):
    path.unlink()


RANK_FILES = ["rank-1.safetensors", "rank-1.json"]


@pytest.mark.parametrize("damage", [cut_short, emptied, change_a_byte, remove])
@pytest.mark.parametrize("file", RANK_FILES)
def test_a_damaged_file_is_refused_by_name(tmp_path, saved, file, damage):
    damage(saved / file)
    for look in (lambda: checkpoint.newest(tmp_path), lambda: checkpoint.load_rank(saved, 1)):
        with pytest.raises(BadCheckpoint) as caught:
            look()
        assert str(saved) in str(caught.value)
    assert checkpoint.load_rank(saved, 0)[1]["turns"] == 20  # the other rank's share is whole


@pytest.mark.parametrize("damage", [cut_short, emptied, remove])
def test_a_damaged_manifest_is_refused_by_name(tmp_path, saved, damage):
    damage(saved / "checkpoint.json")
    with pytest.raises(BadCheckpoint, match=r"checkpoint\.json"):
        checkpoint.newest(tmp_path)


@pytest.mark.parametrize(
    "manifest",
    [{}, {"format": "another", "version": 1}, {"format": checkpoint.FORMAT, "version": 3}, [], 3],
)
def test_a_foreign_manifest_is_refused_by_name(tmp_path, saved, manifest):
    (saved / "checkpoint.json").write_text(json.dumps(manifest))
    with pytest.raises(BadCheckpoint, match="000003"):
        checkpoint.newest(tmp_path)


ALL_FILES = [*RANK_FILES, "rank-0.safetensors", "rank-0.json", "answer.safetensors",
             "checkpoint.json"]  # fmt: skip


@pytest.mark.parametrize("damage", [cut_short, emptied, change_a_byte, remove])
@pytest.mark.parametrize("file", ALL_FILES)
def test_a_run_goes_on_from_the_checkpoint_before_a_damaged_one(tmp_path, saved, file, damage):
    later = save(tmp_path, 4)
    damage(later / file)
    path, (complaint,) = checkpoint.newest_whole(tmp_path)
    assert path == saved
    assert str(later / file) in complaint
    assert complaint.endswith("going on from 000003")
    checkpoint.set_aside_after(path)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["000003", "000004.damaged"]
    assert checkpoint.newest(tmp_path) == saved
    assert save(tmp_path, 4) == later  # its number is free


def test_no_bit_of_a_checkpoint_can_turn_unnoticed(tmp_path, saved):
    later, chance = save(tmp_path, 4), random.Random(4)
    files = sorted(later.iterdir())
    assert {file.name for file in files} == set(ALL_FILES)
    for turn in range(600):
        file = files[turn % len(files)]
        before = file.read_bytes()
        changed = bytearray(before)
        changed[chance.randrange(len(before))] ^= 1 << chance.randrange(8)
        file.write_bytes(changed)
        assert checkpoint.newest_whole(tmp_path)[0] == saved, (file.name, bytes(changed))
        file.write_bytes(before)
    assert checkpoint.newest_whole(tmp_path) == (later, [])


def test_where_none_is_whole_all_are_named(tmp_path, saved):
    later = save(tmp_path, 4)
    remove(later / "rank-0.json")
    cut_short(saved / "rank-1.safetensors")
    with pytest.raises(BadCheckpoint) as caught:
        checkpoint.newest_whole(tmp_path)
    for name in (f"{later}/rank-0.json", f"{saved}/rank-1.safetensors", "no checkpoint is whole"):
        assert name in str(caught.value)
    assert len(str(caught.value).splitlines()) == 1


def test_a_checkpoint_of_another_folder_is_refused(tmp_path, saved):
    saved.rename(tmp_path / "000009")
    with pytest.raises(BadCheckpoint, match="it is of another folder"):
        checkpoint.newest(tmp_path)


def test_a_manifest_names_files_of_its_own_folder_only(tmp_path, saved):
    """/dev/zero has no end."""
    values = json.loads((saved / "checkpoint.json").read_text())
    values["sha256"]["/dev/zero"] = "0"
    values.pop("own_sha256")
    values["own_sha256"] = checkpoint._own_digest(values)
    (saved / "checkpoint.json").write_text(json.dumps(values))
    with pytest.raises(BadCheckpoint, match="of another folder"):
        checkpoint.newest(tmp_path)


def test_half_a_deletion_leaves_no_checkpoint(tmp_path, saved, monkeypatch):
    """Old ones count no more before their first file is gone."""
    monkeypatch.setattr(checkpoint.shutil, "rmtree", lambda path: None)
    save(tmp_path, 4, keep=1)
    assert [p.name for p in checkpoint.finished(tmp_path)] == ["000004"]


@pytest.mark.parametrize("damage", [cut_short, emptied, change_a_byte])
def test_a_damaged_model_is_refused(tmp_path, damage):
    path = tmp_path / "best.safetensors"
    checkpoint.save_answer(path, {"weight": torch.randn(50)}, {"results": {"loss": 1.0}})
    damage(path)
    with pytest.raises(BadCheckpoint, match=r"best\.safetensors is no whole safetensors file"):
        checkpoint.load_answer(path)


def test_a_model_that_others_have_saved_is_taken_as_it_is(tmp_path):
    save_file({"weight": torch.ones(3)}, tmp_path / "theirs.safetensors", {"about": "{}"})
    tensors, about = checkpoint.load_answer(tmp_path / "theirs.safetensors")
    assert torch.equal(tensors["weight"], torch.ones(3))
    assert about == {}


def test_the_best_model_goes_back_to_what_it_was(tmp_path):
    """What was found after a checkpoint that a run goes on from is found anew."""
    best = tmp_path / checkpoint.BEST
    checkpoint.save_answer(best, {"weight": torch.ones(3)}, {"results": {"loss": 2.0}})
    (tmp_path / "000003.part").mkdir()
    checkpoint.keep_best(tmp_path, 3)
    path = save(tmp_path, 3)
    checkpoint.save_answer(best, {"weight": torch.zeros(3)}, {"results": {"loss": 1.0}})
    checkpoint.take_up_best(path)
    assert checkpoint.load_answer(best)[1] == {"results": {"loss": 2.0}}
    without = save(tmp_path, 4)
    checkpoint.take_up_best(without)
    assert not best.exists()


def test_the_last_ones_are_kept(tmp_path):
    for segment in range(1, 6):
        save(tmp_path, segment, keep=2)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["000004", "000005"]
    assert checkpoint.newest(tmp_path).name == "000005"


def test_a_checkpoint_in_progress_is_never_found(tmp_path, saved):
    checkpoint.save_rank(tmp_path, 4, 0, {"weights": torch.ones(2)}, {})
    assert checkpoint.newest(tmp_path) == saved
    checkpoint.discard_unfinished(tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["000003"]


def test_only_a_checkpoint_in_progress_is_no_checkpoint(tmp_path):
    checkpoint.save_rank(tmp_path, 4, 0, {"weights": torch.ones(2)}, {})
    with pytest.raises(BadCheckpoint, match="no checkpoint"):
        checkpoint.newest(tmp_path)


def test_two_names_for_one_memory_are_both_saved(tmp_path):
    weights = torch.arange(4.0)
    checkpoint.save_answer(tmp_path / "a.safetensors", {"one": weights, "two": weights}, {})
    loaded = load_file(tmp_path / "a.safetensors")
    assert torch.equal(loaded["one"], weights)
    assert torch.equal(loaded["two"], weights)


def test_an_answer_says_what_it_is(tmp_path):
    path = tmp_path / "deep" / "a.safetensors"
    checkpoint.save_answer(path, {"one": torch.ones(1)}, {"samples": 5})
    with safe_open(path, framework="pt") as file:
        told = json.loads(file.metadata()["about"])
    assert told["samples"] == 5
    assert checkpoint.load_answer(path)[1] == {"samples": 5}
    before = path.read_bytes()
    checkpoint.save_answer(path, {"one": torch.ones(1)}, {"samples": 5})
    assert path.read_bytes() == before
    assert [p.name for p in path.parent.iterdir()] == ["a.safetensors"]  # nothing left aside


# -- as a run leaves them --------------------------------------------------------------------


@pytest.fixture
def run():
    return small_run(
        "parameter-server",
        2,
        task=Normalised(),
        optimiser=Sgd(lr=0.01),
        checkpointing=Checkpointing(every=0.5, keep=2),
        stop=Stop(epochs=2),
    )


def test_the_answer_is_the_plain_model(run, tmp_path):
    simulate(run, Plan("teacher", run, tmp_path))
    path = checkpoint.newest(tmp_path / "checkpoints")
    model = run.task.model()
    model.load_state_dict(load_file(path / "answer.safetensors"))
    events = [json.loads(line) for line in (tmp_path / "events.jsonl").read_text().splitlines()]
    ended = next(event for event in events if event["event"] == "ended")
    with torch.no_grad():
        assert run.task.open().evaluate(model.eval()) == ended["results"]


def test_the_best_answer_is_kept_beside(run, tmp_path):
    simulate(run, Plan("teacher", run, tmp_path))
    path = tmp_path / "checkpoints" / "best.safetensors"
    model = run.task.model()
    model.load_state_dict(load_file(path))
    with safe_open(path, framework="pt") as file:
        about = json.loads(file.metadata()["about"])
    with torch.no_grad():
        assert run.task.open().evaluate(model.eval()) == about["results"]


def test_a_run_keeps_its_last_checkpoints(run, tmp_path):
    simulate(run, Plan("teacher", run, tmp_path))
    folders = sorted(p.name for p in (tmp_path / "checkpoints").iterdir())
    assert folders == ["000003", "000004", "best.safetensors"]


def test_a_restored_rank_of_another_model_is_refused(run, tmp_path):
    simulate(run, Plan("teacher", run, tmp_path))
    other = small_run("parameter-server", 2)
    with pytest.raises(ValueError, match="belongs to another task or model"):
        play_from(other, resume_from=checkpoint.newest(tmp_path / "checkpoints"))
