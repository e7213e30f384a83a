"""Real processes: what a rank's death does, and that sockets stay on loopback."""

import contextlib
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from real import RECIPE, command, light_fuse, members, plan, torchrun, until

from regatta import runs
from regatta.comm import ANY, WorldFailed
from regatta.events import Ended, read
from regatta.worlds.launch import RankFailed, launch
from regatta.worlds.processes import ProcessComm, connect, run_blocking

pytestmark = pytest.mark.real
LIMIT_SECONDS = 10  # within which a world ends after a death


@pytest.mark.parametrize("strategy", ["all-reduce", "averaging", "parameter-server", "ring"])
def test_a_killed_rank_ends_the_world(strategy, tmp_path):
    settings = ("death.then=stop", *light_fuse(tmp_path, rank=1, turn=5))
    made = plan(tmp_path / "run", strategy, 3, settings)
    with pytest.raises(RankFailed, match="rank 1 was killed by SIGKILL"):
        runs.train(made)
    assert seconds_since_the_fuse(tmp_path) < LIMIT_SECONDS


def seconds_since_the_fuse(folder):
    """How long ago the rank failed; there is no such file if it never did."""
    return time.time() - (folder / "fuse.burnt").stat().st_mtime


def test_an_exception_is_told_with_its_traceback(tmp_path):
    settings = ("death.then=stop", *light_fuse(tmp_path, rank=2, turn=5, how="raise"))
    with pytest.raises(RankFailed, match="rank 2 failed: ArithmeticError: the batch was") as e:
        runs.train(plan(tmp_path / "run", "parameter-server", 3, settings))
    assert "faulty.py" in e.value.account
    assert "in loss" in e.value.account


def _wait_for_ever(rank, size, init_method):
    connect(rank, size, init_method)
    comm = ProcessComm({})
    if rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    run_blocking(_receive(comm))


async def _receive(comm):
    return await comm.recv(ANY)


def test_a_receive_from_anyone_notices_a_death():
    began = time.monotonic()
    with pytest.raises(RankFailed, match="rank 1 was killed by SIGKILL"):
        launch(3, _wait_for_ever, ())
    assert time.monotonic() - began < LIMIT_SECONDS + 10  # of which some to start


def _hear_of_death(rank, size, init_method):
    connect(rank, size, init_method)
    comm = ProcessComm({})
    if rank == 1:
        os._exit(0)
    began = time.monotonic()
    try:
        run_blocking(_receive(comm))
    except WorldFailed as error:
        seconds = time.monotonic() - began
        raise ValueError(f"noticed within {LIMIT_SECONDS} s: {seconds < LIMIT_SECONDS}") from error


def test_ranks_notice_by_themselves(monkeypatch):
    """Not only the parent: on another host there is none."""
    # Let the account of the rank that noticed stand before that of the rank that left.
    monkeypatch.setattr("regatta.worlds.launch._Watch._failures", _only_rank_0)
    with pytest.raises(RankFailed, match="ValueError: noticed within 10 s: True"):
        launch(2, _hear_of_death, ())


def _only_rank_0(watch):
    return [rank for rank, (kind, _) in watch._reports.items() if rank == 0 and kind != "result"]


def _sum_in_order(rank, size, init_method, seed):
    connect(rank, size, init_method)
    comm = ProcessComm({"pair": [0, 2], "all": range(size)})
    parts = [torch.randn(10_007, generator=torch.Generator().manual_seed(seed + r)) * 10.0**r
             for r in range(size)]  # fmt: skip
    total = run_blocking(_reduce(comm, parts[rank], "all"))
    expected = parts[0]
    for part in parts[1:]:
        expected = expected + part
    same = torch.equal(total, expected)
    if rank in (0, 2):
        pair = run_blocking(_reduce(comm, parts[rank], "pair"))
        same &= torch.equal(pair, parts[0] + parts[2])
    comm.close()
    return same


async def _reduce(comm, data, group):
    return await comm.all_reduce(data, group)


@pytest.mark.parametrize("size", [3, 5])
def test_all_reduce_sums_in_rank_order(size):
    assert launch(size, _sum_in_order, (7,)) == [True] * size


