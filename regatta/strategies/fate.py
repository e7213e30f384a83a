"""What becomes of a run when a rank dies: stated by every strategy, for each of its roles."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

GO_ON: Final = "go on"  # without it; its data are dealt out to the others
STOP: Final = "stop"
RESTART: Final = "restart"  # with all ranks, from the last checkpoint
SHRINK: Final = "shrink"  # without it, from the last checkpoint


@dataclass(frozen=True)
class Fate:
    """What follows the death of a rank of one role."""

    usual: str
    also: tuple[str, ...] = ()  # what may be asked for instead

    @property
    def choices(self) -> tuple[str, ...]:
        return (self.usual, *self.also)

    def __str__(self) -> str:
        return f"{self.usual} (or {', '.join(self.also)})" if self.also else self.usual


Fates = Mapping[str, Fate]  # by role: worker, server, or holder of the answer among the workers

_IS_NEEDED = Fate(STOP, (RESTART,))
_IS_BROUGHT_BACK = Fate(RESTART, (STOP,))
_IN_STEP = Fate(STOP, (RESTART, SHRINK))
_FREE = Fate(GO_ON, (STOP, RESTART, SHRINK))

ALL_NEEDED: Final[dict[str, Fate]] = {"worker": _IS_NEEDED}  # nobody else can do its part
IN_STEP: Final[dict[str, Fate]] = {"worker": _IN_STEP}  # fewer can do the same, but all or none
IN_STEP_BY_A_SERVER: Final[dict[str, Fate]] = IN_STEP | {"server": _IS_NEEDED}
FREE: Final[dict[str, Fate]] = {"worker": _FREE}  # nobody waits for it longer than for an answer
FREE_BY_A_SERVER: Final[dict[str, Fate]] = FREE | {"server": _IS_BROUGHT_BACK}
# Where no server has the whole model, the first worker alone can evaluate it.
FREE_BY_SERVERS: Final[dict[str, Fate]] = FREE_BY_A_SERVER | {"holder": _IS_BROUGHT_BACK}
