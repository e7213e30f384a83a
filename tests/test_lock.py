"""One run writes to a folder at a time, however the last one ended."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import signal
import subprocess
import sys
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest
from real import RECIPE, REGATTA, command, members, plan, until

from regatta import checkpoint, folders, lock, runs
from regatta.events import Tail
from regatta.report.files import outcome_of, write_html
from regatta.start import file_of

HOLD = """
import os, sys, time
from pathlib import Path
from regatta import lock
held = lock.take(Path(sys.argv[1]))
child = os.fork() if len(sys.argv) > 2 else None
if child != 0:
    print(os.getpid(), child, flush=True)
time.sleep(100)
"""


@pytest.fixture
def holder():
    """Starts processes that hold a lock, alone or with a child that has it from them."""
    started = []

    def start(folder: Path, *more: str) -> tuple[int, int | None]:
        process = subprocess.Popen(
            [sys.executable, "-c", HOLD, str(folder), *more], stdout=subprocess.PIPE, text=True
        )
        started.append(process)
        assert process.stdout is not None
        pid, child = process.stdout.readline().split()
        pids.extend(int(each) for each in (pid, child) if each != "None")
        return int(pid), None if child == "None" else int(child)

    pids: list[int] = []
    yield start
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    for process in started:
        process.wait(10)


def end(pid: int) -> None:
    os.kill(pid, signal.SIGKILL)
    with suppress(ChildProcessError):
        os.waitpid(pid, 0)


def test_a_second_writer_is_told_who_the_first_is(tmp_path, holder):
    pid, _ = holder(tmp_path / "run", *())
    with pytest.raises(lock.Held) as refused:
        lock.take(tmp_path / "run")
    message = str(refused.value)
    assert f"pid {pid} on {os.uname().nodename}, since 20" in message
    assert "wait until that has ended, or use another --out" in message
    assert "\n" not in message
    with pytest.raises(lock.Held):
        lock.refuse_if_held(tmp_path / "run")


def test_who_was_killed_holds_nothing(tmp_path, holder):
    pid, _ = holder(tmp_path)
    end(pid)
    assert (tmp_path / lock.FILE).exists(), "its file stays, and locks nothing"
    lock.refuse_if_held(tmp_path)
    with lock.held(tmp_path):
        owner = json.loads((tmp_path / lock.FILE).read_text())
        assert owner["pid"] == os.getpid()
    assert not (tmp_path / lock.FILE).exists()


def test_a_launcher_that_was_killed_leaves_the_lock_to_its_ranks(tmp_path, holder, monkeypatch):
    monkeypatch.setattr(lock, "_PATIENCE", 0.2)
    pid, child = holder(tmp_path, "with a child")
    end(pid)
    with pytest.raises(lock.Held, match=r"ranks of .* which is gone: end them first"):
        lock.take(tmp_path)
    os.kill(child, signal.SIGKILL)
    monkeypatch.setattr(lock, "_PATIENCE", 10.0)
    lock.take(tmp_path).close()  # as soon as the child is gone, too


def test_what_is_left_empty_is_removed(tmp_path):
    with lock.held(tmp_path / "new"):
        assert (tmp_path / "new" / lock.FILE).exists()
    assert not (tmp_path / "new").exists()
    (tmp_path / "old").mkdir()
    with lock.held(tmp_path / "old"):
        pass
    assert (tmp_path / "old").exists()
    with lock.held(tmp_path / "used"):
        (tmp_path / "used" / "result").touch()
    assert [path.name for path in (tmp_path / "used").iterdir()] == ["result"]


@pytest.mark.parametrize("content", [b"", b"{}", b"\xff\xfe", b"[" * 5000, b'{"pid": "x"}'])
def test_what_a_file_says_that_nobody_has_locked_keeps_nobody_out(tmp_path, content):
    (tmp_path / lock.FILE).write_bytes(content)
    with lock.held(tmp_path):
        pass


RACE = """
import sys
from pathlib import Path
from regatta import lock
folder = Path(sys.argv[1])
won = 0
while won < 20:
    try:
        held = lock.take(folder)
    except lock.Held:
        continue
    inside = folder / "inside"
    inside.touch(exist_ok=False)
    inside.unlink()
    held.close()
    won += 1
