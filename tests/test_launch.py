"""`regatta launch`: what it writes for Slurm, and how it starts, tells and ends hosts."""

import os
import shlex
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from real import RECIPE, REGATTA, command, light_fuse, plan, until

from regatta import folders, runs
from regatta.events import RankEnded, read
from regatta.launching.hosts import (
    RESUMABLE,
    Fleet,
    HostFailed,
    read_slots,
    run,
    run_until_done,
)
from regatta.launching.slurm import Job, script
from regatta.worlds.leaving import EXIT_CODE

TRAIN = ["train", "teacher", "-s", "ring", "-o", "runs/a b"]


# -- Slurm ------------------------------------------------------------------------------------


def test_the_script_is_one_that_bash_reads(tmp_path):
    text = script(Job(tasks=4, nodes=2, time="1-0", more=("--gres=gpu:2",)), TRAIN)
    path = tmp_path / "job.sh"
    path.write_text(text)
    subprocess.run(["bash", "-n", path], check=True)
    options = [line.removeprefix("#SBATCH ") for line in text.splitlines() if "#SBATCH" in line]
    assert {"--nodes=2", "--ntasks=4", "--time=1-0", "--requeue", "--gres=gpu:2"} <= set(options)
    assert "--signal=USR1@120" in options


@pytest.mark.parametrize(
    ("code", "restarts", "requeued"),
    [(0, None, False), (1, None, False), (75, None, True), (75, 99, True), (75, 100, False)],
)
def test_the_script_goes_back_into_the_queue_when_it_had_to_leave(
    code, restarts, requeued, tmp_path
):
    """Played with an srun and an scontrol that only note what they were told."""
    for name, body in (("srun", f'echo "$@" > {tmp_path}/ran; exit {code}'),
                       ("scontrol", f'echo "$@" > {tmp_path}/told')):  # fmt: skip
        (tmp_path / name).write_text(f"#!/bin/sh\n{body}\n")
        (tmp_path / name).chmod(0o755)
    environment = {"PATH": f"{tmp_path}:{os.environ['PATH']}", "SLURM_JOB_ID": "17"}
    if restarts is not None:
        environment["SLURM_RESTART_COUNT"] = str(restarts)
    (tmp_path / "job.sh").write_text(script(Job(), TRAIN))
    done = subprocess.run(["bash", tmp_path / "job.sh"], env=environment, check=False)
    assert done.returncode == code
    words = shlex.split((tmp_path / "ran").read_text().replace("a b", "'a b'"))
    assert words[-7:] == [*TRAIN, "--resumable"]
    noted = tmp_path / "told"
    assert noted.exists() == requeued
    assert not requeued or noted.read_text() == "requeue 17\n"


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["slurm", "--", "race", "teacher"], "write the command that each rank is to run"),
        (["slurm", "--", "train", "teacher"], "add --out FOLDER"),
        (["slurm", "--", "train", "teacher", "-o", "x", "--resume"], "leave --resume out"),
        (["slurm", "-N", "3", "--", *TRAIN], "3 nodes have no use for 2 tasks"),
        (["slurm", "-J", "a b", "--", *TRAIN], "leave out blanks"),
        (["slurm", "--sbatch", "-c4", "--", *TRAIN], "write an option of sbatch"),
        (["hosts", "a:x", "--", *TRAIN], "hosts 'a:x' (no such file): line 1"),
        (["hosts", "hosts.txt", "--", *TRAIN], "there is no host file hosts.txt"),
        (["hosts", "lists/all", "--", *TRAIN], "there is no host file lists/all"),
        (["hosts", "a:1,b:1", "--", "bench"], "write the command that each rank is to run"),
        (["hosts", "localhost:1,b:1", "--", *TRAIN], "localhost is every host itself"),
        (["hosts", "a:1", "--env", "a-b=1", "--", *TRAIN], "write NAME or NAME=VALUE"),
        (["hosts", "a:1", "--master", "a:b", "--", *TRAIN], "'b' is not a port"),
        (["hosts", "a:1", "--ssh", "no-such-program", "--", *TRAIN], "name another with --ssh"),
    ],
)
@pytest.mark.real
def test_wrong_usage_is_one_line_and_exit_2(words, says, tmp_path):
    done = command("launch", *words, cwd=tmp_path)
    assert done.returncode == 2, done.stderr
    assert says in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1, done.stderr


