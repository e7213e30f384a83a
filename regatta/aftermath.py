"""What follows a death: decided once for both worlds, and written down."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace

from regatta.comm import Loss
from regatta.config import Run
from regatta.events import (
    Checkpointed,
    Died,
    Event,
    Progress,
    Resumed,
    Started,
    StoodStill,
)
from regatta.strategies.fate import GO_ON, RESTART, SHRINK, STOP


class Aftermath:
    """Of the deaths in one start of a run, attempt by attempt."""

    def __init__(
        self, run: Run, log: Callable[[Event], None], hosts: Sequence[int] | None = None
    ) -> None:
        """The `hosts` are those of the workers; by default all are on one."""
        self._log = log
        self._hosts = list(hosts or [0] * run.workers)
        self._alive: set[int] = set()
        self.take_up(run)
        self._places: dict[int, int] = {}  # in their own data, that workers have last told of
        self._restarts = 0
        self._accounts: set[tuple[int, str]] = set()
        self._now = self._saved = 0.0  # on the clock of the run, as far as events have told

    def hear(self, events: Iterable[Event]) -> None:
        """What ranks tell, so that it is known when they were last alive."""
        for event in events:
            if isinstance(event, Started | Resumed):
                self._now = self._saved = event.time
            self._now = max(self._now, event.time)
            if isinstance(event, Progress):
                self._places[event.rank] = event.turns if event.place is None else event.place
            if isinstance(event, Checkpointed):
                self._saved = event.time

    def goes_on(
        self,
        rank: int,
        how: str,
        time: float | None = None,
        place: Mapping[int, int] | None = None,
    ) -> list[Loss]:
        """Whom the others lose with this rank; nobody, if they cannot go on.

        A team that sums its gradients dies together: none of it has a whole sum alone. The `place`
        of each in its own data is the turn that it has last told of, if nobody knows better.
        """
        together = [team for team in self._teams if rank in team]
        dead = [member for member in together[0] if member in self._alive] if together else [rank]
        if any(self._run.follows_death_of(each) != GO_ON for each in dead):
            return []
        left = self._alive - set(dead)
        if not any(worker < self._run.workers for worker in left):
            return []
        self._alive = left
        heirs = tuple(sorted(worker for worker in left if worker < self._run.workers))
        for each in dead:
            told = how if each == rank else f"lost rank {rank} of its team"
            self._tell(each, told, self._now if time is None else time, GO_ON, 0.0)
        place = self._places if place is None else place
        return [Loss(each, place.get(each, 0), heirs) for each in dead]

    def may_begin_again(self, rank: int) -> bool:
        return self._then(rank) != STOP

    def begins_again(
        self,
        rank: int,
        how: str,
        account: str = "",
        time: float | None = None,
        saved: float | None = None,
    ) -> str:
        """Whether the world that has ended with this death is started once more: restart, shrink.

        Not for ever, and not if the rank has failed in the same way, at the same place before. When
        it died and since when work is lost, `time` and `saved`, events tell if nobody knows better.
        """
        now = self._now if time is None else time
        lost = now - (self._saved if saved is None else saved)
        comes_again = bool(account) and (rank, account) in self._accounts
        then = STOP if comes_again else self._then(rank)
        self._accounts.add((rank, account))
        self._restarts += 1
        self._tell(rank, how, now, then, 0.0 if then == STOP else lost)
        return then

    def may_rejoin(self) -> bool:
        """Whether all may begin again once more, so that who has died is back."""
        return self._run.death.rejoin and self._restarts < self._run.death.restarts

    def rejoins(self) -> None:
        """All begin again from a checkpoint that has just been saved: nothing is lost."""
        self._restarts += 1

    def stood_still(self, rank: int, seconds: float, then: str) -> None:
        self._log(StoodStill(rank=rank, time=self._now, seconds=seconds, then=then))

    def take_up(self, run: Run) -> None:
        """The run as it begins again, with fewer workers perhaps."""
        self._run = run
        self._teams = list(run.strategy.groups(run.workers, self._hosts[: run.workers]).values())
        self._alive = set(range(run.num_ranks))

    def _then(self, rank: int) -> str:
        if self._restarts >= self._run.death.restarts:
            return STOP
        then = self._run.follows_death_of(rank)
        if then == GO_ON or (then == SHRINK and not self._can_be_fewer()):
            return RESTART
        return then

    def _can_be_fewer(self) -> bool:
        try:
            replace(self._run, workers=self._run.workers - 1)
        except ValueError:  # there are strategies that need so many
            return False
        return True

    def _tell(self, rank: int, how: str, time: float, then: str, lost: float) -> None:
        role = "worker" if rank < self._run.workers else "server"
        self._log(Died(rank=rank, time=time, role=role, how=how, then=then, lost=max(lost, 0.0)))
