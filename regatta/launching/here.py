"""The ranks of one host: started together, ended together, at the word of who started them all.

`python -m regatta.launching.here` is what `regatta launch hosts` lets ssh run. Its standard input
is the line to the launcher: `leave` and `interrupt` are passed on to the ranks, and when the line
is cut they are ended.
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from queue import Empty, SimpleQueue
from types import FrameType
from typing import Final, TextIO

from regatta.launching import common, first_failure
from regatta.worlds.leaving import SIGNALS
from regatta.worlds.started import ADDRESS, BY_HOSTS, PORT

LEAVE, INTERRUPT = "leave", "interrupt"
_CUT = ""  # as a line: there will be none any more
_SIGNAL_OF: Final = {LEAVE: signal.SIGTERM, INTERRUPT: signal.SIGINT}
_GRACE_SECONDS = 5.0  # for other ranks to tell what they saw, before they are killed
_TICK_SECONDS = 0.1
# PyTorch warns of every host whose address has no name, which hinders nobody.
_QUIET: Final = {"TORCH_CPP_LOG_LEVEL": "ERROR"}


@dataclass(frozen=True)
class Share:
    """The ranks that one host has of a world, and where all of them meet."""

    first: int
    count: int
    size: int
    address: str
    port: int

    def options(self) -> list[str]:
        """As this module reads them."""
        return [f"--{name}={value}" for name, value in vars(self).items()]

    def environment(self, local: int) -> dict[str, str]:
        """torchrun's variables, and that they were not written by hand."""
        return {
            "RANK": str(self.first + local),
            "WORLD_SIZE": str(self.size),
            "LOCAL_RANK": str(local),
            "LOCAL_WORLD_SIZE": str(self.count),
            ADDRESS: self.address,
            PORT: str(self.port),
            BY_HOSTS: "1",
        }


Said = SimpleQueue[str]


def run(share: Share, words: Sequence[str], line: TextIO) -> int:
    """Run this host's ranks; their common exit code."""
    said: Said = SimpleQueue()
    _hear_signals(said)
    threading.Thread(target=_hear_line, args=(line, said), daemon=True).start()
    command = [sys.executable, "-m", "regatta", *words]
    ranks = [
        subprocess.Popen(
            command, stdin=subprocess.DEVNULL, env=_QUIET | os.environ | share.environment(local)
        )
        for local in range(share.count)
    ]
    try:
        return _until_the_end(share, ranks, said)
    finally:
        for rank in ranks:
            rank.kill()
            rank.wait()


def _hear_signals(said: Said) -> None:
    def say(number: int, _: FrameType | None) -> None:
        said.put(INTERRUPT if number == signal.SIGINT else LEAVE)

    for number in (*SIGNALS, signal.SIGINT):
        signal.signal(number, say)


def _hear_line(line: TextIO, said: Said) -> None:
    for text in line:
        said.put(text.strip())
    said.put(_CUT)


def _until_the_end(share: Share, ranks: Sequence[subprocess.Popen[bytes]], said: Said) -> int:
    failure, deadline = None, float("inf")
    while None in (codes := [rank.poll() for rank in ranks]) and time.monotonic() < deadline:
        if failure is None and (failure := first_failure(codes)) is not None:
            deadline = time.monotonic() + _GRACE_SECONDS
        try:
            word = said.get(timeout=_TICK_SECONDS)
        except Empty:
            continue
        if word == _CUT:
            return 1
        for rank in ranks:
            if word in _SIGNAL_OF and rank.poll() is None:
                rank.send_signal(_SIGNAL_OF[word])
    _tell_of_the_killed(share, codes)
    return common(codes, first_failure(codes) if failure is None else failure)


def _tell_of_the_killed(share: Share, codes: Sequence[int | None]) -> None:
    """They cannot say it themselves."""
    for rank, code in enumerate(codes, share.first):
        if code is not None and code < 0:
            how = signal.Signals(-code).name
            print(f"rank {rank} was killed by {how}", file=sys.stderr, flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(prog="regatta.launching.here", description=__doc__)
    for name in ("first", "count", "size", "port"):
        parser.add_argument(f"--{name}", type=int, required=True)
    parser.add_argument("--address", required=True)
    parser.add_argument("words", nargs="+")
    given = vars(parser.parse_args())
    words = given.pop("words")
    return run(Share(**given), words, sys.stdin)


if __name__ == "__main__":
    sys.exit(main())
