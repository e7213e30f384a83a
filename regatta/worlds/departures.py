"""Virtual ranks that die while the others go on: now, or where a record says that they did."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from regatta.comm import EMPTY, GONE, WORLD, Loss, goodbye_of

if TYPE_CHECKING:
    from regatta.worlds.operations import Group
    from regatta.worlds.virtual import VirtualWorld
    from regatta.worlds.virtual_rank import VirtualComm


def depart(world: VirtualWorld, losses: Sequence[Loss]) -> None:
    """These ranks are dead from now on: their messages on the way arrive, and then a goodbye."""
    everybody = world._groups[WORLD]
    for loss in losses:
        dead = world.comms[loss.rank]
        dead.end()
        world.lost.add(loss.rank)
        dead.chance.flush()
        dead.chance.bury(loss.rank, everybody.joined(loss.rank) - dead.sums_before)
    for loss in losses:
        world.losses.append(loss)
        _say_goodbye(world, world.comms[loss.rank])
    for group in world._groups.values():
        _leave(world, group, {rank: group.joined(rank) for rank, _, _ in losses})


def _say_goodbye(world: VirtualWorld, dead: VirtualComm) -> None:
    for other in world.comms:
        if other.rank not in world.lost:
            dead.send(other.rank, EMPTY, GONE)
            dead.traffic.messages -= 1  # it is the world that says so


def begin_segment(comm: VirtualComm, segment: int) -> None:
    """Roles start again: the dead say goodbye once more, and who is to die does so in its place."""
    world = comm._world
    comm.chance.begin(segment)
    comm.sums_before = world._groups[WORLD].joined(comm.rank)
    comm.messages_before = comm.traffic.messages
    if comm.chance.replaying:
        sums = comm.chance.take("died")
        if sums is not None:
            _depart_after(comm, sums)
    elif world.lost:
        comm.renew_goodbyes([goodbye_of(rank) for rank in sorted(world.lost)])


def _depart_after(comm: VirtualComm, sums: int) -> None:
    """It lives on, but after so many sums nobody waits for it; what it still says is not heard."""
    world = comm._world
    world.lost.add(comm.rank)
    _leave(world, world._groups[WORLD], {comm.rank: comm.sums_before + sums})


def _leave(world: VirtualWorld, group: Group, numbers: Mapping[int, int]) -> None:
    for meeting in group.lose(numbers):
        world.hold(group, meeting)
