"""Being asked to leave, as schedulers do before they take a machine away: SIGTERM and SIGUSR1.

Who is asked goes on to where its run can be saved and ends with an exit code of its own, on which
the same command is to be started again.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Final

SIGNALS: Final = (signal.SIGTERM, signal.SIGUSR1)
EXIT_CODE: Final = 75  # EX_TEMPFAIL of sysexits.h: not done, but worth another try

Asked = Callable[[], bool]


class Notice:
    """Whether this process has been asked."""

    def __init__(self) -> None:
        self._heard = False

    def __call__(self) -> bool:
        return self._heard

    def listen(self) -> Notice:
        """From now on; once more is no more."""
        for number in SIGNALS:
            signal.signal(number, self._hear)
        return self

    def _hear(self, number: int, frame: FrameType | None) -> None:
        self._heard = True


def never() -> bool:
    return False


class Halt:
    """The turn before which streams are to end, once somebody has said so; the earliest counts."""

    def __init__(self) -> None:
        self._turn: int | None = None

    def before(self, turn: int) -> bool:
        """Whether that is news."""
        is_news = self._turn is None or turn < self._turn
        if is_news:
            self._turn = turn
        return is_news

    def is_due(self, turn: int | None) -> bool:
        """At this turn, or some time."""
        return self._turn is not None and (turn is None or turn >= self._turn)


@contextmanager
def unheard() -> Iterator[None]:
    """What is started meanwhile is deaf until it listens: a signal to all must not end helpers."""
    if threading.current_thread() is not threading.main_thread():  # which alone may say so
        yield
        return
    before = {number: signal.signal(number, signal.SIG_IGN) for number in SIGNALS}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
