"""How long a simulation takes on this machine, and how much memory: said first, corrected later."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from regatta.events import Event, Started
from regatta.meters import Meters

if TYPE_CHECKING:  # who only looks on does without PyTorch
    from regatta.comm import Seconds
    from regatta.config import Run
    from regatta.engine import Rank

SHORT = 5.0  # seconds: of a simulation that takes less nothing need be said
_EVERY = 0.1  # seconds from look to look
_REHEARSAL = 0.2  # seconds after the first turn; and one turn more, however long it takes
_SETTLED = 1.0  # seconds, before which nobody can say what is left
_FORWARD = 1 / 3  # of a gradient's time: what evaluating a sample takes, more or less
_NEVER = 1e12  # epochs


@dataclass(frozen=True)
class Share:
    """How far a simulation has come. Told to who looks on; nobody writes it down."""

    done: float  # 1: all of it
    seconds: Seconds  # on the wall, since it began
    turns: int  # of all workers; timing only: of the first
    resident: int  # bytes of this process

    @property
    def left(self) -> Seconds | None:
        """As things go, once they go; a target may come sooner."""
        known = self.done > 0 and self.seconds >= _SETTLED
        return self.seconds * (1 / self.done - 1) if known else None


class Pulse:
    """Called before every turn; now and then it tells how far the simulation has come."""

    def __init__(self, callers: int, tell: Callable[[Share], None]) -> None:
        self._callers, self._tell = callers, tell
        self._meters = Meters("cpu")
        self._turns = 0
        self._began = self._due = time.perf_counter()

    def __call__(self, rank: Rank) -> None:
        if rank.replica.turns:  # it has ended one and begins another
            self._turns += 1
        now = time.perf_counter()
        if now >= self._due:
            self._due = now + _EVERY
            resident = self._meters.resident_bytes()
            self._tell(Share(self._done(rank), now - self._began, self._turns, resident))

    def _done(self, rank: Rank) -> float:
        """By turns or, where virtual time is what ends the run, by that."""
        planned = self._callers * rank.calendar.turns(rank.calendar.end)
        done = self._turns / max(planned, 1)
        if rank.stop.seconds:
            done = max(done, rank.training_time() / rank.stop.seconds)
        return min(done, 1.0)


@dataclass(frozen=True)
class Outlook:
    seconds: Seconds
    nbytes: int  # resident

    def __str__(self) -> str:
        return f"{about(self.seconds)} and {about_bytes(self.nbytes)}"


def outlook(run: Run, timing_only: bool = False) -> Outlook:
    """Of a simulation, from its first moments, which are played and thrown away.

    The very first turn is slower than others, and does not count.
    """
    from regatta.config import Checkpointing, Evaluation
    from regatta.runs import simulate
    from regatta.worlds.memory import give_back_freed_memory

    shares: list[Share] = []
    samples: list[float] = []

    def look(seen: Sequence[Event | Share]) -> None:
        for each in seen:
            if isinstance(each, Started):
                samples[:] = each.train_samples, each.eval_samples or 0
            if isinstance(each, Share) and each.turns:  # before, all workers fetch their batches
                shares.append(each)
                if each.turns > shares[0].turns and each.seconds > shares[0].seconds + _REHEARSAL:
                    raise _Enough

    rehearsed = replace(
        run,
        evaluation=Evaluation(every=_NEVER),
        checkpointing=Checkpointing(),
        death=replace(run.death, rejoin=False),  # there is no checkpoint to wait for
        stop=replace(run.stop, target=None),
    )
    give_back_freed_memory()  # what others have let go of would hide what is needed
    began = time.perf_counter()
    with suppress(_Enough):
        simulate(rehearsed, None, timing_only, look)
        return Outlook(time.perf_counter() - began, Meters("cpu").resident_bytes())
    first, last = shares[0], shares[-1]
    seconds = (last.seconds - first.seconds) / (last.done - first.done)
    if timing_only:
        return Outlook(seconds, last.resident)
    train, evaluated = samples
    seconds *= 1 + _FORWARD * evaluated / (run.evaluation.every * train)
    # Every worker's first turn leaves something behind, or the workers share it.
    growth = (last.resident - first.resident) / (last.turns - first.turns)
    left = max(0, run.workers - last.turns)
    return Outlook(seconds, round(last.resident + max(growth, 0.0) * left))


class _Enough(Exception):
    """A rehearsal has seen what it came for."""


def about(seconds: Seconds) -> str:
    """Rounded to what an estimate can know."""
    if seconds < 7.5:
        return "a few seconds"
    if seconds < 57.5:
        return f"about {5 * round(seconds / 5)} s"
    if seconds < 5400:
        return f"about {max(1, round(seconds / 60))} min"
    return f"about {seconds / 3600:.1f} h" if seconds < 36000 else f"about {seconds / 3600:,.0f} h"


def about_bytes(nbytes: int) -> str:
    if nbytes < 0.95e9:
        return f"{max(1, round(nbytes / 5e7)) * 50} MB"
    return f"{nbytes / 1e9:.1f} GB"
