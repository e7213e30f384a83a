"""What every strategy declares, and the few lines that several of them share."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from regatta.comm import Comm, Vector
from regatta.learn.replica import Replica

Answer = Literal["worker 0", "server", "mean"]


@dataclass(frozen=True)
class Exchange:
    """What a strategy sends in all, over all ranks."""

    messages: int
    nbytes: int


@dataclass(frozen=True)
class Strategy:
    """Ranks 0 .. workers-1 are workers; servers, if any, are the ranks after them."""

    name: ClassVar[str]
    answer: ClassVar[Answer] = "worker 0"  # who holds the model that is handed over in the end
    deterministic: ClassVar[bool] = True  # nothing is left to chance but an early stop
    source: ClassVar[str] = ""
    num_servers: ClassVar[int] = 0

    def groups(self, workers: int) -> Mapping[str, Sequence[int]]:
        """Sub-groups for collective operations, by name."""
        return {}

    def exchange(self, workers: int, turns: int, nbytes: int) -> Exchange:
        """The stated cost: `turns` minibatches a worker with a vector of `nbytes`."""
        raise NotImplementedError

    def check(self, workers: int) -> None:
        """Raise ValueError for a number of workers that makes no sense here."""

    def holder(self, workers: int) -> int:
        return workers if self.answer == "server" else 0

    def role(self, rank: int, workers: int) -> Callable[[Comm, Replica], Coroutine[Any, Any, None]]:
        return self.worker if rank < workers else self.server

    async def worker(self, comm: Comm, replica: Replica) -> None:
        raise NotImplementedError

    async def server(self, comm: Comm, replica: Replica) -> None:
        raise NotImplementedError


def mean(total: Vector) -> Vector:
    """The mean of a sum: a vector's last element counts what it stands for."""
    return total / total[-1]
