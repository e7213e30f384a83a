"""Asked to leave by SIGTERM or SIGUSR1: saved, told by the exit code, and gone on with."""

import os
import signal
import subprocess

import pytest
from real import RECIPE, REGATTA, command, light_fuse, plan, torchrun, under_torchrun, until

from regatta import checkpoint, runs
from regatta.events import Ended, Evaluated, RankEnded, Resumed, read
from regatta.worlds.leaving import EXIT_CODE

pytestmark = pytest.mark.real
RESTING = {"single": 1, "all-reduce": 2, "averaging:period=4": 2, "elastic:period=3": 2,
           "parameter-server:mode=sync": 2, "pipeline": 2}  # fmt: skip
RESTLESS = {"ring": 2, "parameter-server": 2, "gossip": 2, "elastic:mode=async": 2}
PER_EPOCH = 32  # turns of each of two workers


def train(folder, strategy, workers, *settings, environment=None):
    chosen = [word for setting in settings for word in ("--set", setting)]
    return command("train", RECIPE, "-s", strategy, "-n", str(workers), "-o", folder,
                   "--resumable", *chosen, environment=environment)  # fmt: skip


def digests(folder):
    return {e.rank: e.digest for e in read(folder / "events.jsonl") if isinstance(e, RankEnded)}


def turns_of_ranks(folder):
    """When they left, not when they ended."""
    ended = [e for e in read(folder / "events.jsonl") if isinstance(e, RankEnded)]
    return {e.turns for e in ended if e.role == "worker"}


# -- a rank is asked, in the middle -----------------------------------------------------------


@pytest.mark.parametrize("how", ["term", "usr1"])
@pytest.mark.parametrize(("strategy", "workers"), RESTING.items(), ids=RESTING)
def test_a_run_that_had_to_leave_ends_as_if_undisturbed(strategy, workers, how, tmp_path):
    runs.train(plan(tmp_path / "whole", strategy, workers))
    folder, rank = tmp_path / "run", workers - 1
    fuse = light_fuse(tmp_path, rank, turn=18, how=how)
    left = train(folder, strategy, workers, *fuse)
    assert left.returncode == EXIT_CODE, left.stderr
    assert "had to leave and has saved" in left.stderr
    assert len(turns_of_ranks(folder)) == 1, "all left together"
    assert 18 < turns_of_ranks(folder).pop() < PER_EPOCH
    again = train(folder, strategy, workers, *fuse)
    assert again.returncode == 0, again.stderr
    assert "resumed" in again.stdout
    assert digests(folder) == digests(tmp_path / "whole")
    assert runs.replay(folder).identical


@pytest.mark.parametrize(("strategy", "workers"), RESTLESS.items(), ids=RESTLESS)
def test_where_nobody_rests_the_whole_run_replays(strategy, workers, tmp_path):
    fuse = light_fuse(tmp_path, rank=1, turn=18, how="term")
    assert train(tmp_path / "run", strategy, workers, *fuse).returncode == EXIT_CODE
    assert train(tmp_path / "run", strategy, workers, *fuse).returncode == 0
    assert turns_of_ranks(tmp_path / "run") == {2 * PER_EPOCH}, "nothing was left out"
    assert runs.replay(tmp_path / "run").identical


def test_leaving_costs_no_evaluation(tmp_path):
    """Scores are those of an undisturbed run, so patience and schedules see the same."""
    settings = ("schedule=halving:theta=0.5", "stop.patience=3", "evaluation.every=0.5")
    runs.train(plan(tmp_path / "whole", "all-reduce", 2, settings))
    fuse = light_fuse(tmp_path, rank=1, turn=18, how="term")
    assert train(tmp_path / "run", "all-reduce", 2, *settings, *fuse).returncode == EXIT_CODE
    assert train(tmp_path / "run", "all-reduce", 2, *settings, *fuse).returncode == 0
    scores = [
        [e.results for e in read(tmp_path / name / "events.jsonl") if isinstance(e, Evaluated)]
        for name in ("whole", "run")
    ]
    assert scores[0] == scores[1]
    assert digests(tmp_path / "run") == digests(tmp_path / "whole")


def test_who_cannot_come_to_rest_in_time_stops_at_once(tmp_path):
    settings = ("stop.grace=0", *light_fuse(tmp_path, rank=1, turn=18, how="term"))
    folder = tmp_path / "run"
    assert train(folder, "averaging:period=1000", 2, *settings).returncode == EXIT_CODE
    assert max(turns_of_ranks(folder)) < PER_EPOCH
    assert train(folder, "averaging:period=1000", 2, *settings).returncode == 0
    assert runs.replay(folder).identical


# -- the parent is asked, or torchrun ---------------------------------------------------------


