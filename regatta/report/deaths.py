"""Who died in a run, and what followed."""

from __future__ import annotations

from regatta.events import Died
from regatta.race.outcome import Outcome
from regatta.report.cells import Table


def deaths(outcome: Outcome) -> Table:
    rows = [
        [
            standing.label, str(finish.seed), f"{event.role} {event.rank}", event.how, event.then,
            f"{event.time:.1f} s", f"{event.lost:.1f} s",
        ]
        for standing in outcome.standings
        for finish in standing.finishes
        for event in finish.events
        if isinstance(event, Died)
    ]  # fmt: skip
    return Table(
        "Ranks that died",
        "When, by the clock of the run, and what followed. Work since the last checkpoint is done "
        "again after a restart; the clock of a real run does not count what was lost, that of a "
        "simulated one does.",
        ["strategy", "seed", "rank", "how", "then", "at", "done again"],
        rows,
        words=1,
        is_ranked=False,
    )
