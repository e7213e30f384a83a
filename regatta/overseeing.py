"""What the launcher of a run's processes is told to do: watch, and decide what follows a death."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from regatta.aftermath import Aftermath
from regatta.choices import Beside
from regatta.comm import Loss
from regatta.events import Event, Tail, Writer
from regatta.folders import Plan
from regatta.worlds.launch import Overseer
from regatta.worlds.leaving import Asked, never


class RunOverseer(Overseer):
    survives = True

    def __init__(
        self, plan: Plan, watch: Callable[[list[Event]], None], leaving: Asked = never
    ) -> None:
        self.patience = plan.run.death.silence
        self.aftermath = Aftermath(plan.run, lambda event: _write_down(plan.events, event))
        self._choices = plan.choices
        self._tail, self._watch = Tail(plan.events), watch
        self._leaving = leaving

    def tick(self) -> None:
        events = self._tail()
        self.aftermath.hear(events)
        self._watch(events)

    def has_to_leave(self) -> bool:
        return self._leaving()

    def on_death(self, rank: int, how: str) -> Sequence[Loss]:
        self.tick()  # what it has told last
        return self.aftermath.goes_on(rank, how)

    def on_loss(self, loss: Loss) -> None:
        Beside.recover(self._choices, loss.rank)

    def on_stillness(self, rank: int, seconds: float, then: str) -> None:
        self.aftermath.stood_still(rank, seconds, then)


def _write_down(events: Path, event: Event) -> None:
    if events.exists():  # else nobody has come so far that there is a run to tell of
        log = Writer(events)
        log(event)
        log.close()
