"""Asked to leave by SIGTERM or SIGUSR1: saved, told by the exit code, and gone on with."""

import os
import signal
import subprocess

import pytest
from real import RECIPE, REGATTA, command, light_fuse, plan, under_torchrun, until

from regatta import checkpoint, runs
from regatta.events import Ended, Evaluated, RankEnded, Resumed, read
from regatta.resuming import Resume
from regatta.worlds.launch import RankFailed
from regatta.worlds.leaving import EXIT_CODE

pytestmark = pytest.mark.real
RESTING = {"single": 1, "all-reduce": 2, "averaging:period=4": 2, "elastic:period=3": 2,
           "parameter-server:mode=sync": 2, "pipeline": 2}  # fmt: skip
RESTLESS = {"ring": 2, "parameter-server": 2, "gossip": 2, "elastic:mode=async": 2}
PER_EPOCH = 32  # turns of each of two workers


def train(folder, strategy, workers, *settings):
    """As `--resumable` does; whether it had to leave."""
    made = plan(folder, strategy, workers, settings)
    return any(rank.preempted for rank in runs.train(made, Resume.IF_ANY))


def last_ended(folder):
    events = read(folder / "events.jsonl")
    return {e.rank: e for e in events if isinstance(e, RankEnded)}


def digests(folder):
    return {rank: e.digest for rank, e in last_ended(folder).items()}


def turns(folder):
    return {e.turns for e in last_ended(folder).values() if e.role == "worker"}


# -- a rank is asked, in the middle -----------------------------------------------------------


@pytest.mark.parametrize("how", ["term", "usr1"])
@pytest.mark.parametrize(("strategy", "workers"), RESTING.items(), ids=RESTING)
def test_a_run_that_had_to_leave_ends_as_if_undisturbed(strategy, workers, how, tmp_path):
    runs.train(plan(tmp_path / "whole", strategy, workers))
    folder = tmp_path / "run"
    fuse = light_fuse(tmp_path, rank=workers - 1, turn=18, how=how)
    assert train(folder, strategy, workers, *fuse)
    assert len(turns(folder)) == 1, "all left together"
    assert 0 < turns(folder).pop() < PER_EPOCH
    assert not train(folder, strategy, workers, *fuse)
    assert digests(folder) == digests(tmp_path / "whole")
    assert runs.replay(folder).identical
    assert sum(isinstance(e, Resumed) for e in read(folder / "events.jsonl")) == 1


@pytest.mark.parametrize(("strategy", "workers"), RESTLESS.items(), ids=RESTLESS)
def test_where_nobody_rests_the_whole_run_replays(strategy, workers, tmp_path):
    fuse = light_fuse(tmp_path, rank=1, turn=18, how="term")
    assert train(tmp_path / "run", strategy, workers, *fuse)
    assert not train(tmp_path / "run", strategy, workers, *fuse)
    assert turns(tmp_path / "run") == {2 * PER_EPOCH}, "nothing was left out"
    assert runs.replay(tmp_path / "run").identical


def test_a_server_is_asked(tmp_path):
    """It has no turns of its own; `rank` counts the workers before it."""
    made = plan(tmp_path / "run", "parameter-server", 2, ("stop.epochs=100000",))
    asked = []

    def ask(events):
        if not asked and made.events.exists():
            asked.append(os.kill(child_with_rank(2), signal.SIGTERM))

    assert all(rank.preempted for rank in runs.train(made, watch=ask))
    assert runs.replay(made.folder).identical


def child_with_rank(rank):
    """The ranks of the world that this process has launched, found by their memory of events."""
    listed = subprocess.run(
        ["ps", "-eo", "pid=,ppid=,lstart="], capture_output=True, text=True, check=True
    ).stdout
    parents = {int(line.split()[0]): int(line.split()[1]) for line in listed.splitlines()}
    ranks = sorted(pid for pid, parent in parents.items() if parents.get(parent) == os.getpid())
    return ranks[rank]


def test_leaving_costs_no_evaluation(tmp_path):
    """Scores are those of an undisturbed run, so patience and schedules see the same."""
    settings = ("schedule=halving:theta=0.5", "stop.patience=3", "evaluation.every=0.5")
    runs.train(plan(tmp_path / "whole", "all-reduce", 2, settings))
    fuse = light_fuse(tmp_path, rank=1, turn=18, how="term")
    assert train(tmp_path / "run", "all-reduce", 2, *settings, *fuse)
    assert not train(tmp_path / "run", "all-reduce", 2, *settings, *fuse)
    scores = [
        [e.results for e in read(tmp_path / name / "events.jsonl") if isinstance(e, Evaluated)]
        for name in ("whole", "run")
    ]
    assert scores[0] == scores[1]
    assert digests(tmp_path / "run") == digests(tmp_path / "whole")


def test_who_cannot_come_to_rest_in_time_stops_at_once(tmp_path):
    settings = ("stop.grace=0", *light_fuse(tmp_path, rank=1, turn=18, how="term"))
    folder = tmp_path / "run"
    assert train(folder, "averaging:period=1000", 2, *settings)
    assert max(turns(folder)) < PER_EPOCH
    assert not train(folder, "averaging:period=1000", 2, *settings)
    assert runs.replay(folder).identical


# -- the command is asked ---------------------------------------------------------------------


