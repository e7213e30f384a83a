"""What is to follow the death of a rank, as a run's options say."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from regatta.strategies.fate import GO_ON, RESTART, SHRINK, STOP, Fate

if TYPE_CHECKING:
    from regatta.strategies.base import Strategy

AUTO: Final = "auto"


@dataclass(frozen=True)
class Death:
    """Of a rank: killed, crashed, or given up because it stood still."""

    then: str = AUTO  # as the strategy states; or stop, restart, shrink
    restarts: int = 3  # that one start of a run may see, shrinking included
    silence: float = 0.0  # seconds that a frozen rank is waited for; 0: for ever
    rejoin: bool = False  # whom the others went on without is back after the next checkpoint

    def __post_init__(self) -> None:
        if self.then not in (AUTO, STOP, RESTART, SHRINK):
            raise ValueError(f"death.then must be auto, stop, restart or shrink, not {self.then}")
        if self.restarts < 0 or not 0 <= self.silence < math.inf:
            raise ValueError("death.restarts and death.silence must be 0 or more")

    def follows(self, fate: Fate) -> str:
        """Who cannot be done without is brought back, where the others were to go on smaller."""
        if self.then == AUTO:
            return fate.usual
        return self.then if self.then in fate.choices else RESTART

    def check(self, strategy: Strategy) -> None:
        if self.rejoin and self.follows(strategy.fates["worker"]) != GO_ON:
            raise ValueError(
                f"{strategy.name} does not go on here when a worker dies, and nobody rejoins it: "
                "leave --rejoin out"
            )
        if self.then == SHRINK and SHRINK not in strategy.fates["worker"].choices:
            raise ValueError(
                f"{strategy.name} cannot go on with fewer workers: use --on-death restart or stop"
            )
