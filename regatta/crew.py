"""A strategy for a person's own training loop.

    with regatta.join("averaging:period=10", model, optimizer) as crew:
        for batch in my_share(crew.rank, crew.workers):
            optimizer.zero_grad()
            loss(model, batch).backward()
            crew.step()                      # where optimizer.step() stood

`step` advances the role's coroutine by one gradient; leaving the block says goodbye to the others.
The optimiser stays the person's own, with its groups and schedulers. Run it under torchrun, or
alone as one worker.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import TracebackType
from typing import Any, ClassVar

import torch.distributed as dist
from torch import Tensor, nn
from torch._C._distributed_c10d import HashStore
from torch.optim import Optimizer

from regatta import config
from regatta.comm import Comm, Op, Traffic, Vector
from regatta.learn.body import Body
from regatta.learn.buckets import reduced_whole
from regatta.learn.layout import restore_momentum
from regatta.learn.part import Part
from regatta.learn.replica import Replica
from regatta.strategies.base import Strategy
from regatta.worlds import started
from regatta.worlds.neighbours import host_numbers
from regatta.worlds.processes import ProcessComm, run_blocking
from regatta.worlds.rendezvous import meet


class _Handover:
    """Where a role waits for the next gradient of the person's loop."""

    def __await__(self) -> Generator[_Handover, Tensor | None, Tensor | None]:
        return (yield self)


class _Given:
    """The person's own optimiser in the place of a configured one."""

    name: ClassVar[str] = "given"
    counts_steps: ClassVar[bool] = False
    is_plain = False
    memory = ()

    def __init__(self, optimizer: Optimizer) -> None:
        self._optimizer = optimizer

    @property
    def lr(self) -> float:
        return float(self._optimizer.param_groups[0]["lr"])

    def update(
        self, weights: Tensor, gradient: Tensor, memory: Sequence[Tensor], step: float, rate: float
    ) -> None:
        raise NotImplementedError("a given optimiser steps parameters, not vectors")


@contextmanager
def _at_rate(optimizer: Optimizer, rate: float) -> Iterator[None]:
    """Multiply the learning rate for a while."""
    usual = [group["lr"] for group in optimizer.param_groups]
    if rate != 1.0:
        for group in optimizer.param_groups:
            group["lr"] *= rate
    yield
    for group, lr in zip(optimizer.param_groups, usual, strict=True):
        group["lr"] = lr


class _NoStream:
    samples = 1
    planned = 0

    def next(self, number: int | None = None) -> None:
        return None

    def batch(self, worker: int, turn: int) -> None:
        return None

    def together(self, asks: bool) -> Mapping[int, Any]:
        return {}


class _JoinedReplica(Replica):
    """A replica whose gradients come from outside."""

    def __init__(self, model: nn.Module, optimizer: Optimizer, comm: Comm) -> None:
        given = _Given(optimizer)
        super().__init__(Body(model), lambda model, batch: batch, _NoStream(), comm, given)
        self._given = optimizer
        self.over = False
        self.bind()

    @property
    def unwritten(self) -> AsyncIterator[Vector]:
        return self

    def parting(self, written: bool) -> AsyncIterator[Vector]:
        return self

    async def gradient(
        self, number: int | None = None, written: bool = True, parting: bool = False
    ) -> Vector | None:
        if number is not None:
            raise RuntimeError("a joined loop brings its own batches: nobody can deal them")
        gradient = None if self.over else await _Handover()
        if gradient is None:
            self.over = True
            return None
        self.turns += 1
        return gradient

    def part(self, number: int, of: int) -> Part:
        if of > 1:
            raise RuntimeError("a given optimiser steps whole models: use servers=1, chunks=1")
        return self

    def reduced_by(
        self, all_reduce: Callable[..., Op[Vector]], in_buckets: bool = True, written: bool = True
    ) -> AsyncIterator[Vector]:
        return reduced_whole(self, all_reduce)

    def score(self, losses: Sequence[Tensor]) -> float:
        raise RuntimeError("a joined loop keeps its losses to itself: leave out drop")

    @property
    def optimiser_state(self) -> Vector | None:
        raise RuntimeError("a given optimiser keeps its memory: use state=local or state=reset")

    def reset_optimiser(self) -> None:
        self._given.state.clear()

    def _optimise(self, old: Tensor, total: Tensor, of: int, rate: float) -> None:
        if self._vector is not old:
            self._vector.copy_(old)
        self.bind()
        parameters = self.layout.parameters
        own = [parameter.grad for parameter in parameters]
        mean = total / of if of > 1 else total
        for number, parameter in enumerate(parameters):
            parameter.grad = self.layout.view(mean, number)
        with _at_rate(self._given, rate):
            self._given.step()
        for parameter, gradient_before in zip(parameters, own, strict=True):
            parameter.grad = gradient_before

    def take_gradient(self) -> Tensor:
        if not self.layout.points_to(self._vector):
            raise RuntimeError(
                "a parameter has moved out of the joined vector (by model.to(...), "
                "flatten_parameters() or an assignment to .data): do that before regatta.join"
            )
        gradients = [parameter.grad for parameter in self.layout.parameters]
        return self.layout.gradient(gradients, self._empty())

    def settle(self) -> None:
        """Show the person's model the present weights and statistics."""
        self.bind()
        self.layout.fill_buffers(self._vector)


