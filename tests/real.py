"""Real runs, made small: helpers for the tests that start processes."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

from regatta import config, folders, recipes
from regatta.benchmarks import harm

RECIPES = Path(__file__).parent / "faulty.py"
RECIPE = f"{RECIPES}:small"
WIDE = f"{RECIPES}:wide"
REGATTA = list(harm.REGATTA)
members, until = harm.members, harm.until


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