def _exchange(rank, size, init_method):
    connect(rank, size, init_method)
    comm = ProcessComm({})
    got = run_blocking(_all_kinds(comm))
    comm.close()
    return got


async def _all_kinds(comm):
    """Every payload type, many in flight, to oneself too, and a poll that does not wait."""
    other = 1 - comm.rank
    nothing = await comm.poll(tag=99)
    kinds = [torch.float32, torch.float16, torch.int8, torch.uint8, torch.int64, torch.bool]
    for number in range(60):
        dtype = kinds[number % len(kinds)]
        await comm.send(other, torch.full((number * 100,), 1, dtype=dtype), tag=5, version=number)
    await comm.send(comm.rank, torch.tensor([3.0]), tag=6)
    seen = [await comm.recv(other, tag=5) for _ in range(60)]
    own = await comm.recv(comm.rank, tag=6)
    in_order = [m.version for m in seen] == list(range(60))
    whole = all(m.data.numel() == 100 * m.version and bool((m.data == 1).all()) for m in seen)
    typed = all(m.data.dtype == kinds[m.version % len(kinds)] for m in seen)
    spread = await comm.broadcast(torch.tensor([float(comm.rank)]), root=1)
    return nothing is None, in_order, whole, typed, own.data.item(), spread.item()


def test_messages_arrive_whole_and_in_order():
    assert launch(2, _exchange, ()) == [(True, True, True, True, 3.0, 1.0)] * 2


def _listening(rank, size, init_method):
    connect(rank, size, init_method)
    comm = ProcessComm({})
    inodes = set()
    for number in os.listdir("/proc/self/fd"):
        with contextlib.suppress(FileNotFoundError):  # the listing's own descriptor is gone by now
            inodes.update(re.findall(r"socket:\[(\d+)\]", os.readlink(f"/proc/self/fd/{number}")))
    addresses = [
        line.split()[1]
        for table in ("/proc/net/tcp", "/proc/net/tcp6")
        for line in Path(table).read_text().splitlines()[1:]
        if line.split()[3] == "0A" and line.split()[9] in inodes
    ]
    comm.close()
    return addresses


@pytest.mark.skipif(not Path("/proc/net/tcp").exists(), reason="needs Linux's /proc")
def test_sockets_listen_on_loopback_only():
    for addresses in launch(2, _listening, ()):
        assert addresses, "gloo listens somewhere"
        assert all(a.startswith("0100007F:") for a in addresses), addresses


def test_torchrun_trains_and_replays(tmp_path):
    out = tmp_path / "run"
    done = torchrun(2, "train", RECIPE, "-s", "all-reduce", "-o", out, "--set", "stop.epochs=1")
    assert done.returncode == 0, done.stderr
    assert "samples/s" in done.stdout
    assert runs.replay(out).identical


@pytest.mark.parametrize("how", ["kill", "raise"])
def test_torchrun_ends_when_a_rank_fails(how, tmp_path):
    """The server sits in recv(ANY) meanwhile."""
    settings = [w for s in light_fuse(tmp_path, rank=1, turn=5, how=how) for w in ("--set", s)]
    out = tmp_path / "run"
    done = torchrun(3, "train", RECIPE, "-s", "parameter-server", "-o", out, *settings)
    assert done.returncode == 1
    assert seconds_since_the_fuse(tmp_path) < LIMIT_SECONDS
    assert ("SIGKILL" if how == "kill" else "the batch was cursed") in done.stderr


def test_torchrun_with_the_wrong_number_is_refused(tmp_path):
    words = ("train", RECIPE, "-s", "all-reduce", "-n", "3", "-o", tmp_path / "run")
    done = torchrun(2, *words)
    assert done.returncode == 1
    assert "needs 3 processes, but torchrun started 2" in done.stderr
    assert not (tmp_path / "run").exists()


