"""Workers that act as one: they sum their gradients, and their leader deals with the world."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from functools import partial

from regatta.comm import WORLD, Comm, Vector
from regatta.learn.layout import Layout
from regatta.learn.replica import Replica
from regatta.strategies.base import Exchange

HOST = "host"


class Team:
    """The group that a worker belongs to; a worker of no group is its own leader."""

    __slots__ = ("_comm", "followers", "leads", "members", "name")

    def __init__(self, comm: Comm) -> None:
        mine = (team for team in comm.groups.items() if team[0] != WORLD and comm.rank in team[1])
        self._comm = comm
        self.name, self.members = next(mine, ("", (comm.rank,)))
        self.leads = comm.rank == self.members[0]
        self.followers = self.members[1:]

    def gradients(self, replica: Replica, alone: AsyncIterator[Vector]) -> AsyncIterator[Vector]:
        """The team's summed gradients, until none of its workers has any; `alone`, if one is."""
        if self.followers:
            return replica.reduced_by(partial(self._comm.all_reduce, group=self.name))
        return alone

    async def follow_leader(self, replica: Replica) -> None:
        """Everybody goes on with the leader's weights."""
        weights = await self._comm.broadcast(replica.weights, self.members[0], self.name)
        if not self.leads:
            replica.load(weights)


def leaders(comm: Comm, workers: int) -> Sequence[int]:
    """Who speaks for the workers; in one order for all."""
    teams = [ranks for name, ranks in comm.groups.items() if name != WORLD]
    return [ranks[0] for ranks in teams] if teams else range(workers)


def check_group(strategy: str, group: str) -> None:
    if group != HOST and not (group.isdecimal() and int(group) > 0):
        raise ValueError(f"{strategy}: group must be host or a number of workers, not {group}")


def teams(group: str, workers: int, hosts: Sequence[int]) -> Mapping[str, Sequence[int]]:
    """The workers of every host, or so many after another."""
    numbers = hosts if group == HOST else [worker // int(group) for worker in range(workers)]
    made: dict[str, list[int]] = {}
    for worker in range(workers):
        made.setdefault(f"team {numbers[worker]}", []).append(worker)
    return made


def team_exchange(sizes: Sequence[int], turns: int, vector: Layout) -> Exchange:
    """What teams exchange among themselves: sums, one that finds nothing, and the weights."""
    messages = sum(size * 2 * (turns + 1) for size in sizes if size > 1)
    return Exchange(messages, messages * vector.nbytes)
