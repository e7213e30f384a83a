"""Studies are made of `regatta` commands, each printed before it starts."""

from __future__ import annotations

import shlex
import subprocess
import sys
from pathlib import Path


def regatta(*arguments: str | Path) -> None:
    words = [str(argument) for argument in arguments]
    print(shlex.join(["regatta", *words]), flush=True)
    subprocess.run([str(Path(sys.executable).with_name("regatta")), *words], check=True)


def once(made: Path, *arguments: str | Path) -> None:
    """What is there is not made again."""
    if not made.exists():
        regatta(*arguments, "--out", made)
