"""Start a world of processes on this machine, and end it as one.

Ranks are forked from a server process that has imported everything once, so a second run starts in
a fraction of a second. The first rank that fails ends the world, unless it is one that the others
go on without: all are stopped, and what the parent raises names the rank that failed and carries
its traceback or its signal.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from multiprocessing.connection import Connection, wait
from multiprocessing.util import get_temp_dir
from pathlib import Path
from typing import Any, NamedTuple

from regatta.aside import CannotWrite
from regatta.checkpoint import BadCheckpoint
from regatta.comm import Loss, WorldFailed
from regatta.worlds import warm_up
from regatta.worlds.roll_call import DECIDED, HEARD, LOST, READY, Line, RollCall
from regatta.worlds.stillness import TOLD_AFTER, Stillness

_GRACE_SECONDS = 3.0  # for other ranks to tell what they saw, before they are killed
_TICK_SECONDS = 0.2
WAITED_FOR, WENT_ON, GIVEN_UP = "waited for", "went on", "given up"  # of who stands still

Body = Callable[..., Any]  # body(rank, size, init_method, *arguments) -> picklable result


class Overseer:
    """Whom a launcher tells and asks; this one lets the first death end the world."""

    survives = False  # whether others may go on; ranks then get a line to the launcher
    patience = 0.0  # seconds that a rank which stands still is waited for; 0: for ever
    interrupted = False  # by Ctrl-C, which was passed on to all ranks

    def tick(self) -> None:
        """Called all the time."""

    def has_to_leave(self) -> bool:
        """Whether all ranks are to save what they have and end."""
        return False

    def on_death(self, rank: int, how: str) -> Sequence[Loss]:
        """Whom the others go on without; nobody, if the world is to end."""
        return ()

    def on_loss(self, loss: Loss) -> None:
        """One of them has ended, and the others have not heard of it yet."""

    def on_stillness(self, rank: int, seconds: float, then: str) -> None:
        """A rank has stood still for so long: it is waited for, went on, or was given up."""


class WrongUsage(ValueError):
    """Found out by a rank, but the person's to mend: told in one line, without a traceback."""


_TOLD = (WrongUsage, CannotWrite, BadCheckpoint)  # as they are: their own line says it all


class RankFailed(WorldFailed):
    """Says which rank failed and how, and carries its own account."""

    def __init__(self, rank: int, how: str, account: str = "") -> None:
        super().__init__(f"rank {rank} {how}")
        self.rank, self.how, self.account = rank, how, account


def launch(
    size: int,
    body: Body,
    arguments: tuple[Any, ...],
    overseer: Overseer | None = None,
) -> list[Any]:
    """Run `body` in `size` processes; their results by rank, without those who died.

    Where the others may go on without a rank, each gets a line to the launcher as last argument.
    """
    overseer = overseer or Overseer()
    context = multiprocessing.get_context("forkserver")
    warm_up()
    with tempfile.TemporaryDirectory(dir=get_temp_dir()) as folder:
        init_method = f"file://{Path(folder) / 'rendezvous'}"
        ranks: list[_Started] = []
        try:
            for rank in range(size):
                report, report_end = context.Pipe(duplex=False)
                news_end, news = context.Pipe(duplex=False)
                process = context.Process(
                    target=_run_rank,
                    args=(body, rank, size, init_method, arguments, report_end, news_end,
                          overseer.survives),
                    name=f"regatta rank {rank}",
                )  # fmt: skip
                process.start()
                report_end.close()
                news_end.close()
                ranks.append(_Started(process, report, news))
            return _Watch(ranks, overseer).until_the_end()
        finally:
            for started in ranks:
                if started.process.is_alive():
                    started.process.kill()
                started.process.join()


class _Started(NamedTuple):
    """A rank's process, what it reports, and what it is told."""

    process: Any
    report: Connection
    news: Connection