@pytest.mark.real
def test_a_script_that_is_there_is_not_written_over(tmp_path):
    words = ("launch", "slurm", "-o", tmp_path / "job.sh", "--", *TRAIN)
    assert command(*words).returncode == 0
    assert command(*words).returncode == 2


# -- hosts ------------------------------------------------------------------------------------


def test_ranks_are_dealt_in_the_order_of_the_hosts(tmp_path):
    file = tmp_path / "hosts"
    file.write_text("node1 slots=2\nnode2 slots=1  # the slow one\n")
    fleet = Fleet(read_slots(str(file)), Path("/a b"), port=29500, python="python3")
    first, second = fleet.commands(["train", "mine.py:it", "--set", "x=a b"]).values()
    assert first[0] == second[0] == "ssh"
    assert (first[-2], second[-2]) == ("node1", "node2")
    there = shlex.split(second[-1])
    assert there[:5] == ["cd", "/a b", "&&", "exec", "python3"]
    assert {"--first=2", "--count=1", "--size=3", "--address=node1", "--port=29500"} < set(there)
    assert there[-4:] == ["train", "mine.py:it", "--set", "x=a b"]


def test_one_host_alone_stays_on_loopback():
    (only,) = Fleet(read_slots("node1:2"), Path("/x")).commands(TRAIN).values()
    assert "--address=127.0.0.1" in only[-1]


def test_variables_go_along(monkeypatch):
    monkeypatch.setenv("GIVEN", "a 'b'")
    fleet = Fleet(read_slots("node1:2"), Path("/x"), variables=("GIVEN", "SET=c d"))
    (only,) = fleet.commands(TRAIN).values()
    assert shlex.split(only[-1])[4:7] == ["env", "GIVEN=a 'b'", "SET=c d"]


SSH = """#!/bin/sh
while [ $# -gt 2 ]; do shift; done
[ "$1" = unreachable ] && { echo "ssh: cannot find unreachable" >&2; exit 255; }
exec sh -c "$2"
"""


@pytest.fixture
def start(tmp_path):
    """Start a command on hosts that an ssh of our own reaches: shells of this machine."""
    program = tmp_path / "bin" / "ssh"
    program.parent.mkdir()
    program.write_text(SSH)
    program.chmod(0o755)
    environment = os.environ | {"PATH": f"{program.parent}:{os.environ['PATH']}"}

    def begin(hosts, *words, restarts=0):
        options = ("--env", "PYTHONPATH", "--restarts", str(restarts))
        return subprocess.Popen(
            [*REGATTA, "launch", "hosts", hosts, *options, "--", *map(str, words)],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment,
            start_new_session=True,
        )  # fmt: skip

    return begin


def long(folder, *more):
    return ("train", RECIPE, "-s", "all-reduce", "-o", folder, "--set", "stop.epochs=100000", *more)


def has_begun(folder):
    events = folder / "events.jsonl"
    until(lambda: events.exists() and '"progress"' in events.read_text(), "a step is made")


def nobody_is_left(folder):
    listed = subprocess.run(["ps", "-eo", "args"], capture_output=True, text=True, check=True)
    return str(folder) not in listed.stdout


@pytest.mark.real
def test_a_host_is_told_what_to_run(start, tmp_path):
    folder = tmp_path / "a run"
    words = ("train", RECIPE, "-s", "parameter-server", "-o", folder, "--set", "stop.epochs=1")
    process = start("here:3", *words)
    stdout, stderr = process.communicate(timeout=50)
    assert process.returncode == 0, stderr
    assert all(line.startswith("[here] ") for line in stdout.splitlines())
    assert "samples/s" in stdout
    assert folders.open_plan(folder)[0].run.workers == 2, "the third is the server"
    assert runs.replay(folder).identical


@pytest.mark.real
def test_a_host_that_fails_ends_the_others(start, tmp_path):
    folder = tmp_path / "run"
    fuse = [w for s in light_fuse(tmp_path, how="kill", turn=5) for w in ("--set", s)]
    process = start("here:2", *long(folder, *fuse))
    _, stderr = process.communicate(timeout=50)
    assert process.returncode != 0
    assert "[here] rank 1 was killed by SIGKILL" in stderr
    assert "host here ended with exit code" in stderr
    until(lambda: nobody_is_left(folder), "all processes are gone")


