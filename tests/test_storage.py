"""A disk that is full, for real: a small file system, or a limit on the size of files."""

from __future__ import annotations

import os
import re
import resource
import shutil
import subprocess

import pytest
from real import RECIPE, REGATTA, command, plan

from regatta import checkpoint, folders, lock, runs
from regatta.aside import CannotWrite, append, write_aside
from regatta.events import RankEnded, Warned, Writer, read, to_line
from regatta.mending import mend

OFTEN = ("checkpointing.batches=1", "checkpointing.keep=1000", "stop.epochs=1")
AS_WORDS = [word for setting in OFTEN for word in ("--set", setting)]


class SmallDisk:
    """A file system in memory that has room for so many kilobytes."""

    def __init__(self, place):
        self.place = place
        place.mkdir()
        self._mount("size=400k")

    def _mount(self, options):
        words = ["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(self.place)]
        done = subprocess.run(words, capture_output=True, check=False)
        if done.returncode:
            pytest.skip(f"no right to mount a small file system: {done.stderr.decode().strip()}")

    def grow(self):
        self._mount("remount,size=50m")

    def fill(self, leave=0):
        """All but so many bytes."""
        with (self.place / "filler").open("wb", buffering=0) as file:
            try:
                while True:
                    file.write(bytes(4096))
            except OSError:
                size = file.tell()
        os.truncate(self.place / "filler", size - leave)

    def empty(self):
        (self.place / "filler").unlink()

    def close(self):
        subprocess.run(["umount", str(self.place)], check=True)


@pytest.fixture
def disk(tmp_path):
    if shutil.which("mount") is None or os.geteuid() != 0:
        pytest.skip("only root may mount a small file system")
    made = SmallDisk(tmp_path / "disk")
    yield made
    made.close()


def digests(folder):
    return {e.rank: e.digest for e in read(folder / "events.jsonl") if isinstance(e, RankEnded)}


def told_once(done, *parts):
    assert done.returncode == 1, done.stderr
    of_few_cores = r"note: .*?\n?.* a bigger machine\n"
    (line,) = re.sub(of_few_cores, "", done.stderr).strip().splitlines()
    assert line.startswith("regatta: cannot write to ")
    assert all(part in line for part in parts), line


# -- whole runs -------------------------------------------------------------------------------


@pytest.mark.real
@pytest.mark.parametrize("strategy", ["all-reduce", "parameter-server"])
def test_a_disk_that_fills_up_ends_a_run_that_goes_on_when_there_is_room(disk, strategy):
    folder = disk.place / "run"
    words = ("train", RECIPE, "-s", strategy, "-n", "2", "-o", folder, *AS_WORDS)
    done = command(*words)
    told_once(
        done, str(folder), "No space left on device",
        "make room there", f"go on with: regatta train {RECIPE} --out {folder} --resume",
    )  # fmt: skip
    made, _ = folders.open_plan(folder)
    saved = checkpoint.newest(made.checkpoints)  # whole
    assert not list(made.checkpoints.glob("*.part")), "what is half-written takes no room"
    assert int(saved.name) >= 2
    disk.grow()
    runs.train(made, resume=True)
    assert runs.replay(folder).identical
    if strategy == "all-reduce":  # as if undisturbed
        assert digests(folder) == {e.rank: e.digest for e in runs.simulate(made.run)[0]}


@pytest.mark.real
def test_a_disk_that_was_full_from_the_start(disk):
    disk.fill()
    folder = disk.place / "run"
    done = command("train", RECIPE, "-s", "all-reduce", "-n", "2", "-o", folder)
    told_once(done, str(folder), "No space left on device")
    assert not (folder / "run.json").exists()
    disk.empty()
    runs.train(plan(folder, "all-reduce", 2, ("stop.epochs=0.5",)))


@pytest.mark.real
@pytest.mark.parametrize("leave", [8192, 24576, 40960])
def test_whatever_is_written_when_the_last_byte_is_gone(disk, leave):
    """run.json, events, choices, a rank's share: one line, and nothing half-written counts."""
    disk.fill(leave)
    folder = disk.place / "run"
    words = ("-s", "parameter-server", "-n", "2", "-o", folder, *AS_WORDS)
    told_once(command("train", RECIPE, *words), str(disk.place), "make room")
    if (folder / "run.json").exists():
        made, _ = folders.open_plan(folder)
        for path in checkpoint.finished(made.checkpoints):
            checkpoint.check(path)


@pytest.mark.real
def test_a_limit_on_files_ends_a_run_in_the_same_way(tmp_path):
    """For who must not mount: every file may have 8 KB."""
    folder = tmp_path / "run"
    done = subprocess.run(
        [*REGATTA, "train", RECIPE, "-s", "all-reduce", "-n", "2", "-o", str(folder), *AS_WORDS],
        capture_output=True, text=True, timeout=50, check=False,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (8192, 8192)),
    )  # fmt: skip
    told_once(done, str(folder), "File too large")