class _Watch:
    def __init__(self, ranks: list[_Started], overseer: Overseer) -> None:
        self._ranks = ranks
        self._overseer = overseer
        self._pipes = {started.report: rank for rank, started in enumerate(ranks)}
        self._reports: dict[int, tuple[str, Any]] = {}
        self._stillness = Stillness({n: each.process.pid for n, each in enumerate(ranks)})
        self._told_still: set[int] = set()
        self._given_up: dict[int, float] = {}  # after so many seconds
        self._roll_call = RollCall(len(ranks))
        self._surviving = 0  # ranks that are ready to go on without others
        self._lost: set[int] = set()  # ranks that the others go on without
        self._interrupts = 0

    def until_the_end(self) -> list[Any]:
        deadline: float | None = None
        while self._pipes and (deadline is None or time.monotonic() < deadline):
            try:
                self._listen()
                self._look_for_still_ones()
                self._overseer.tick()
            except KeyboardInterrupt:
                self._pass_on_interrupt()
            if self._overseer.has_to_leave():
                self._tell(signal.SIGTERM)  # again and again: ranks are deaf until they are ready
            if deadline is None and self._failures():
                deadline = time.monotonic() + _GRACE_SECONDS
        self._overseer.tick()
        if self._failures():
            # Whoever was interrupted before it could listen has not failed.
            raise KeyboardInterrupt if self._interrupts else self._cause()
        return [result for _, (_, result) in sorted(self._reports.items())]

    def _listen(self) -> None:
        for pipe in wait(list(self._pipes), timeout=_TICK_SECONDS):
            assert isinstance(pipe, Connection)
            rank = self._pipes[pipe]
            with _uninterrupted():  # what was received is heard, and all are told
                self._hear(rank, pipe)

    def _hear(self, rank: int, pipe: Connection) -> None:
        try:
            kind, what = pipe.recv()
        except EOFError:  # it died without a word
            process = self._ranks[rank].process
            process.join(1.0)
            kind, what = "died", process.exitcode
        if kind == READY:
            self._surviving += what
        elif kind == HEARD:
            self._roll_call.hear(rank, *what)
        else:
            del self._pipes[pipe]
            self._part_with(rank, kind, what)
        for decided in self._roll_call.decided():
            self._tell_all(DECIDED, decided)

    def _part_with(self, rank: int, kind: str, what: Any) -> None:
        """A rank has said its last word."""
        still = self._stillness.forget(rank)
        if kind == "result":
            self._roll_call.leave(rank)
            if rank in self._told_still:
                self._overseer.on_stillness(rank, still, WENT_ON)
        if rank not in self._lost and not self._is_survived(rank, kind, what):
            self._reports[rank] = (kind, what)

    def _is_survived(self, rank: int, kind: str, what: Any) -> bool:
        ready = self._surviving == len(self._ranks)
        if not ready or self._failures() or kind not in ("died", "error"):
            return False
        losses = self._overseer.on_death(rank, self._how(rank, kind, what))
        for loss in losses:
            self._lost.add(loss.rank)
            self._roll_call.leave(loss.rank)
            process = self._ranks[loss.rank].process
            if loss.rank == rank:
                process.join(1.0)  # it may still have something to say
            process.kill()
            process.join()
            self._overseer.on_loss(loss)
            self._tell_all(LOST, loss)
        return bool(losses)

    def _tell_all(self, kind: str, what: Any) -> None:
        for rank in self._pipes.values():
            with suppress(BrokenPipeError):  # it has just died; that will be heard of
                self._ranks[rank].news.send((kind, what))

    def _pass_on_interrupt(self) -> None:
        self._interrupts += 1
        self._overseer.interrupted = True
        if self._interrupts > 1:
            raise KeyboardInterrupt
        self._tell(signal.SIGINT)

    def _tell(self, number: signal.Signals) -> None:
        for started in self._ranks:
            if started.process.is_alive():
                with suppress(ProcessLookupError):  # not any more
                    os.kill(started.process.pid, number)

    def _failures(self) -> list[int]:
        return [rank for rank, (kind, _) in sorted(self._reports.items()) if kind != "result"]

    def _cause(self) -> Exception:
        """The rank that failed by itself, not those that merely missed it."""
        order = ["told", "died", "error", "missed"]
        rank = min(self._failures(), key=lambda r: order.index(self._reports[r][0]))
        kind, what = self._reports[rank]
        if kind == "told":
            return what  # type: ignore[no-any-return]
        return RankFailed(rank, self._how(rank, kind, what), "" if kind == "died" else what[1])

    def _how(self, rank: int, kind: str, what: Any) -> str:
        if rank in self._given_up:
            return f"stood still for {self._given_up[rank]:.1f} s and was given up"
        return _how_it_ended(what) if kind == "died" else f"failed: {what[0]}"

    def _look_for_still_ones(self) -> None:
        patience = self._overseer.patience
        for rank, seconds, goes_on in self._stillness.look():
            if goes_on:
                if rank in self._told_still:
                    self._told_still.remove(rank)
                    self._overseer.on_stillness(rank, seconds, WENT_ON)
            elif 0 < patience <= seconds and rank not in self._given_up:
                self._given_up[rank] = seconds
                self._overseer.on_stillness(rank, seconds, GIVEN_UP)
                self._ranks[rank].process.kill()
            elif seconds >= TOLD_AFTER and rank not in self._told_still:
                self._told_still.add(rank)
                self._overseer.on_stillness(rank, seconds, WAITED_FOR)


@contextmanager
def _uninterrupted() -> Iterator[None]:
    """Ctrl-C waits for the end of this."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


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
    news: Connection,
    with_line: bool,
) -> None:
    with suppress(OSError):  # as `ps` and `top` show it
        Path("/proc/self/comm").write_text(f"regatta rank {rank}")
    line = Line(pipe, news)
    line.listen()
    try:
        result = body(rank, size, init_method, *arguments, *([line] if with_line else []))
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
