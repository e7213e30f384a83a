"""How a group of ranks adds up and shares vectors: the quickest way that its hosts allow."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol, TypeAlias

from torch import Tensor

Finish: TypeAlias = Callable[[], Tensor]  # waits for what was started, and returns its result


class Collectives(Protocol):
    """Operations that all ranks of a group start in the same order."""

    def sum(self, data: Tensor, into: Tensor | None = None) -> Finish:
        """`into` lends memory for the result, which may lie elsewhere all the same."""
        ...

    def broadcast(self, data: Tensor, root: int) -> Finish: ...


class Alone:
    """A group of one rank."""

    def sum(self, data: Tensor, into: Tensor | None = None) -> Finish:
        return lambda: data

    def broadcast(self, data: Tensor, root: int) -> Finish:
        return lambda: data


class OverHosts:
    """Through memory inside each host, then over the network between the hosts' first ranks."""

    def __init__(
        self, me: int, hosts: Sequence[Sequence[int]], inside: Collectives, between: Collectives
    ) -> None:
        """`between` is used by the first rank of each host only."""
        self._me = me
        self._leader_of = {rank: ranks[0] for ranks in hosts for rank in ranks}
        self._inside = inside
        self._between = between

    def sum(self, data: Tensor, into: Tensor | None = None) -> Finish:
        finish_inside = self._inside.sum(data)

        def finish() -> Tensor:
            of_this_host = finish_inside()
            if self._leads:
                total = self._between.sum(of_this_host)()
                return self._inside.broadcast(total, self._me)()
            return self._inside.broadcast(of_this_host, self._leader_of[self._me])()

        return finish

    def broadcast(self, data: Tensor, root: int) -> Finish:
        """From the root to its leader, to all leaders, to everybody."""
        leader, first = self._leader_of[self._me], self._leader_of[root]

        def finish() -> Tensor:
            whole = data
            if leader == first:
                whole = self._inside.broadcast(whole, root)()
            if self._leads:
                whole = self._between.broadcast(whole, first)()
            return whole if leader == first else self._inside.broadcast(whole, leader)()

        return finish

    @property
    def _leads(self) -> bool:
        return self._leader_of[self._me] == self._me


class ByDevice:
    """Tensors of a GPU take one way, those of the CPU another."""

    def __init__(self, cpu: Collectives, gpu: Collectives) -> None:
        self._cpu, self._gpu = cpu, gpu

    def sum(self, data: Tensor, into: Tensor | None = None) -> Finish:
        return self._for(data).sum(data, into)

    def broadcast(self, data: Tensor, root: int) -> Finish:
        return self._for(data).broadcast(data, root)

    def _for(self, data: Tensor) -> Collectives:
        return self._gpu if data.is_cuda else self._cpu
