"""Hostile inputs: those that were worth keeping, and some hundred new ones of every kind.

`python scripts/fuzz.py NAME --inputs 200000` makes as many as one likes.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from random import Random

import pytest
from corpus import CORPUS

SCRIPTS = Path(__file__).parent.parent / "scripts"
sys.path.append(str(SCRIPTS))

from fuzzing import TARGETS  # noqa: E402
from fuzzing.watch import Findings  # noqa: E402

INPUTS = {"checkpoints": 160, "events": 200, "clusters": 200}


@pytest.mark.parametrize("name", TARGETS)
def test_hostile_inputs_are_taken_or_refused_in_one_line(name, tmp_path):
    target, chance, found = TARGETS[name](tmp_path), Random(name), Findings()
    for data in target.seeds:
        found.take(data, target.feed)
    assert found.outcomes["accepted"], f"what is real is taken: {found.outcomes}"
    for data in CORPUS[name]:
        found.take(data, target.feed)
    for _ in range(INPUTS.get(name, 400)):
        found.take(target.input(chance), target.feed)
    assert not found.crashes, "\n\n".join(account for _, account in found.crashes.values())
    refused = found.number - found.outcomes["accepted"]
    assert refused > 50, found.outcomes


def test_a_crash_is_found(tmp_path):
    """Fed with something that falls over, hangs or talks too much, the watch says so."""
    found = Findings()

    def fall(data: bytes) -> None:
        if data == b"hang":
            while True:
                pass
        if data == b"talk":
            raise ValueError("x" * 10_000)
        raise KeyError(data)

    for data in (b"hang", b"talk", b"fall"):
        found.take(data, fall)
    assert found.outcomes == {"CRASH": 3}
    assert len(found.crashes) == 3


@pytest.mark.parametrize("name", ["lock", "sockets"])
def test_the_script_tells_what_came_of_them(name, tmp_path):
    done = subprocess.run(
        [sys.executable, SCRIPTS / "fuzz.py", name, "--inputs", "50", "--seed", "1"],
        capture_output=True, text=True, check=False, timeout=50, cwd=tmp_path,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert f"{name} (" in done.stdout
    assert ": 50 inputs in" in done.stdout