def begun(words, folder):
    """A command that trains, from its first step on."""
    process = subprocess.Popen(
        [*map(str, words)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        start_new_session=True, env=os.environ | {"OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    events = folder / "events.jsonl"
    until(lambda: events.exists() and '"progress"' in events.read_text(), "a step is made", 50)
    return process


def endless(folder, strategy):
    return ("train", RECIPE, "-s", strategy, "-o", folder, "--resumable",
            "--set", "stop.epochs=100000")  # fmt: skip


def goes_on_as_if_undisturbed(folder, tmp_path, strategy):
    """Some more turns, and as many in a run that nobody asked."""
    epochs = f"stop.epochs={turns(folder).pop() // PER_EPOCH + 2}"
    runs.train(plan(tmp_path / "whole", strategy, 2, (epochs,)))
    assert not train(folder, strategy, 2, epochs)
    assert digests(folder) == digests(tmp_path / "whole")
    assert runs.replay(folder).identical


@pytest.mark.parametrize("strategy", ["all-reduce", "averaging", "parameter-server:mode=sync"])
def test_the_parent_is_asked(strategy, tmp_path):
    folder = tmp_path / "run"
    process = begun([*REGATTA, *endless(folder, strategy), "-n", "2"], folder)
    process.send_signal(signal.SIGTERM)
    _, stderr = process.communicate(timeout=40)
    assert process.returncode == EXIT_CODE, stderr
    assert "had to leave and has saved" in stderr
    ended = [e for e in read(folder / "events.jsonl") if isinstance(e, Ended)]
    assert [e.reason for e in ended] == ["preempted"]
    goes_on_as_if_undisturbed(folder, tmp_path, strategy)


def test_all_processes_are_asked_at_once(tmp_path):
    """As Slurm does: helpers that are asked too must not break what the ranks do."""
    folder = tmp_path / "run"
    process = begun([*REGATTA, *endless(folder, "all-reduce"), "-n", "2"], folder)
    os.killpg(process.pid, signal.SIGUSR1)
    _, stderr = process.communicate(timeout=40)
    assert process.returncode == EXIT_CODE, stderr
    assert "died" not in stderr
    goes_on_as_if_undisturbed(folder, tmp_path, "all-reduce")


def test_torchrun_is_asked(tmp_path):
    folder = tmp_path / "run"
    process = begun([*under_torchrun(2), *endless(folder, "all-reduce")], folder)
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=40)
    assert process.returncode != 0
    goes_on_as_if_undisturbed(folder, tmp_path, "all-reduce")


# -- the same command, whatever there is ------------------------------------------------------


def test_what_is_done_is_left_alone(tmp_path):
    folder = tmp_path / "run"
    assert not train(folder, "all-reduce", 2)
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    assert not train(folder, "all-reduce", 2)
    assert {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()} == before
    assert not train(folder, "all-reduce", 2, "stop.epochs=3")
    assert turns(folder) == {3 * PER_EPOCH}


def test_what_never_came_to_a_checkpoint_begins_anew(tmp_path):
    fuse = light_fuse(tmp_path, rank=1, turn=18, how="kill")
    with pytest.raises(RankFailed, match="SIGKILL"):
        train(tmp_path / "run", "all-reduce", 2, *fuse)
    assert not checkpoint.finished(tmp_path / "run" / "checkpoints")
    assert not train(tmp_path / "run", "all-reduce", 2, *fuse)
    runs.train(plan(tmp_path / "whole", "all-reduce", 2))
    assert digests(tmp_path / "run") == digests(tmp_path / "whole")
    events = read(tmp_path / "run" / "events.jsonl")
    assert not any(isinstance(e, Resumed) for e in events)


def test_a_killed_run_goes_on_from_its_checkpoint(tmp_path):
    often = "checkpointing.every=0.25"
    fuse = light_fuse(tmp_path, rank=1, turn=20, how="kill")
    with pytest.raises(RankFailed, match="SIGKILL"):
        train(tmp_path / "run", "ring", 2, often, *fuse)
    assert not train(tmp_path / "run", "ring", 2, often, *fuse)
    runs.train(plan(tmp_path / "whole", "ring", 2, (often,)))
    assert digests(tmp_path / "run") == digests(tmp_path / "whole")


def test_a_run_of_others_is_refused(tmp_path):
    fuse = light_fuse(tmp_path, rank=1, turn=18, how="term")
    assert train(tmp_path / "run", "all-reduce", 2, *fuse)
    for strategy, workers in (("averaging", 2), ("all-reduce", 3)):
        with pytest.raises(ValueError, match="configured differently"):
            train(tmp_path / "run", strategy, workers, *fuse)
    assert not train(tmp_path / "run", "all-reduce", 2, *fuse)


def test_weights_to_begin_with_are_the_runs_own_from_then_on(tmp_path):
    source = plan(tmp_path / "source", "all-reduce", 2)
    runs.train(source)
    begins = f"start.run={source.folder}"
    fuse = light_fuse(tmp_path, rank=1, turn=18, how="term")
    assert train(tmp_path / "run", "all-reduce", 2, begins, *fuse)
    (source.checkpoints / checkpoint.BEST).unlink()  # meanwhile it has changed
    assert not train(tmp_path / "run", "all-reduce", 2, begins, *fuse)


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
