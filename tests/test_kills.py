"""kill -9 at a random moment, of a random process: nothing stays behind.

A few kills are tests. `python tests/test_kills.py 200` does as many as one likes.
"""

import os
import random
import signal
import sys
import tempfile
import time
from pathlib import Path

import pytest
from real import RECIPE, until

from regatta.benchmarks.harm import Story, Subject

pytestmark = pytest.mark.real
STRATEGIES = ("all-reduce", "averaging", "parameter-server", "ring", "gossip", "pipeline")
LIMIT_SECONDS = 15


@pytest.mark.parametrize("seed", range(6))
def test_nothing_stays_behind_after_a_kill(seed, tmp_path):
    kill_once(seed, tmp_path)


def kill_once(seed: int, folder: Path) -> str:
    chance = random.Random(seed)
    strategy = STRATEGIES[seed % len(STRATEGIES)]
    words = ("train", RECIPE, "-s", strategy, "-n", "2", "-o", folder / "run",
             "--set", "stop.epochs=100000", "--on-death", "stop")  # fmt: skip
    subject = Subject(words, folder / "tmp")
    try:
        return f"{strategy}: {_kill_and_look(subject, Story(folder / 'run'), chance)}"
    finally:
        subject.end()  # not left behind by a test that failed


def _kill_and_look(subject: Subject, story: Story, chance: random.Random) -> str:
    until(lambda: len(subject.ranks()) >= 2, "ranks have started")
    if chance.random() < 0.7:  # else while they still find each other
        until(lambda: bool(story.told("progress")), "a step is made")
    time.sleep(chance.random() * 0.3)
    victim = chance.choice([subject.pid, *subject.ranks().values()])
    os.kill(victim, signal.SIGKILL)
    subject.wait(LIMIT_SECONDS)
    subject.leaves_nothing()
    return "the parent was killed" if victim == subject.pid else "a rank was killed"


if __name__ == "__main__":
    for number in range(int(sys.argv[1])):
        with tempfile.TemporaryDirectory() as place:
            print(number, kill_once(number, Path(place)), flush=True)
