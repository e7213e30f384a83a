"""What becomes of a run when a rank dies: stated by every strategy, for each of its roles."""

from __future__ import annotations

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
    note: str = ""

    @property
    def choices(self) -> tuple[str, ...]:
        return (self.usual, *self.also)


_NEEDED = Fate(STOP, (RESTART,))

ALL_NEEDED: Final = {"worker": _NEEDED, "server": _NEEDED}
WORKERS_ARE_FREE: Final = {
    "worker": Fate(GO_ON, (STOP, RESTART)),
    "server": Fate(RESTART, (STOP,)),
}
