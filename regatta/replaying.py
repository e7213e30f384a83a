"""A recorded run again in the virtual world, with the same outcomes of chance."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from regatta import choices, start
from regatta.choices import Replayer
from regatta.engine import Surroundings
from regatta.events import Event, RankEnded, Writer
from regatta.events import read as read_events
from regatta.folders import Crew, environment, open_plan
from regatta.opening import identity_of, open_data
from regatta.playing import play_crews


@dataclass(frozen=True)
class Replay:
    recorded: dict[int, str]  # digests by rank
    replayed: dict[int, str]
    differences: list[str]  # of the environment

    @property
    def identical(self) -> bool:
        return self.recorded == self.replayed


def replay(folder: Path, watch: Callable[[list[Event]], None] = lambda events: None) -> Replay:
    """A recorded run again in the virtual world, with the same outcomes of chance."""
    plan, stored = open_plan(folder)
    if stored["timing_only"]:
        raise ValueError(
            f"{folder} was simulated for its timing only: it has no weights to compare"
        )
    hosts = stored["hosts"] or plan.run.cluster.hosts(
        plan.run.workers, plan.run.strategy.shares(plan.run.workers)
    )
    crews = plan.crews or (Crew(0, plan.members, tuple(hosts)),)
    ended = [e for e in read_events(plan.events) if isinstance(e, RankEnded)]
    recorded = choices.read(plan.choices)
    dead = {rank for n, rank, kind in recorded if kind == "died" and n >= crews[-1].segment}
    expected = plan.run.num_ranks - len(dead)
    if len(ended) < expected:
        raise ValueError(
            f"{folder} has not ended (ranks that have: {len(ended)} of {expected}): resume it first"
        )
    log = Writer(None, lambda event: watch([event]))
    begins = start.place(plan.run, folder)
    data = open_data(plan.run)
    around = Surroundings("virtual", data, log, lambda: log.events, start=begins, stops=plan.stops)
    undisturbed = replace(plan.run, cluster=replace(plan.run.cluster, faults=()))
    again = play_crews(undisturbed, around, lambda rank: Replayer(recorded, rank), crews)
    now = environment() | {"data": identity_of(data)}
    then = stored["environment"] | {"data": stored.get("data", "")}
    return Replay(
        recorded={e.rank: str(e.digest) for e in ended},
        replayed={e.rank: str(e.digest) for e in again if e.rank not in dead},
        differences=[
            f"{name}: recorded with {was}, replayed with {now.get(name)}"
            for name, was in then.items()
            if now.get(name) != was and name != "cores"
        ],
    )
