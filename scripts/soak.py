"""A long run to which something happens every so often; in the end it must have learnt its task.

    python scripts/soak.py --minutes 30 --every 20 --strategy parameter-server

Workers, servers and the launcher are killed, stopped for a while, or frozen until they are given
up. If the launcher dies the run is resumed, as a person would. Ends with 1 if the target is not
reached, or if something is left behind.
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path

from regatta.benchmarks.harm import Late, Story, Subject, until

SETTINGS = (
    "task.train=8192", "task.hidden=64,64", "stop.target=none", "stop.epochs=1000000",
    "evaluation.every=20", "checkpointing.every=20", "recording.sentences=0",
)  # fmt: skip
KILL, STOP, FREEZE = "killed", "stopped for 2 s", "frozen until it is given up"
SILENCE = 5.0  # seconds; who is stopped for a while is to be waited for


class Soak:
    def __init__(self, options: argparse.Namespace, folder: Path) -> None:
        self._options, self._folder = options, folder
        self._chance = random.Random(options.seed)
        self._starts = 0
        self._subject = self._start()
        self.story = Story(folder / "run")

    def _start(self) -> Subject:
        options = self._options
        words = [
            "train", "teacher", "-s", options.strategy, "-n", str(options.workers),
            "-o", self._folder / "run", "--restarts", "1000000", "--silence", str(SILENCE),
            *(word for setting in SETTINGS for word in ("--set", setting)),
        ]  # fmt: skip
        words += ["--resume"] if self._starts else ["--on-death", options.on_death]
        self._starts += 1
        return Subject(words, self._folder / f"tmp-{self._starts}")

    def harm(self) -> str:
        """Whatever chance says; what it was, in words."""
        ranks = self._subject.ranks()
        victims = [*ranks, -1]
        rank = self._chance.choice(victims)
        kind = self._chance.choice((KILL, STOP) if rank < 0 else (KILL, STOP, FREEZE))
        process = self._subject.pid if rank < 0 else ranks[rank]
        os.kill(process, signal.SIGKILL if kind == KILL else signal.SIGSTOP)
        if kind == STOP:
            time.sleep(2.0)
            with suppress(
                ProcessLookupError
            ):  # the world may have ended without it, to begin again
                os.kill(process, signal.SIGCONT)
        if rank < 0 and kind == KILL:
            self._subject.leaves_nothing()
            self._subject.end()
            self._subject = self._start()
        return f"{'the launcher' if rank < 0 else f'rank {rank}'} is {kind}"

    def is_alive(self) -> bool:
        return not self._subject.is_over()

    def wait_for_a_checkpoint(self) -> None:
        until(lambda: bool(self.story.told("checkpointed")), "something was saved", 120.0)

    def finish(self) -> int:
        """In good order, as by Ctrl-C; its exit code."""
        os.kill(self._subject.pid, signal.SIGINT)
        code = self._subject.wait(60.0)
        if code:
            print(self._subject.complaint())
        self._subject.leaves_nothing()
        return code

    def end(self) -> None:
        self._subject.end()


def main() -> int:
    options = _options()
    # A shell that starts this with `&` has Ctrl-C ignored, and commands would inherit that.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    with tempfile.TemporaryDirectory(prefix="regatta-soak-") as folder:
        soak = Soak(options, Path(folder))
        try:
            return _soak(soak, options)
        except Late as late:
            print(f"failed: {late}")
            return 1
        finally:
            soak.end()


def _soak(soak: Soak, options: argparse.Namespace) -> int:
    soak.wait_for_a_checkpoint()
    began, number = time.monotonic(), 0
    end = began + 60.0 * options.minutes
    while time.monotonic() + 2 * options.every <= end:  # after the last there is time to recover
        time.sleep(options.every)
        if not soak.is_alive():
            print("failed: the run has ended by itself")
            return 1
        number += 1
        now = time.monotonic() - began
        print(
            f"{now:7.1f} s  {number}: {soak.harm()}; accuracy {_accuracy(soak.story):.4f}",
            flush=True,
        )
    time.sleep(max(0.0, end - time.monotonic()))
    code = soak.finish()
    story = soak.story
    deaths = [event["then"] for event in story.told("died")]
    followed = ", ".join(f"{deaths.count(then)} {then}" for then in sorted(set(deaths)))
    reached = _accuracy(story)
    print(f"{number} faults; deaths: {followed}; accuracy {reached:.4f}, target {options.target:g}")
    return int(code != 0 or reached < options.target)


def _accuracy(story: Story) -> float:
    """Of the last evaluation."""
    evaluated = story.told("evaluated")
    return float(evaluated[-1]["results"]["accuracy"]) if evaluated else 0.0


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="A long run with a random fault every so often.")
    parser.add_argument("--minutes", type=float, default=30.0)
    parser.add_argument("--every", type=float, default=20.0, help="seconds from fault to fault")
    parser.add_argument("--strategy", default="parameter-server")
    parser.add_argument("--workers", type=int, default=3)
    parser.add_argument("--on-death", default="auto", help="auto, restart or shrink")
    parser.add_argument("--target", type=float, default=0.8, help="accuracy, in the end")
    parser.add_argument("--seed", type=int, default=0)
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