@pytest.mark.real
def test_ranks_that_others_started_cannot_begin_again(tmp_path):
    done = torchrun(2, "train", RECIPE, "-s", "all-reduce", "-o", tmp_path, "--on-death", "restart")
    assert done.returncode != 0
    assert "ranks that torchrun has started cannot begin again by themselves" in done.stderr
    assert "--resumable" in done.stderr
    assert not list(tmp_path.iterdir())


def test_nobody_is_left_when_the_parent_is_killed(tmp_path):
    words = ["train", RECIPE, "-s", "all-reduce", "-n", "2", "-o", str(tmp_path / "run"),
             "--set", "stop.epochs=100000"]  # fmt: skip
    parent = subprocess.Popen(
        [sys.executable, "-c", "from regatta.cli import main; main()", *words],
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True,
    )  # fmt: skip
    events = tmp_path / "run" / "events.jsonl"
    until(lambda: events.exists() and '"progress"' in events.read_text(), "a step is made")
    parent.kill()
    parent.wait()
    until(lambda: not members(parent.pid), "all processes are gone")


def _hears_interrupts():
    """What a shell starts in the background ignores them, and so would its children."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def test_an_interrupt_saves_and_ends_in_good_order(tmp_path):
    words = ["train", RECIPE, "-s", "parameter-server", "-n", "2", "-o", str(tmp_path / "run"),
             "--set", "stop.epochs=100000"]  # fmt: skip
    process = subprocess.Popen(
        [sys.executable, "-c", "from regatta.cli import main; main()", *words],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True,
        preexec_fn=_hears_interrupts,
    )  # fmt: skip
    events = tmp_path / "run" / "events.jsonl"
    until(lambda: events.exists() and '"progress"' in events.read_text(), "a step is made")
    process.send_signal(signal.SIGINT)
    stdout, stderr = process.communicate(timeout=30)
    assert process.returncode == 0, stderr
    assert "interrupt" in stdout
    assert runs.replay(tmp_path / "run").identical
    assert command("train", RECIPE, "-o", tmp_path / "run").returncode == 2  # it is there already


@pytest.mark.parametrize("strategy", ["all-reduce", "averaging", "parameter-server"])
def test_an_interrupt_that_one_worker_hears_first_interrupts_the_run(strategy, tmp_path):
    """Whoever holds the answer may have been halted by then: it says why all the same."""
    settings = light_fuse(tmp_path, rank=1, turn=5, how="int")
    runs.train(plan(tmp_path / "run", strategy, 2, settings))
    (ended,) = [e for e in read(tmp_path / "run" / "events.jsonl") if isinstance(e, Ended)]
    assert ended.reason == "interrupt"
    assert runs.replay(tmp_path / "run").identical


def _several_open_sums(rank, size, init_method):
    """Sums started before others are awaited, large and small, and a rank's shared files."""
    connect(rank, size, init_method)
    comm = ProcessComm({})
    sizes = [20_000, 9, 40_000, 20_000]
    parts = [[torch.randn(n, generator=torch.Generator().manual_seed(10 * r + i)) * 10.0**r
              for i, n in enumerate(sizes)] for r in range(size)]  # fmt: skip
    totals = run_blocking(_sums(comm, parts[rank]))
    same = []
    for i, total in enumerate(totals):
        expected = parts[0][i]
        for r in range(1, size):
            expected = expected + parts[r][i]
        same.append(torch.equal(total, expected))
    descriptors = [os.readlink(f"/proc/self/fd/{n}") for n in _descriptors()]
    comm.close()
    return same, [name for name in descriptors if "regatta" in name]


def _descriptors():
    return [n for n in os.listdir("/proc/self/fd") if os.path.lexists(f"/proc/self/fd/{n}")]


async def _sums(comm, parts):
    totals = []
    for _ in range(3):  # memory is used in turn: a mistake shows in later rounds
        operations = [comm.all_reduce(part) for part in parts]
        totals = [await operation for operation in operations]
    return totals


@pytest.mark.parametrize("size", [2, 3])
def test_several_sums_may_be_open(size):
    for same, open_files in launch(size, _several_open_sums, ()):
        assert same == [True] * 4
        assert all(name.startswith("/memfd:") for name in open_files), "no file to be left behind"
