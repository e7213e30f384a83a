"""How this rank reaches the others: through memory on its own host, over sockets elsewhere."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from datetime import timedelta
from typing import Any, Final

import torch.distributed as dist

from regatta.comm import Traffic
from regatta.worlds.adding import by_host
from regatta.worlds.arena import Arena
from regatta.worlds.collectives import Alone, ByDevice, Collectives, OverHosts
from regatta.worlds.mailbox import FIRST_OWN_TAG, Mailbox
from regatta.worlds.neighbours import meet_neighbours
from regatta.worlds.roll_call import Line
from regatta.worlds.shared_sum import NUM_TAGS, SharedSum
from regatta.worlds.sockets_sum import NcclSum, SocketsSum
from regatta.worlds.survivors_sum import SurvivorsSum

AUTO: Final = "auto"
# A dead rank is noticed by its closed connection; a slow one is given all the time it needs.
PATIENCE: Final = timedelta(days=30)


class Wires:
    """All ranks of a world make theirs together; `hosts` has the host of every rank."""

    def __init__(
        self,
        hosts: Sequence[int],
        device: str,
        transport: str,
        traffic: Traffic,
        on_halt: Callable[[int], None],
        line: Line | None = None,
        mortal: Collection[int] = (),
        lose: Callable[[int, int], None] = lambda rank, sums: None,
    ) -> None:
        """With a `line` to the launcher the world survives the death of the `mortal`.

        That needs ranks that share memory, and sum in it: with others it ends as any other does.
        """
        rank, size = dist.get_rank(), dist.get_world_size()
        self._rank, self._hosts, self._device, self._traffic = rank, hosts, device, traffic
        beside = [other for other in range(size) if hosts[other] == hosts[rank]]
        shares = transport == AUTO and len(set(hosts)) < size
        self._near = meet_neighbours(beside) if shares else None
        self._next_tag = FIRST_OWN_TAG
        some_are_far = self._near is None or len(set(hosts)) > 1
        on_one_host = device == "cpu" and not some_are_far
        self.survives = line is not None and on_one_host and bool(mortal)
        self._line, self._lose = line, lose
        group = _gloo(range(size), some_are_far)
        self.mailbox = Mailbox(
            rank, size, self._near, group, on_halt, mortal if self.survives else ()
        )

    @property
    def arena(self) -> Arena | None:
        """Where vectors are made that neighbours can see."""
        return None if self._near is None else self._near.arena

    def join_all(self) -> Collectives:
        """As `join`, for the group of all ranks."""
        everybody = range(dist.get_world_size())
        if not self.survives:
            return self.join(everybody)
        assert self._near is not None
        assert self._line is not None
        self._next_tag -= NUM_TAGS
        return SurvivorsSum(
            self.mailbox, self._near, everybody, self._rank, self._next_tag, self._traffic,
            self._line, self._lose,
        )  # fmt: skip

    def join(self, ranks: Sequence[int]) -> Collectives:
        """The collective operations of a group; all ranks of the world call this for all groups."""
        self._next_tag -= NUM_TAGS  # groups keep apart what they send
        cpu = self._on_cpu(ranks)
        if self._device != "cuda":
            return cpu
        return ByDevice(cpu, NcclSum(dist.new_group(list(ranks), timeout=PATIENCE)))

    def _on_cpu(self, ranks: Sequence[int]) -> Collectives:
        hosts = by_host(ranks, self._hosts)
        if self._near is None or len(hosts) == len(ranks):
            group = _gloo(ranks, len(ranks) > 1)
            return SocketsSum(group, ranks, self._hosts) if self._is_in(ranks) else Alone()
        leaders = [beside[0] for beside in hosts]
        group = _gloo(leaders, len(leaders) > 1)
        inside = next((self._through_memory(own) for own in hosts if self._rank in own), Alone())
        if len(leaders) == 1 or self._rank not in ranks:
            return inside
        between = SocketsSum(group, leaders, self._hosts) if self._rank in leaders else Alone()
        return OverHosts(self._rank, hosts, inside, between)

    def _is_in(self, ranks: Sequence[int]) -> bool:
        return len(ranks) > 1 and self._rank in ranks

    def _through_memory(self, ranks: Sequence[int]) -> Collectives:
        assert self._near is not None
        if len(ranks) == 1:
            return Alone()
        return SharedSum(self.mailbox, self._near, ranks, self._rank, self._next_tag, self._traffic)


def _gloo(ranks: Sequence[int], wanted: bool) -> Any:
    """A process group of its own; all ranks of the world ask for it, or none."""
    return dist.new_group(list(ranks), timeout=PATIENCE, backend="gloo") if wanted else None
