"""Start a world of processes on this machine, and end it as one.

Ranks are forked from a server process that has imported everything once, so a second run starts in
a fraction of a second. The first rank that fails ends the world: the others are stopped, and what
the parent raises names that rank and carries its traceback or its signal.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Callable
from multiprocessing.connection import Connection, wait
from multiprocessing.util import get_temp_dir
from pathlib import Path
from typing import Any

from regatta.aside import CannotWrite
from regatta.checkpoint import BadCheckpoint
from regatta.comm import WorldFailed
from regatta.worlds import warm_up
from regatta.worlds.leaving import Asked, never

_GRACE_SECONDS = 3.0  # for other ranks to tell what they saw, before they are killed
_TICK_SECONDS = 0.2

Body = Callable[..., Any]  # body(rank, size, init_method, *arguments) -> picklable result


class WrongUsage(ValueError):
    """Found out by a rank, but the person's to mend: told in one line, without a traceback."""


_TOLD = (WrongUsage, CannotWrite, BadCheckpoint)  # as they are: their own line says it all


class RankFailed(WorldFailed):
    """Carries the failed rank's own account."""

    def __init__(self, message: str, account: str = "") -> None:
        super().__init__(message)
        self.account = account


def launch(
    size: int,
    body: Body,
    arguments: tuple[Any, ...],
    on_tick: Callable[[], None] = lambda: None,
    leaving: Asked = never,
) -> list[Any]:
    """Run `body` in `size` processes; their results by rank."""
    context = multiprocessing.get_context("forkserver")
    warm_up()
    with tempfile.TemporaryDirectory(dir=get_temp_dir()) as folder:
        init_method = f"file://{Path(folder) / 'rendezvous'}"
        ranks: list[tuple[Any, Connection]] = []
        lifelines: list[Connection] = []
        try:
            for rank in range(size):
                report, report_end = context.Pipe(duplex=False)
                lifeline_end, lifeline = context.Pipe(duplex=False)
                process = context.Process(
                    target=_run_rank,
                    args=(body, rank, size, init_method, arguments, report_end, lifeline_end),
                    name=f"regatta rank {rank}",
                )
                process.start()
                report_end.close()
                lifeline_end.close()
                ranks.append((process, report))
                lifelines.append(lifeline)
            return _Watch(ranks, on_tick, leaving).until_the_end()
        finally:
            for process, _ in ranks:
                if process.is_alive():
                    process.kill()
                process.join()


class _Watch:
    def __init__(
        self, ranks: list[tuple[Any, Connection]], on_tick: Callable[[], None], leaving: Asked
    ) -> None:
        self._processes = [process for process, _ in ranks]
        self._pipes = {pipe: rank for rank, (_, pipe) in enumerate(ranks)}
        self._reports: dict[int, tuple[str, Any]] = {}
        self._on_tick = on_tick
        self._leaving = leaving
        self._interrupts = 0

    def until_the_end(self) -> list[Any]:
        deadline: float | None = None
        while self._pipes and (deadline is None or time.monotonic() < deadline):
            try:
                self._listen()
                self._on_tick()
            except KeyboardInterrupt:
                self._pass_on_interrupt()
            if self._leaving():  # again and again: ranks are deaf until they are ready
                self._tell(signal.SIGTERM)
            if deadline is None and self._failures():
                deadline = time.monotonic() + _GRACE_SECONDS
        self._on_tick()
        if self._failures():
            raise self._cause()
        return [self._reports[rank][1] for rank in range(len(self._processes))]

    def _listen(self) -> None:
        for pipe in wait(list(self._pipes), timeout=_TICK_SECONDS):
            assert isinstance(pipe, Connection)
            rank = self._pipes.pop(pipe)
            try:
                self._reports[rank] = pipe.recv()
            except EOFError:  # it died without a word
                self._processes[rank].join(1.0)
                self._reports[rank] = ("died", self._processes[rank].exitcode)

    def _pass_on_interrupt(self) -> None:
        self._interrupts += 1
        if self._interrupts > 1:
            raise KeyboardInterrupt
        self._tell(signal.SIGINT)

    def _tell(self, number: signal.Signals) -> None:
        for process in self._processes:
            if process.is_alive():
                os.kill(process.pid, number)

    def _failures(self) -> list[int]:
        return [rank for rank, (kind, _) in sorted(self._reports.items()) if kind != "result"]

    def _cause(self) -> Exception:
        """The rank that failed by itself, not those that merely missed it."""
        order = ["told", "died", "error", "missed"]
        rank = min(self._failures(), key=lambda r: order.index(self._reports[r][0]))
        kind, what = self._reports[rank]
        if kind == "told":
            return what  # type: ignore[no-any-return]
        if kind == "died":
            return RankFailed(f"rank {rank} {_how_it_ended(what)}")
        return RankFailed(f"rank {rank} failed: {what[0]}", what[1])


def _how_it_ended(exitcode: int | None) -> str:
    if exitcode is not None and exitcode < 0:
        return f"was killed by {signal.Signals(-exitcode).name}"
    return f"ended without a result (exit code {exitcode})"


def _kind_of(error: BaseException) -> str:
    if isinstance(error, _TOLD):
        return "told"
    return "missed" if isinstance(error, WorldFailed) else "error"


def _run_rank(
    body: Body,
    rank: int,
    size: int,
    init_method: str,
    arguments: tuple[Any, ...],
    pipe: Connection,
    lifeline: Connection,
) -> None:
    _die_with_parent(lifeline)
    try:
        result = body(rank, size, init_method, *arguments)
        pipe.send(("result", result))
        pipe.close()
    except BaseException as error:
        kind = _kind_of(error)
        summary = f"{type(error).__name__}: {error}"
        account = error if kind == "told" else (summary, traceback.format_exc())
        pipe.send((kind, account))
        pipe.close()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(1)  # gloo's threads may wait for ever on ranks that are gone


def _die_with_parent(lifeline: Connection) -> None:
    """Nobody is left behind if the parent is killed: its end of the line closes."""

    def watch() -> None:
        try:
            lifeline.recv()
        except EOFError:
            os.kill(os.getpid(), signal.SIGKILL)

    threading.Thread(target=watch, daemon=True).start()
