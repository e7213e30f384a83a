"""Several processes that do one job."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from multiprocessing import get_context

_LOOK_SECONDS = 1.0


def _nothing() -> None: ...


@contextmanager
def processes(
    jobs: int, what: str, prepare: Callable[[], None] = _nothing
) -> Iterator[ProcessPoolExecutor]:
    """Started anew, not forked; an interrupt is left to this process, which ends them."""
    try:
        with (
            _without_main(),
            ProcessPoolExecutor(
                max(1, jobs), get_context("spawn"), _begin, (prepare, os.getpid())
            ) as pool,
        ):
            try:
                yield pool
            finally:
                pool.shutdown(cancel_futures=True)
    except BrokenProcessPool:
        raise ValueError(
            f"a process that {what} has died (out of memory?): run the same command again, it goes "
            "on where it can; fewer --jobs need less memory"
        ) from None


@contextmanager
def _without_main() -> Iterator[None]:
    """Children need our functions alone: a script that has no guard would run again in each."""
    main = sys.modules["__main__"]
    file, spec = main.__dict__.pop("__file__", None), getattr(main, "__spec__", None)
    main.__spec__ = None
    try:
        yield
    finally:
        main.__spec__ = spec
        if file is not None:
            main.__file__ = file


@contextmanager
def one_thread() -> Iterator[None]:
    """Sums of several threads may differ in their last digit."""
    import torch

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def _begin(prepare: Callable[[], None], parent: int) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # A parent that was killed ends nobody, and its queue stays open: children hold it too. They
    # look for it by a timer, not a thread, since some of them fork.
    signal.signal(signal.SIGALRM, lambda number, frame: _end_without(parent))
    signal.setitimer(signal.ITIMER_REAL, _LOOK_SECONDS, _LOOK_SECONDS)
    prepare()


def _end_without(parent: int) -> None:
    if os.getppid() != parent:
        os._exit(1)
