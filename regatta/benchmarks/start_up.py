"""How soon a command answers: its first training step on two workers, and its help.

Every command is a fresh process that starts its own fork server, as a person's command does.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median

from regatta.benchmarks import Case, Result, abba

_TRAIN_BAR = 6.0  # seconds
_HELP_BAR = 0.5
_MOST_SECONDS = 120.0
_LOOK_SECONDS = 0.002
_REGATTA = (sys.executable, "-c", "from regatta.cli import main; main()")
_ONE_STEP = ("train", "vectors", "-s", "all-reduce", "-n", "2", "--set", "stop.samples=512")


def start_up(pairs: int) -> Result:
    cases = [
        _case("first step of train, two workers", _TRAIN_BAR, first_step, "import torch", pairs),
        _case("--help", _HELP_BAR, answer_to_help, "pass", pairs),
    ]
    return Result("start-up", "seconds after the command / a bare interpreter", cases, "seconds")


def _case(name: str, bar: float, ours: Callable[[], float], code: str, pairs: int) -> Case:
    seconds: dict[str, list[float]] = {"A": [], "B": []}
    sides: dict[str, Callable[[], float]] = {"A": ours, "B": lambda: interpreter(code)}
    for side in abba(pairs):
        seconds[side].append(sides[side]())
    said = f"{code}: {median(seconds['B']):.2f} s"
    return Case(name, seconds["A"], bar, f"{median(seconds['A']):.2f} s", said, at_most=True)


def first_step() -> float:
    """Until a run of one step has evaluated its answer, which is soon after the step."""
    with tempfile.TemporaryDirectory(prefix="regatta-") as folder:
        events = Path(folder) / "run" / "events.jsonl"
        began = time.perf_counter()
        command = [*_REGATTA, *_ONE_STEP, "--out", str(events.parent)]
        with subprocess.Popen(command, stdout=subprocess.DEVNULL) as process:
            while not (events.exists() and b'"event":"evaluated"' in events.read_bytes()):
                if process.poll() is not None or time.perf_counter() - began > _MOST_SECONDS:
                    process.kill()
                    raise RuntimeError("regatta train ended or hung before its first step")
                time.sleep(_LOOK_SECONDS)
            seconds = time.perf_counter() - began
            process.wait()
    return seconds


def answer_to_help() -> float:
    began = time.perf_counter()
    subprocess.run([*_REGATTA, "--help"], stdout=subprocess.DEVNULL, check=True)
    return time.perf_counter() - began


def interpreter(code: str) -> float:
    began = time.perf_counter()
    subprocess.run([sys.executable, "-c", code], check=True)
    return time.perf_counter() - began