def broken(folder, fuses):
    """A run to be gone on with, and one of whose ranks dies at turn 20."""
    settings = ("stop.epochs=1", "checkpointing.every=0.25", *light_fuse(fuses, turn=20))
    words = [word for setting in settings for word in ("--set", setting)]
    return ("train", RECIPE, "-s", "all-reduce", "-o", folder, "--resumable", *words)


@pytest.mark.real
def test_all_begin_again_when_a_host_has_failed(start, tmp_path):
    whole = plan(tmp_path / "whole", "all-reduce", 2, ("stop.epochs=1", "checkpointing.every=0.25"))
    digests = {e.rank: e.digest for e in runs.train(whole)}
    folder = tmp_path / "run"
    process = start("here:2", *broken(folder, tmp_path), restarts=2)
    _, stderr = process.communicate(timeout=50)
    assert process.returncode == 0, stderr
    assert "beginning again (restarts left: 1)" in stderr
    ended = [e for e in read(folder / "events.jsonl") if isinstance(e, RankEnded)]
    assert {e.rank: e.digest for e in ended} == digests
    assert runs.replay(folder).identical


@pytest.mark.real
def test_not_for_ever_nor_for_wrong_usage(start, tmp_path):
    process = start("here:2", *broken(tmp_path / "run", tmp_path), "--set", "x=1", restarts=9)
    _, stderr = process.communicate(timeout=50)
    assert process.returncode == 2
    assert "beginning again" not in stderr
    process = start("here:2", "train", RECIPE, "-s", "all-reduce", restarts=1)
    _, stderr = process.communicate(timeout=50)
    assert process.returncode == 2
    assert "add --resumable and --out to the command" in stderr
    gone = Fleet(read_slots("here:1"), tmp_path, ssh="false")
    told: list[str] = []
    with pytest.raises(HostFailed):
        run_until_done(gone, ("train", "teacher", RESUMABLE), 2, lambda: False, told.append)
    assert len(told) == 2


@pytest.mark.parametrize(
    ("codes", "who"),
    [((1, 137), "b"), ((137, 1), "a"), ((1, 255), "b"), ((0, 1), "b"), ((2, 1), "a")],
)
def test_the_host_that_began_is_named_and_not_who_missed_it(codes, who):
    commands = {name: ["sh", "-c", f"exit {code}"] for name, code in zip("ab", codes, strict=True)}
    with pytest.raises(HostFailed, match=f"host {who} ") as failed:
        run(commands, lambda: False)
    assert failed.value.code == max(codes)


@pytest.mark.real
def test_a_host_that_cannot_be_reached_is_named(start, tmp_path):
    folder = tmp_path / "run"
    process = start("10.77.0.1:1,unreachable:1", *long(folder))
    _, stderr = process.communicate(timeout=50)
    assert process.returncode == 255
    assert "host unreachable could not be reached" in stderr
    until(lambda: nobody_is_left(folder), "all processes are gone")


@pytest.mark.real
@pytest.mark.parametrize(
    ("number", "code", "says"),
    [(signal.SIGINT, 0, "interrupt"), (signal.SIGTERM, EXIT_CODE, "had to leave and has saved")],
    ids=["Ctrl-C", "SIGTERM"],
)
def test_signals_reach_all_ranks(number, code, says, start, tmp_path):
    folder = tmp_path / "run"
    process = start("here:2", *long(folder))
    has_begun(folder)
    process.send_signal(number)
    stdout, stderr = process.communicate(timeout=50)
    assert process.returncode == code, stderr
    assert says in stdout + stderr
    assert runs.replay(folder).identical


@pytest.mark.real
def test_nothing_is_left_when_the_launcher_is_killed(start, tmp_path):
    folder = tmp_path / "run"
    process = start("here:2", *long(folder))
    has_begun(folder)
    process.kill()
    process.communicate(timeout=50)
    until(lambda: nobody_is_left(folder), "all processes are gone")


@pytest.mark.real
def test_print_starts_nothing(tmp_path):
    done = command("launch", "hosts", "node1:1,node2:1", "--print", "--", *TRAIN, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert len(done.stdout.splitlines()) == 2
    assert sys.executable in done.stdout
    assert list(tmp_path.iterdir()) == []