class Crew:
    """This process's place in the world."""

    def __init__(self, strategy: Strategy, model: nn.Module, optimizer: Optimizer) -> None:
        self._made_world = not dist.is_initialized()
        if self._made_world:
            _connect()
        try:
            self._find_place(strategy)
        except ValueError:
            self._leave_world()
            raise
        hosts = host_numbers()
        self._comm = ProcessComm(strategy.groups(self.workers, hosts[: self.workers]), hosts=hosts)
        self._replica = _JoinedReplica(model, optimizer, self._comm)
        self._replica.load(run_blocking(self._initial_weights()))
        self._replica.settle()
        role = strategy.role(self.rank, self.workers)
        self._role = role(self._comm, self._replica)
        self._role_is_over = False

    def _find_place(self, strategy: Strategy) -> None:
        self.rank, self.size = dist.get_rank(), dist.get_world_size()
        self.workers = self.size - strategy.num_servers
        self.is_server = self.rank >= self.workers
        if self.workers < 1:
            raise ValueError(
                f"{strategy.name} needs {strategy.num_servers} process for its server besides the "
                f"workers, and {self.size} were started"
            )
        strategy.check(self.workers)
        if strategy.needs_layers:
            raise ValueError(
                f"{strategy.name} computes by layers, and a loop of one's own brings whole "
                f"gradients: use `regatta train RECIPE -s {strategy.name}`, or another strategy"
            )

    def _leave_world(self) -> None:
        if self._made_world:
            dist.destroy_process_group()

    def step(self) -> None:
        """Exchange and apply this loop's gradient, as the strategy says."""
        if self.is_server:
            raise RuntimeError("this rank is a server: call crew.serve()")
        self._advance(self._replica.take_gradient())
        self._replica.settle()

    def serve(self) -> None:
        """Be the server until every worker has left."""
        if not self.is_server:
            raise RuntimeError("this rank is a worker: call crew.step() in its loop")
        self._advance(None)
        self._replica.settle()

    @property
    def traffic(self) -> Traffic:
        """Messages, bytes, waiting time and staleness so far."""
        return self._comm.traffic

    def __enter__(self) -> Crew:
        if not self.is_server:
            self._advance(None)  # up to where the role wants its first gradient
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if error is not None:  # the others notice the closed connections
            self._role.close()
            return
        if not self._role_is_over:
            self._advance(None)
        self._replica.settle()
        restore_momentum(self._replica.model)
        self._comm.close()
        self._leave_world()

    def _advance(self, gradient: Tensor | None) -> None:
        try:
            self._role.send(gradient)
        except StopIteration:
            self._role_is_over = True

    async def _initial_weights(self) -> Any:
        """Rank 0's, on every rank."""
        return await self._comm.broadcast(self._replica.weights, 0)


def join(strategy: Strategy | str, model: nn.Module, optimizer: Optimizer) -> Crew:
    """Let a model and its optimiser learn together with those of the other processes."""
    chosen = config.component("strategy", strategy) if isinstance(strategy, str) else strategy
    return Crew(chosen, model, optimizer)


def _connect() -> None:
    place = started.place()
    if place is not None:
        meet(place)
        return
    dist.init_process_group("gloo", store=HashStore(), rank=0, world_size=1)
