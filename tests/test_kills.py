"""kill -9 at a random moment, of a random process: nothing stays behind.

A few kills are tests. `python tests/test_kills.py 200` does as many as one likes.
"""

import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest
from real import RECIPE, REGATTA, members, until

pytestmark = pytest.mark.real
STRATEGIES = ("all-reduce", "averaging", "parameter-server", "ring", "gossip", "pipeline")
LIMIT_SECONDS = 15


@pytest.mark.parametrize("seed", range(6))
def test_nothing_stays_behind_after_a_kill(seed, tmp_path):
    kill_once(seed, tmp_path)


def kill_once(seed: int, folder: Path) -> str:
    chance = random.Random(seed)
    strategy = STRATEGIES[seed % len(STRATEGIES)]
    temporary = folder / "tmp"
    temporary.mkdir()
    words = ("train", RECIPE, "-s", strategy, "-n", "2", "-o", str(folder / "run"),
             "--set", "stop.epochs=100000")  # fmt: skip
    parent = subprocess.Popen(
        [*REGATTA, *words], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        start_new_session=True, env=os.environ | {"TMPDIR": str(temporary)},
    )  # fmt: skip
    try:
        return f"{strategy}: {_kill_and_look(parent, folder, chance)}"
    finally:
        for pid in members(parent.pid):
            os.kill(pid, signal.SIGKILL)  # not left behind by a test that failed


def _kill_and_look(parent: subprocess.Popen, folder: Path, chance: random.Random) -> str:
    shared_before = _shared_segments()
    events = folder / "run" / "events.jsonl"
    until(lambda: len(_ranks(parent.pid)) >= 2, "ranks have started")
    if chance.random() < 0.7:  # else while they still find each other
        until(lambda: events.exists() and '"progress"' in events.read_text(), "a step is made")
    time.sleep(chance.random() * 0.3)
    victim = chance.choice([parent.pid, *_ranks(parent.pid)])
    os.kill(victim, signal.SIGKILL)
    parent.wait(LIMIT_SECONDS)
    until(lambda: not members(parent.pid), "all processes are gone")
    until(lambda: not _left(folder / "tmp"), "no folder, file or socket is left")
    assert _shared_segments() <= shared_before
    return "the parent was killed" if victim == parent.pid else "a rank was killed"


def _ranks(parent: int) -> list[int]:
    """They are forked by a server that is the parent's child."""
    parents = members(parent)
    return [pid for pid, server in parents.items() if parents.get(server) == parent]


def _left(folder: Path) -> list[Path]:
    """What a run has left, but for the place where torch keeps what it has compiled."""
    return [path for path in folder.iterdir() if "torchinductor" not in path.name]


def _shared_segments() -> set[str]:
    """Named shared memory of the whole system."""
    return {path.name for path in Path("/dev/shm").iterdir()}


if __name__ == "__main__":
    for number in range(int(sys.argv[1])):
        with tempfile.TemporaryDirectory() as place:
            print(number, kill_once(number, Path(place)), flush=True)
