"""What the hosts of a virtual world take from the wall."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from regatta.worlds.adding import by_host
from regatta.worlds.virtual import VirtualWorld


def meters(world: VirtualWorld) -> dict[int, Callable[[], float]]:
    """Joules so far, by the rank that tells for its host; of unknown power, none."""
    return {
        ranks[0]: partial(_joules, world, ranks)
        for ranks in by_host(range(world.size), world.hosts)
        if _host_watts(world, ranks) or any(world.site.devices[rank].watts for rank in ranks)
    }


def _host_watts(world: VirtualWorld, ranks: Sequence[int]) -> float:
    return world.cluster.watts_of(world.site.hosts[ranks[0]])


def _joules(world: VirtualWorld, ranks: Sequence[int]) -> float:
    """The host all the time, its devices by whether they compute; those that no rank has, not."""
    computing: dict[int, float] = {}
    for rank in ranks:
        owner = world.site.owners[rank]
        computing[owner] = computing.get(owner, 0.0) + world.comms[rank].traffic.computing
    taken = _host_watts(world, ranks) * world.now
    for owner, seconds in computing.items():
        device, busy = world.site.devices[owner], min(seconds, world.now)
        taken += device.watts * busy + device.idle_watts * (world.now - busy)
    return taken
