"""What follows a death: decided once for both worlds, and written down."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

from regatta.comm import Loss
from regatta.config import Run
from regatta.events import Checkpointed, Died, Event, Progress, Resumed, Started
from regatta.strategies.fate import GO_ON, RESTART, STOP


class Aftermath:
    """Of the deaths in one start of a run, attempt by attempt."""

    def __init__(
        self, run: Run, log: Callable[[Event], None], hosts: Sequence[int] | None = None
    ) -> None:
        """The `hosts` are those of the workers; by default all are on one."""
        self._run, self._log = run, log
        groups = run.strategy.groups(run.workers, hosts or [0] * run.workers)
        self._teams = list(groups.values())
        self._alive = set(range(run.num_ranks))
        self._turns: dict[int, int] = {}  # that workers have last told of
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
                self._turns[event.rank] = event.turns
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
        if self._run.follows_death_of(rank) != GO_ON:
            return []
        together = [team for team in self._teams if rank in team]
        dead = [member for member in together[0] if member in self._alive] if together else [rank]
        left = self._alive - set(dead)
        if not any(worker < self._run.workers for worker in left):
            return []
        self._alive = left
        heirs = tuple(sorted(worker for worker in left if worker < self._run.workers))
        for each in dead:
            told = how if each == rank else f"lost rank {rank} of its team"
            self._tell(each, told, self._now if time is None else time, GO_ON, 0.0)
        place = self._turns if place is None else place
        return [Loss(each, place.get(each, 0), heirs) for each in dead]

    def may_restart(self, rank: int) -> bool:
        return self._run.follows_death_of(rank) in (RESTART, GO_ON) and self._restarts < self._limit

    def begins_again(
        self,
        rank: int,
        how: str,
        account: str = "",
        time: float | None = None,
        saved: float | None = None,
    ) -> bool:
        """Whether the world that has ended with this death is to be started once more.

        Not for ever, and not if the rank has failed in the same way, at the same place before. When
        it died and since when work is lost, `time` and `saved`, events tell if nobody knows better.
        """
        now = self._now if time is None else time
        lost = now - (self._saved if saved is None else saved)
        again = self.may_restart(rank) and (not account or (rank, account) not in self._accounts)
        self._accounts.add((rank, account))
        self._restarts += again
        self._alive = set(range(self._run.num_ranks))
        self._tell(rank, how, now, RESTART if again else STOP, lost if again else 0.0)
        return again

    @property
    def _limit(self) -> int:
        return self._run.death.restarts

    def _tell(self, rank: int, how: str, time: float, then: str, lost: float) -> None:
        role = "worker" if rank < self._run.workers else "server"
        self._log(Died(rank=rank, time=time, role=role, how=how, then=then, lost=max(lost, 0.0)))
