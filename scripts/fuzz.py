#!/usr/bin/env python
"""Feed hostile inputs to whatever reads files, messages and words, and tell what came of them.

    python scripts/fuzz.py events --inputs 200000 --seed 1
    python scripts/fuzz.py events --from 120000 --seconds 250     # a slice of them
    python scripts/fuzz.py all --inputs 20000

Every input is made by its number alone, so that a slice, or a single one, can be fed again.
An input may be accepted, or refused with one line (ValueError, OSError, WorldFailed). Whatever else
happens is a crash: another error, a message of several lines, 2 seconds of computing, more
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
    parser.add_argument("--from", dest="first", type=int, default=0, help="the first one's number")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="then leave the rest")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--keep", type=Path, default=Path("fuzz-crashes"), help="for their inputs")
    given = parser.parse_args()
    torch.set_num_threads(1)
    names = list(TARGETS) if given.name == "all" else [given.name]
    crashes = [_fuzz(name, given) for name in names]
    return int(any(crashes))


def _fuzz(name: str, given: argparse.Namespace) -> int:
    place = _SHARED if _SHARED.is_dir() else None
    with tempfile.TemporaryDirectory(prefix="regatta-fuzz-", dir=place) as folder:
        target, found, chance = TARGETS[name](Path(folder)), Findings(), Random()
        _limit_memory()
        before, began = _resident(), time.perf_counter()
        for number in range(given.first, given.inputs):
            if number % 1000 == 0:
                end_what_hangs_below_python(120)
            chance.seed(f"{name} {given.seed} {number}")
            found.take(target.input(chance), target.feed)
            if time.perf_counter() - began > given.seconds:
                print(f"go on with --from {number + 1}")
                break
        seconds = time.perf_counter() - began
        grown = _resident() - before
    _print(name, target.what, found, seconds, grown)
    for number, (data, account) in enumerate(found.crashes.values()):
        given.keep.mkdir(exist_ok=True)
        kept = given.keep / f"{name}-{given.first}-{number}"
        kept.write_bytes(data)
        print(f"\n{kept}: {account}", file=sys.stderr)
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
