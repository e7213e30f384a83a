"""Twins: what real processes did, the virtual world does again, bit for bit."""

import json
from dataclasses import replace

import pytest
from helpers import built, every_spec, permits
from real import plan

from regatta import choices, folders, runs

pytestmark = pytest.mark.real


def specs_and_sizes():
    """Every mode with 2, 3 and 5 workers."""
    for spec in every_spec():
        for workers in (1,) if spec == "single" else (2, 3, 5):
            if permits(built(spec), workers):
                yield pytest.param(spec, workers, id=f"{spec}-{workers}")


@pytest.mark.parametrize(("spec", "workers"), list(specs_and_sizes()))
def test_replay_is_identical(spec, workers, tmp_path):
    buckets = 0 if "compress" in spec else 512
    made = plan(
        tmp_path / "run", spec, workers, ("checkpointing.every=1", f"bucket_bytes={buckets}")
    )
    ended = runs.train(made)
    replay = runs.replay(made.folder)
    assert replay.identical, (replay.recorded, replay.replayed)
    assert len(replay.recorded) == made.run.num_ranks
    assert len({e.digest for e in ended}) == 1, "all ranks hand over the same model"


def test_asynchronous_replay_is_identical_ten_times(tmp_path):
    digests = set()
    for number in range(10):
        made = plan(tmp_path / str(number), "parameter-server", 3, ("stop.epochs=1",))
        runs.train(made)
        replay = runs.replay(made.folder)
        assert replay.identical, number
        digests.add(replay.recorded[3])
    assert len(digests) > 1, "ten asynchronous runs alike: chance was not at work"


def test_replay_without_the_record_differs(tmp_path):
    """The control: other choices give other weights, and the comparison notices."""
    made = plan(tmp_path / "run", "parameter-server", 3, ("stop.epochs=1",))
    runs.train(made)
    order = choices.read(made.choices)[0, 3, "recv"]
    others = [(worker + 1) % 3 for worker in order]
    made.choices.write_text(json.dumps({"segment": 0, "rank": 3, "recv": others}) + "\n")
    assert not runs.replay(made.folder).identical


def test_a_stop_by_chance_replays(tmp_path):
    """Seconds and targets end streams at turns that only the record knows."""
    made = plan(tmp_path / "run", "all-reduce", 3, ("stop.epochs=1000", "stop.seconds=0.5"))
    ended = runs.train(made)
    assert max(e.turns for e in ended) < 21_000
    assert runs.replay(made.folder).identical


def test_a_stop_by_target_replays(tmp_path):
    made = plan(tmp_path / "run", "parameter-server", 2, ("stop.epochs=1000", "stop.target=0.5"))
    runs.train(made)
    assert runs.replay(made.folder).identical


def test_replay_of_another_seed_differs(tmp_path):
    made = plan(tmp_path / "run", "all-reduce", 2, ("stop.epochs=1",))
    runs.train(made)
    stored = json.loads((made.folder / "run.json").read_text())
    stored["run"]["seed"] = 1
    del stored["sha256"]  # what is changed by hand is refused otherwise
    (made.folder / "run.json").write_text(json.dumps(stored))
    assert replace(made.run, seed=1) == folders.open_plan(made.folder)[0].run
    assert not runs.replay(made.folder).identical
