"""Real runs, made small: helpers for the tests that start processes."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from regatta import config, folders, recipes

RECIPES = Path(__file__).parent / "faulty.py"
RECIPE = f"{RECIPES}:small"
WIDE = f"{RECIPES}:wide"
REGATTA = [sys.executable, "-c", "from regatta.cli import main; main()"]


def plan(
    folder: Path,
    strategy: str,
    workers: int,
    settings: tuple[str, ...] = (),
    recipe: str = RECIPE,
) -> folders.Plan:
    chosen = config.component("strategy", strategy)
    run = replace(recipes.load(recipe), strategy=chosen, workers=workers)
    return folders.Plan(recipe, config.assign(run, list(settings)), folder)


def light_fuse(folder: Path, rank: int = 1, turn: int = 20, how: str = "kill") -> tuple[str, ...]:
    """Settings that let a rank fail, once."""
    fuse = folder / "fuse"
    fuse.touch()
    return (f"task.fuse={fuse}", f"task.rank={rank}", f"task.turn={turn}", f"task.how={how}")


def command(
    *words: str | Path,
    environment: dict[str, str] | None = None,
    timeout: float = 50,
    cwd: Path | None = None,
) -> subprocess.CompletedProcess[str]:
    """The command line, as a person runs it into a pipe."""
    return subprocess.run(
        [*REGATTA, *map(str, words)],
        capture_output=True, text=True, timeout=timeout, check=False,
        env=os.environ | (environment or {}), cwd=cwd,
    )  # fmt: skip


def under_torchrun(processes: int) -> list[str]:
    """What stands before the words of a command."""
    return [
        sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", str(processes),
        "--standalone", "--local-addr", "127.0.0.1", "--no-python", *REGATTA,
    ]  # fmt: skip


def torchrun(processes: int, *words: str | Path, timeout: float = 50):
    """Start under torchrun; returns the finished process."""
    return subprocess.run(
        [*under_torchrun(processes), *map(str, words)],
        capture_output=True, text=True, timeout=timeout, check=False,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
    )  # fmt: skip


def members(session: int) -> dict[int, int]:
    """Processes of this session that run, and their parents."""
    listed = subprocess.run(
        ["ps", "-s", str(session), "-o", "pid=,ppid=,stat="],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    rows = [line.split() for line in listed.stdout.splitlines()]
    return {int(pid): int(parent) for pid, parent, state in rows if "Z" not in state}


def until(condition: Callable[[], bool], what: str, seconds: float = 30) -> None:
    """Fails if it does not come about in time."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"it did not come about that {what}"
        time.sleep(0.02)
