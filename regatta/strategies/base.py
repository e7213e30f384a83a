"""What every strategy declares, and the few lines that several of them share."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from regatta.comm import Comm, Vector
from regatta.learn.layout import Layout
from regatta.learn.replica import Replica
from regatta.strategies.fate import Fate, Fates

Answer = Literal["worker 0", "server", "meeting"]


@dataclass(frozen=True)
class Exchange:
    """What a strategy sends in all, over all ranks."""

    messages: int
    nbytes: int
    is_all: bool = True  # False: what comes on top of the bytes depends on more than the vector


@dataclass(frozen=True)
class Strategy:
    """Ranks 0 .. workers-1 are workers; servers, if any, are the ranks after them."""

    name: ClassVar[str]
    source: ClassVar[str] = ""
    modes: ClassVar[Sequence[str]] = ("",)  # options that the exam and the twins try
    needs_layers: ClassVar[bool] = False  # the model must be one that can be split by layers
    steps_alone: ClassVar[bool] = False  # a worker's version counts its own gradients alone

    @property
    def answer(self) -> Answer:
        """Who holds the model that is handed over, or that there is one when all ranks meet."""
        return "worker 0"

    @property
    def deterministic(self) -> bool:
        """Whether nothing is left to chance but an early stop."""
        return True

    @property
    def rests_every(self) -> int:
        """Turns after which a meeting changes nothing, counted from the last; 0: it always does."""
        return 0

    @property
    def num_servers(self) -> int:
        return 0

    @property
    def own_rates(self) -> bool:
        """Whether it schedules and scales learning rates by itself."""
        return False

    @property
    def unlike_plain(self) -> str:
        """Why one worker alone does not do what plain stochastic gradient descent does, if so."""
        return ""

    @property
    def fates(self) -> Fates:
        """By role, what follows when a rank of it dies: `worker`, `server`, and `holder` where

        the worker that holds the answer fares otherwise than the others.
        """
        raise ValueError(
            f"{self.name} does not say what follows the death of a rank: let it declare `fates`, "
            "as docs/add-a-strategy.md tells"
        )

    def groups(self, workers: int, hosts: Sequence[int]) -> Mapping[str, Sequence[int]]:
        """Sub-groups for collective operations, by name; `hosts` has every worker's host."""
        return {}

    def shares(self, workers: int) -> Sequence[int | None]:
        """For every server the worker whose device it shares, or None for one of its own."""
        return [None] * self.num_servers

    def exchange(self, workers: int, turns: int, vector: Layout) -> Exchange:
        """The stated cost of one segment: `turns` minibatches a worker."""
        raise NotImplementedError

    def check(self, workers: int) -> None:
        """Raise ValueError for a number of workers that makes no sense here."""

    def check_run(self, minibatch: int, bucket_bytes: int) -> None:
        """Raise ValueError for settings of a run that make no sense here."""

    def holder(self, workers: int) -> int:
        return workers if self.answer == "server" else 0

    def fate_of(self, rank: int, workers: int) -> Fate:
        role = "worker" if rank < workers else "server"
        if rank == self.holder(workers) and "holder" in self.fates:
            role = "holder"
        return self.fates[role]

    def role(self, rank: int, workers: int) -> Callable[[Comm, Replica], Coroutine[Any, Any, None]]:
        return self.worker if rank < workers else self.server

    async def worker(self, comm: Comm, replica: Replica) -> None:
        raise NotImplementedError

    async def server(self, comm: Comm, replica: Replica) -> None:
        raise NotImplementedError


def take_back(replica: Replica) -> None:
    """Go on with the own model that `hand_over` has put aside."""
    own = replica.slots.pop("own", None)
    if own is not None:
        replica.load(own)


def hand_over(replica: Replica, answer: Vector) -> None:
    """Hold the answer while ranks meet, and keep the own model for afterwards."""
    replica.slots["own"] = replica.weights
    replica.load(answer)
