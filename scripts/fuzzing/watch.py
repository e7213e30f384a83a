"""One input after the other: what came of each, in how long, and whether that is permitted."""

from __future__ import annotations

import faulthandler
import signal
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from regatta.comm import WorldFailed

SECONDS = 2.0  # of computing that an input may take
PATIENCE = 20.0  # seconds that it may take in all, on a machine that others use too
_LONGEST = 5000  # letters that a message may have: paths have up to 4,096
DECLARED = (ValueError, OSError, WorldFailed)  # told in one line, without a traceback

Feed = Callable[[bytes], None]


class Hang(BaseException):
    """An input has taken too long."""


@dataclass
class Findings:
    outcomes: Counter[str] = field(default_factory=Counter)
    crashes: dict[str, tuple[bytes, str]] = field(default_factory=dict)  # the first of every kind
    slowest: float = 0.0

    def take(self, data: bytes, feed: Feed) -> None:
        began = time.process_time()
        outcome, account = _outcome(data, feed)
        self.slowest = max(self.slowest, time.process_time() - began)
        self.outcomes[outcome] += 1
        if account:
            self.crashes.setdefault(account.splitlines()[0], (data, account))

    @property
    def number(self) -> int:
        return sum(self.outcomes.values())


def _outcome(data: bytes, feed: Feed) -> tuple[str, str]:
    """In a word; and an account, if that must not be."""
    try:
        with time_limit():
            feed(data)
    except DECLARED as error:
        message = str(error)  # that the command line shows on one line
        if len(message) > _LONGEST or not message.strip():
            return "CRASH", f"a message of {len(message)} letters: {where(error)}"
        return type(error).__name__, ""
    except (Exception, Hang) as error:
        return (
            "CRASH",
            f"{type(error).__name__} at {where(error)}\n{traceback.format_exc()[-3000:]}",
        )
    return "accepted", ""


def where(error: BaseException) -> str:
    """The innermost line of ours."""
    frames = traceback.extract_tb(error.__traceback__)
    ours = [frame for frame in frames if "/regatta/" in frame.filename] or list(frames)
    return f"{Path(ours[-1].filename).name}:{ours[-1].lineno}"


@contextmanager
def time_limit() -> Iterator[None]:
    limits = (
        (signal.SIGPROF, signal.ITIMER_PROF, SECONDS),
        (signal.SIGALRM, signal.ITIMER_REAL, PATIENCE),
    )
    for number, timer, seconds in limits:
        signal.signal(number, _ring)
        signal.setitimer(timer, seconds)
    try:
        yield
    finally:
        for _, timer, _ in limits:
            signal.setitimer(timer, 0)


def _ring(number: int, _: object) -> None:
    raise Hang("it computes without end" if number == signal.SIGPROF else "it waits without end")


def end_what_hangs_below_python(seconds: float) -> None:
    """A loop in a library hears no alarm: the whole process is then ended, with its stack told."""
    faulthandler.dump_traceback_later(seconds, exit=True)
