"""Several processes that do one job."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from multiprocessing import get_context


def _nothing() -> None: ...


@contextmanager
def processes(
    jobs: int, what: str, prepare: Callable[[], None] = _nothing
) -> Iterator[ProcessPoolExecutor]:
    """Started anew, not forked; an interrupt is left to this process, which ends them."""
    try:
        with ProcessPoolExecutor(max(1, jobs), get_context("spawn"), _begin, (prepare,)) as pool:
            try:
                yield pool
            finally:
                pool.shutdown(cancel_futures=True)
    except BrokenProcessPool:
        raise ValueError(
            f"a process that {what} has died (out of memory?): run the same command again, it goes "
            "on where it can; fewer --jobs need less memory"
        ) from None


def _begin(prepare: Callable[[], None]) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    prepare()