def begun(words, folder):
    """A command that trains, from its first step on."""
    process = subprocess.Popen(
        [*map(str, words)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        start_new_session=True, env=os.environ | {"OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    events = folder / "events.jsonl"
    until(lambda: events.exists() and '"progress"' in events.read_text(), "a step is made")
    return process


def goes_on_as_if_undisturbed(folder, tmp_path, strategy, again):
    """Some more turns, and as many in a run that nobody asked."""
    epochs = turns_of_ranks(folder).pop() // PER_EPOCH + 2
    whole = plan(tmp_path / "whole", strategy, 2, (f"stop.epochs={epochs}",))
    runs.train(whole)
    done = again("--set", f"stop.epochs={epochs}")
    assert done.returncode == 0, done.stderr
    assert digests(folder) == digests(tmp_path / "whole")
    assert runs.replay(folder).identical


@pytest.mark.parametrize("strategy", ["all-reduce", "averaging", "parameter-server:mode=sync"])
def test_the_parent_is_asked(strategy, tmp_path):
    folder = tmp_path / "run"
    words = ("train", RECIPE, "-s", strategy, "-n", "2", "-o", folder, "--resumable")
    process = begun([*REGATTA, *words, "--set", "stop.epochs=100000"], folder)
    process.send_signal(signal.SIGTERM)
    _, stderr = process.communicate(timeout=40)
    assert process.returncode == EXIT_CODE, stderr
    ended = [e for e in read(folder / "events.jsonl") if isinstance(e, Ended)]
    assert [e.reason for e in ended] == ["preempted"]
    again = lambda *more: command(*words, *more)  # noqa: E731
    goes_on_as_if_undisturbed(folder, tmp_path, strategy, again)


def test_all_processes_of_a_session_are_asked(tmp_path):
    """As Slurm does: helpers that are asked too must not break what the ranks do."""
    folder = tmp_path / "run"
    words = ("train", RECIPE, "-s", "all-reduce", "-n", "2", "-o", folder, "--resumable")
    process = begun([*REGATTA, *words, "--set", "stop.epochs=100000"], folder)
    os.killpg(process.pid, signal.SIGUSR1)
    _, stderr = process.communicate(timeout=40)
    assert process.returncode == EXIT_CODE, stderr
    assert "died" not in stderr


def test_torchrun_is_asked(tmp_path):
    folder = tmp_path / "run"
    words = ("train", RECIPE, "-s", "all-reduce", "-o", folder, "--resumable")
    process = begun([*under_torchrun(2), *words, "--set", "stop.epochs=100000"], folder)
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=40)
    assert process.returncode != 0
    again = lambda *more: torchrun(2, *words, *more)  # noqa: E731
    goes_on_as_if_undisturbed(folder, tmp_path, "all-reduce", again)


# -- the same command, whatever there is ------------------------------------------------------


def test_what_is_done_is_left_alone(tmp_path):
    folder = tmp_path / "run"
    assert train(folder, "all-reduce", 2).returncode == 0
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    again = train(folder, "all-reduce", 2)
    assert again.returncode == 0, again.stderr
    assert {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()} == before
    more = train(folder, "all-reduce", 2, "stop.epochs=3")
    assert more.returncode == 0, more.stderr
    assert turns_of_ranks(folder) == {3 * PER_EPOCH}


def test_what_never_came_to_a_checkpoint_begins_anew(tmp_path):
    fuse = light_fuse(tmp_path, rank=1, turn=18, how="kill")
    assert train(tmp_path / "run", "all-reduce", 2, *fuse).returncode == 1
    assert not checkpoint.finished(tmp_path / "run" / "checkpoints")
    assert train(tmp_path / "run", "all-reduce", 2, *fuse).returncode == 0
    runs.train(plan(tmp_path / "whole", "all-reduce", 2))
    assert digests(tmp_path / "run") == digests(tmp_path / "whole")
    events = read(tmp_path / "run" / "events.jsonl")
    assert not any(isinstance(e, Resumed) for e in events)


def test_a_killed_run_goes_on_from_its_checkpoint(tmp_path):
    settings = ("checkpointing.every=0.25", *light_fuse(tmp_path, rank=1, turn=20, how="kill"))
    assert train(tmp_path / "run", "ring", 2, *settings).returncode == 1
    assert train(tmp_path / "run", "ring", 2, *settings).returncode == 0
    runs.train(plan(tmp_path / "whole", "ring", 2, ("checkpointing.every=0.25",)))
    assert digests(tmp_path / "run") == digests(tmp_path / "whole")


def test_a_run_of_others_is_refused(tmp_path):
    fuse = light_fuse(tmp_path, rank=1, turn=18, how="term")
    folder = tmp_path / "run"
    assert train(folder, "all-reduce", 2, *fuse).returncode == EXIT_CODE
    for strategy, workers in (("averaging", 2), ("all-reduce", 3)):
        other = train(folder, strategy, workers, *fuse)
        assert other.returncode == 2
        assert "configured differently" in other.stderr
    assert train(folder, "all-reduce", 2, *fuse).returncode == 0


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("--resumable",), "--resumable needs --out"),
        (("--resumable", "--resume", "-o", "x"), "leave --resume out"),
        (("--set", "stop.grace=-1"), "stop.grace must be 0 seconds or more"),
    ],
)
def test_wrong_usage(words, says, tmp_path):
    done = command("train", RECIPE, *words, cwd=tmp_path)
    assert done.returncode == 2
    assert says in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1
