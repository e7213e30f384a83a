#!/usr/bin/env python
"""Feed hostile inputs to whatever reads files, messages and words, and tell what came of them.

    python scripts/fuzz.py events --inputs 200000 --seed 1
    python scripts/fuzz.py all --inputs 20000

An input may be accepted, or refused with one line (ValueError, OSError, WorldFailed). Whatever else
happens is a crash: another error, a message of several lines, 2 seconds without an answer, more
memory than is allowed. The first input of every kind of crash is kept, and the exit code is 1.
"""

from __future__ import annotations

import argparse
import resource
import sys
import tempfile
import time
from pathlib import Path
from random import Random

import psutil
import torch
from fuzzing import TARGETS
from fuzzing.watch import Findings, end_what_hangs_below_python

_ROOM = 2 << 30  # bytes of addresses beyond what there is when all is set up
_SHARED = Path("/dev/shm")  # files that never reach a disk


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("name", choices=[*TARGETS, "all"])
    parser.add_argument("--inputs", type=int, default=200_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--keep", type=Path, default=Path("fuzz-crashes"), help="for their inputs")
    given = parser.parse_args()
    torch.set_num_threads(1)
    names = list(TARGETS) if given.name == "all" else [given.name]
    crashes = [_fuzz(name, given.inputs, given.seed, given.keep) for name in names]
    return int(any(crashes))


def _fuzz(name: str, inputs: int, seed: int, keep: Path) -> int:
    place = _SHARED if _SHARED.is_dir() else None
    with tempfile.TemporaryDirectory(prefix="regatta-fuzz-", dir=place) as folder:
        target, chance, found = TARGETS[name](Path(folder)), Random(f"{name} {seed}"), Findings()
        _limit_memory()
        before, began = _resident(), time.perf_counter()
        for number in range(inputs):
            if number % 1000 == 0:
                end_what_hangs_below_python(60)
            found.take(target.input(chance), target.feed)
        seconds = time.perf_counter() - began
        grown = _resident() - before
    _print(name, target.what, found, seconds, grown)
    for number, (data, account) in enumerate(found.crashes.values()):
        keep.mkdir(exist_ok=True)
        (keep / f"{name}-{number}").write_bytes(data)
        print(f"\n{keep}/{name}-{number}: {account}", file=sys.stderr)
    return len(found.crashes)


def _limit_memory() -> None:
    limit = psutil.Process().memory_info().vms + _ROOM
    resource.setrlimit(resource.RLIMIT_AS, (limit, resource.getrlimit(resource.RLIMIT_AS)[1]))


def _resident() -> int:
    return int(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss) << 10


def _print(name: str, what: str, found: Findings, seconds: float, grown: int) -> None:
    outcomes = ", ".join(f"{kind} {count:,}" for kind, count in found.outcomes.most_common())
    print(
        f"{name} ({what}): {found.number:,} inputs in {seconds:.0f} s: {outcomes}; "
        f"slowest {1000 * found.slowest:.0f} ms, memory +{grown / 1e6:.0f} MB",
        flush=True,
    )


if __name__ == "__main__":
    sys.exit(main())
