"""A run under the virtual clock: all its ranks in this process, again and again if they crash."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import torch

from regatta.aftermath import Aftermath
from regatta.choices import Chance
from regatta.comm import Loss, Seconds, WorldFailed
from regatta.config import Run
from regatta.engine import Rank, Surroundings
from regatta.events import Event, RankEnded
from regatta.kept import Kept
from regatta.worlds.memory import keep_freed_memory
from regatta.worlds.virtual import VirtualWorld

Chances = Callable[[int], Chance]  # by rank


class _Crashed(WorldFailed):
    """The world ends here, to begin again."""

    def __init__(self, rank: int, time: Seconds) -> None:
        super().__init__(f"rank {rank} crashed, as cluster.faults says")
        self.rank, self.time = rank, time


def play_virtual(
    run: Run,
    around: Surroundings,
    chances: Chances,
    hosts: Sequence[int] = (),
    forget: Callable[[int], None] = lambda segment: None,
) -> list[RankEnded]:
    """The `hosts` of all ranks are the cluster's, unless a replay brings those of its run.

    `forget` is called with the segment from which on a crashed world is played again.
    """
    keep_freed_memory()
    torch.set_num_threads(run.threads)
    if not run.cluster.faults:
        return _attempt(run, around, chances, hosts)
    tell = around.log
    aftermath = Aftermath(run, tell, hosts[: run.workers] or run.cluster.hosts(run.workers))

    def log(event: Event) -> None:
        aftermath.hear([event])
        tell(event)

    kept = Kept()
    around = replace(around, log=log, kept=kept)
    while True:
        try:
            return _attempt(run, around, chances, hosts, aftermath)
        except _Crashed as crash:
            since = max(kept.time, around.began or 0.0)
            aftermath.begins_again(crash.rank, "crashed", time=crash.time, saved=since)
            forget(kept.segment or 0)
            around = replace(
                around,
                began=crash.time + run.cluster.restart_seconds,
                resume_from=around.resume_from if kept.segment is None else kept,
                bodies={},
            )


def _attempt(
    run: Run,
    around: Surroundings,
    chances: Chances,
    hosts: Sequence[int],
    aftermath: Aftermath | None = None,
) -> list[RankEnded]:
    began = around.began or 0.0

    def crash(rank: int) -> Sequence[Loss]:
        assert aftermath is not None
        now, place = began + world.now, {r.comm.rank: r.stream.place for r in ranks}
        losses = aftermath.goes_on(rank, "crashed", now, place)
        if not losses:
            if aftermath.may_restart(rank):
                raise _Crashed(rank, now)
            aftermath.begins_again(rank, "crashed", time=now)
        return losses

    groups = run.strategy.groups(
        run.workers, hosts[: run.workers] or run.cluster.hosts(run.workers)
    )
    shares = run.strategy.shares(run.workers)
    world = VirtualWorld(
        run.num_ranks, run.cluster, groups, run.workers, chances, shares, hosts, began, crash
    )
    ranks = [Rank(run, comm, comm.chance, around) for comm in world.comms]
    for rank in ranks:
        rank.begin()
    return world.run(lambda comm: ranks[comm.rank].play())