"""


def test_of_many_at_once_one_is_inside(tmp_path):
    """Files are made, locked and removed all the time; nobody may lock one that has gone."""
    racers = [
        subprocess.Popen([sys.executable, "-c", RACE, str(tmp_path)], stderr=subprocess.PIPE)
        for _ in range(4)
    ]
    told = [racer.communicate(timeout=50)[1].decode() for racer in racers]
    assert [racer.returncode for racer in racers] == [0] * 4, told
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_cannot_be_written_to_is_named(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(ValueError, match=r"cannot write to .*file/run \(.*choose another --out"):
        lock.take(tmp_path / "file" / "run")


class TestWithoutLocks:
    """On file systems that know none the owner in the file decides."""

    @pytest.fixture(autouse=True)
    def no_locks(self, monkeypatch):
        def refuse(file, how):
            raise OSError(errno.ENOTSUP, "Operation not supported")

        monkeypatch.setattr(fcntl, "flock", refuse)
        monkeypatch.setattr(lock, "_PATIENCE", 0.1)

    def sign(self, folder, pid, host):
        owner = {"command": "regatta train teacher", "pid": pid, "host": host, "since": 1e9}
        (folder / lock.FILE).write_text(json.dumps(owner))

    def test_one_that_runs_is_respected(self, tmp_path):
        self.sign(tmp_path, os.getpid(), os.uname().nodename)
        with pytest.raises(lock.Held, match="regatta train teacher"):
            lock.take(tmp_path)

    def test_one_that_is_gone_is_not(self, tmp_path):
        gone = subprocess.Popen([sys.executable, "-c", ""])
        gone.wait()
        self.sign(tmp_path, gone.pid, os.uname().nodename)
        with lock.held(tmp_path), pytest.raises(lock.Held):
            lock.take(tmp_path)

    def test_of_another_host_nobody_knows(self, tmp_path):
        self.sign(tmp_path, 1, "elsewhere")
        with pytest.raises(lock.Held, match=r"if it no longer runs there, delete .*lock\.json"):
            lock.take(tmp_path)


# -- runs -------------------------------------------------------------------------------------


@pytest.fixture
def running(tmp_path):
    """A run that goes on until it is ended, and its folder; frozen, so that it takes no time."""
    folder = tmp_path / "run"
    process = subprocess.Popen(
        [*REGATTA, "train", RECIPE, "-s", "parameter-server", "-n", "2", "-o", str(folder),
         "--set", "stop.epochs=100000", "--set", "checkpointing.every=1"],
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True,
    )  # fmt: skip
    events = folder / "events.jsonl"
    try:
        until(lambda: events.exists() and "checkpointed" in events.read_text(), "it has saved", 50)
        tell(process, signal.SIGSTOP)
        yield process, folder
    finally:
        tell(process, signal.SIGKILL)
        process.wait(10)


def tell(process: subprocess.Popen, number: int) -> None:
    for pid in members(process.pid):
        with suppress(ProcessLookupError):
            os.kill(pid, number)


@pytest.mark.real
def test_nobody_else_writes_while_a_run_runs_and_everybody_may_read(running):
    process, folder = running
    others = [lambda: runs.train(plan(folder, "single", 1))]
    others += [lambda: runs.train(folders.open_plan(folder)[0], resume=True)]
    others += [lambda: runs.simulate(made.run, made)]
    made = plan(folder, "single", 1)
    for write in others:
        with pytest.raises(lock.Held, match=f"pid {process.pid} on"):
            write()
    assert write_html(outcome_of(folder), folder / "report.html").exists()
    with pytest.raises(ValueError, match="has not ended"):
        runs.replay(folder)
    assert Tail(folder / "events.jsonl", from_start=True)()
    assert file_of(folder).name == "best.safetensors"
    assert members(process.pid)


@pytest.mark.real
def test_a_folder_that_is_being_written_is_wrong_usage(running):
    process, folder = running
    refused = command("train", RECIPE, "-o", folder, "--resume")
    assert refused.returncode == 2, refused.stderr
    assert f"is being written by -c train {RECIPE}" in refused.stderr
    assert f"pid {process.pid} on" in refused.stderr
    assert len(refused.stderr.strip().splitlines()) == 1


@pytest.mark.real
def test_a_launcher_that_was_killed_is_resumed_at_once(running):
    """Its ranks need a moment to end; whoever comes next waits for that."""
    process, folder = running
    tell(process, signal.SIGCONT)
    process.kill()
    again, _ = folders.open_plan(folder)
    epochs = float(checkpoint.newest(again.checkpoints).name) + 5  # its ranks go on for a moment
    stop = replace(again.run.stop, epochs=epochs)
    runs.train(replace(again, run=replace(again.run, stop=stop)), resume=True)
    assert not (folder / lock.FILE).exists()
    assert runs.replay(folder).identical


@pytest.mark.real
def test_ranks_that_outlive_their_launcher_keep_others_out(running, monkeypatch):
    monkeypatch.setattr(lock, "_PATIENCE", 0.5)
    process, folder = running
    process.kill()
    process.wait()
    with pytest.raises(lock.Held, match="which is gone: end them first"):
        runs.train(folders.open_plan(folder)[0], resume=True)
