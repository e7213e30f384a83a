"""What follows a death: decided once for both worlds, and written down."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from regatta.config import Run
from regatta.events import Checkpointed, Died, Event, Resumed, Started
from regatta.strategies.fate import GO_ON, RESTART, STOP


class Aftermath:
    """Of the deaths in one start of a run, attempt by attempt."""

    def __init__(self, run: Run, log: Callable[[Event], None]) -> None:
        self._run, self._log = run, log
        self._restarts = 0
        self._accounts: set[tuple[int, str]] = set()
        self._now = self._saved = 0.0  # on the clock of the run, as far as events have told

    def hear(self, events: Iterable[Event]) -> None:
        """What ranks tell, so that it is known when they were last alive."""
        for event in events:
            if isinstance(event, Started | Resumed):
                self._now = self._saved = event.time
            self._now = max(self._now, event.time)
            if isinstance(event, Checkpointed):
                self._saved = event.time

    def may_restart(self, rank: int) -> bool:
        return self._follows(rank) in (RESTART, GO_ON) and self._restarts < self._limit

    def begins_again(
        self, rank: int, how: str, account: str = "", time: float | None = None
    ) -> bool:
        """Whether the world that has ended with this death is to be started once more.

        Not for ever, and not if the rank has failed in the same way, at the same place before.
        """
        now = self._now if time is None else time
        again = self.may_restart(rank) and (not account or (rank, account) not in self._accounts)
        self._accounts.add((rank, account))
        self._restarts += again
        self._tell(rank, how, now, RESTART if again else STOP, now - self._saved if again else 0.0)
        return again

    @property
    def _limit(self) -> int:
        return self._run.death.restarts

    def _follows(self, rank: int) -> str:
        return self._run.death.follows(self._run.strategy.fate_of(rank, self._run.workers))

    def _tell(self, rank: int, how: str, time: float, then: str, lost: float) -> None:
        role = "worker" if rank < self._run.workers else "server"
        self._log(Died(rank=rank, time=time, role=role, how=how, then=then, lost=max(lost, 0.0)))
