"""A run under the virtual clock: all its ranks in this process, again and again if they crash."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial

import torch

from regatta.aftermath import Aftermath
from regatta.choices import Chance
from regatta.cluster.faults import Fault, from_then_on, of_members
from regatta.cluster.site import Site
from regatta.comm import Loss, Seconds, WorldFailed
from regatta.config import Run
from regatta.engine import Rank, Surroundings
from regatta.events import RankEnded
from regatta.folders import Crew
from regatta.kept import Kept
from regatta.resuming import places_of
from regatta.strategies.fate import SHRINK
from regatta.worlds.memory import keep_freed_memory
from regatta.worlds.power import meters
from regatta.worlds.virtual import VirtualWorld

Chances = Callable[[int], Chance]  # by rank
Again = Callable[[Crew, bool], None]  # who plays again, from when, and whether some return


@dataclass(frozen=True)
class _Attempt:
    """A world from its beginning, or from a checkpoint, to its end or to a crash."""

    run: Run
    site: Site  # of all ranks that there were at first
    crew: Crew
    around: Surroundings
    chances: Chances
    faults: Sequence[Fault] = ()
    aftermath: Aftermath | None = None

    def play(self) -> list[RankEnded]:
        """How ranks ended; nobody has, if all are to begin again so that the dead are back."""
        run, hosts = self.run, self.crew.hosts
        world = VirtualWorld(
            run.num_ranks,
            run.cluster,
            run.strategy.groups(run.workers, hosts[: run.workers]),
            run.workers,
            self.chances,
            run.strategy.shares(run.workers),
            hosts,
            from_then_on(of_members(self.faults, self.crew.members), self.around.began or 0.0),
            self.site.among(self.crew.members),
        )
        ranks = self._ranks(world)
        world.on_crash = partial(self._crash, world, ranks)
        for rank in ranks:
            rank.begin()
        ended = world.run(lambda comm: ranks[comm.rank].play())
        return [each for each in ended if each is not None]

    def _ranks(self, world: VirtualWorld) -> list[Rank]:
        run, joules = self.run, meters(world)
        rejoining = self.aftermath is not None and self.aftermath.may_rejoin()
        around = replace(self.around, rejoining=rejoining)
        return [
            Rank(run, comm, comm.chance, replace(around, joules=joules[comm.rank]))
            if comm.rank in joules
            else Rank(run, comm, comm.chance, around)
            for comm in world.comms
        ]

    def _crash(self, world: VirtualWorld, ranks: Sequence[Rank], rank: int) -> Sequence[Loss]:
        assert self.aftermath is not None
        now = (self.around.began or 0.0) + world.now
        place = {each.comm.rank: each.stream.place for each in ranks}
        losses = self.aftermath.goes_on(rank, "crashed", now, place)
        if not losses:
            if self.aftermath.may_begin_again(rank):
                raise _Crashed(rank, now)
            self.aftermath.begins_again(rank, "crashed", time=now)
        return losses

    def after(self, crash: _Crashed, then: str) -> _Attempt:
        """The next, from the last checkpoint; without the dead, if the world is to shrink."""
        kept, names = self.around.kept, self.crew.members
        assert kept is not None
        dead = names[crash.rank] if then == SHRINK else None
        members = [name for name in names if name != dead]
        began = crash.time + self.run.cluster.restart_seconds
        return self.among(members, kept, began)

    def with_all_back(self) -> _Attempt:
        """The next, from the checkpoint after which all have ended."""
        kept = self.around.kept
        assert kept is not None
        return self.among(self.crew.members, kept, kept.time + self.run.cluster.restart_seconds)

    def among(self, members: Sequence[int], kept: Kept, began: Seconds | None) -> _Attempt:
        """The run goes on among these from what was kept, or begins anew if that is nothing."""
        here = dict(zip(self.crew.members, self.crew.hosts, strict=True))
        crew = Crew(kept.segment or 0, tuple(members), tuple(here[name] for name in members))
        run = replace(self.run, workers=len(members) - self.run.strategy.num_servers)
        if self.aftermath is not None:
            self.aftermath.take_up(run)
        around = replace(self.around, began=began, members=members, bodies={})
        if kept.segment is not None:
            saved = places_of(members, kept.members, kept.size)
            around = replace(around, resume_from=kept, ranks=saved.ranks, returned=saved.returned)
        return replace(self, run=run, crew=crew, around=around)


class _Crashed(WorldFailed):
    """The world ends here, to begin again."""

    def __init__(self, rank: int, time: Seconds) -> None:
        super().__init__(f"rank {rank} crashed, as cluster.faults says")
        self.rank, self.time = rank, time


def play_virtual(
    run: Run,
    around: Surroundings,
    chances: Chances,
    again: Again = lambda crew, returned: None,
) -> list[RankEnded]:
    """On the hosts of the cluster; `again` is called before ranks that have crashed play again."""
    keep_freed_memory()
    torch.set_num_threads(run.threads)
    site = run.cluster.site(run.workers, run.strategy.shares(run.workers))
    hosts = tuple(site.hosts)
    crew = Crew(0, tuple(range(run.num_ranks)), hosts)
    if not run.cluster.faults:
        return _Attempt(run, site, crew, around, chances).play()
    tell, kept = around.log, Kept()
    aftermath = Aftermath(run, tell, hosts[: run.workers])
    faults = run.cluster.faults_of(run.num_ranks, max(hosts) + 1)
    around = replace(around, kept=kept)
    attempt = _Attempt(run, site, crew, around, chances, faults, aftermath)
    while True:
        try:
            ended = attempt.play()
        except _Crashed as crash:
            since = max(kept.time, attempt.around.began or 0.0)
            then = aftermath.begins_again(crash.rank, "crashed", time=crash.time, saved=since)
            attempt = attempt.after(crash, then)
        else:
            if ended:
                return ended
            aftermath.rejoins()
            attempt = attempt.with_all_back()
        again(attempt.crew, bool(attempt.around.returned))


def play_crews(
    run: Run, around: Surroundings, chances: Chances, crews: Sequence[Crew]
) -> list[RankEnded]:
    """A run whose ranks have become fewer: each crew goes on where the one before it ended."""
    keep_freed_memory()
    torch.set_num_threads(run.threads)
    ended: list[RankEnded] = []
    servers = run.strategy.num_servers
    at_first = max(max(crew.members) for crew in crews) + 1 - servers  # or more, who left nothing
    site = run.cluster.site(at_first, run.strategy.shares(at_first))
    workers = len(crews[0].members) - servers
    attempt = _Attempt(replace(run, workers=workers), site, crews[0], around, chances)
    for number, crew in enumerate(crews):
        if number:
            assert attempt.around.kept is not None
            last = attempt.around.kept
            attempt = attempt.among(crew.members, last, None)
        is_last = number == len(crews) - 1
        until = None if is_last else crews[number + 1].segment
        attempt = replace(
            attempt,
            around=replace(attempt.around, until=until, kept=None if is_last else Kept()),
        )
        ended = attempt.play()
    return ended