def test_a_simulation_on_a_full_disk(disk):
    folder = disk.place / "run"
    done = command("simulate", RECIPE, "-s", "all-reduce", "-n", "2", "-o", folder, *AS_WORDS)
    told_once(done, str(folder), "No space left on device", "simulate again")


@pytest.mark.real
def test_a_race_on_a_full_disk_goes_on_when_there_is_room(disk):
    folder = disk.place / "race"
    disk.fill(60_000)
    words = ("race", RECIPE, "--strategies", "single all-reduce", "--seeds", "1", "-o", folder)
    settings = ("--set", "stop.epochs=1", "--set", "checkpointing.batches=2",
                "--set", "checkpointing.keep=1000")  # fmt: skip
    told_once(command(*words, *settings), f"race {RECIPE} --out {folder}")
    disk.empty()
    disk.grow()
    again = command("race", RECIPE, "-o", folder, "--resume")
    assert again.returncode == 0, again.stderr


# -- what writes ------------------------------------------------------------------------------


def test_writing_aside_leaves_nothing_behind(disk):
    path = disk.place / "file"
    write_aside(path, b"before")
    with pytest.raises(CannotWrite, match=r"cannot write to .*/file: No space left on device"):
        write_aside(path, bytes(500_000))
    assert path.read_bytes() == b"before"
    assert [p.name for p in disk.place.iterdir()] == ["file"]


def test_a_lock_that_cannot_be_signed_is_given_back(disk):
    disk.fill()
    with pytest.raises(CannotWrite, match=r"lock\.json"):
        lock.take(disk.place)
    assert not (disk.place / lock.FILE).exists()
    disk.empty()
    lock.take(disk.place).close()


def test_a_full_device_is_told_by_whoever_writes():
    """/dev/full takes nothing."""
    full = os.open("/dev/full", os.O_WRONLY)
    try:
        with pytest.raises(CannotWrite, match="cannot write to events: No space left"):
            append(full, b"line\n", "events")
    finally:
        os.close(full)


def test_half_a_line_is_no_line(disk):
    """The kernel writes as much as there is room for, and says so."""
    disk.fill(4096)
    events = Writer(disk.place / "events.jsonl")
    event = Warned(rank=0, time=0.0, text="x" * 1000)
    with pytest.raises(CannotWrite, match=r"cannot write to .*events\.jsonl"):
        any(events(event) for _ in range(10))
    events.close()
    disk.empty()
    path = disk.place / "events.jsonl"
    written = path.read_text()
    assert not written.endswith("\n"), "half a line is there"
    (complaint,) = mend(path)
    assert "1 damaged lines were taken out" in complaint
    assert read(path) == [event] * written.count("\n")
    assert mend(path) == []


def test_lines_that_ran_together_are_taken_out(tmp_path):
    path = tmp_path / "events.jsonl"
    event = Warned(rank=0, time=0.0, text="text")
    line = to_line(event)
    newer = line.replace('"warned"', '"of a later version"')
    path.write_text(f"{line}\n{line[:20]}{line}\n{newer}\n{line}\n{line[:7]}")
    (complaint,) = mend(path)
    assert "2 damaged lines were taken out" in complaint
    assert path.read_text() == f"{line}\n{newer}\n{line}\n"
