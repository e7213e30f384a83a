"""What a strategy is held against, trained in the same processes.

Every peer trains a model of its own on the same batches, as anybody would write it. A peer that
exchanges nothing is a limit: what is left of its speed is the cost of the exchange.
"""

from __future__ import annotations

import time
import warnings
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from regatta.comm import Comm
from regatta.data.order import Order
from regatta.learn.optimisers import AdaDelta, Adam, Optimiser, Sgd
from regatta.tasks import Data, Task
from regatta.worlds.processes import run_blocking

_TRIALS = 50
PERIOD = 16  # minibatches between two meetings of workers that average


@dataclass(frozen=True)
class Place:
    """Where a peer trains, and on what."""

    task: Task
    data: Data
    order: Order
    rank: int
    comm: Comm | None = None  # none, where a peer is alone in its process
    optimiser: Optimiser = field(default_factory=lambda: Sgd(lr=0.01))


class Peer(Protocol):
    def __init__(self, place: Place) -> None: ...
    def run(self, steps: int) -> None: ...


def _of_torch(ours: Optimiser, model: nn.Module) -> torch.optim.Optimizer:
    """The same optimiser, as PyTorch has it."""
    parameters = model.parameters()
    if isinstance(ours, Adam):
        betas, decay = (ours.beta1, ours.beta2), ours.weight_decay
        return torch.optim.AdamW(parameters, ours.lr, betas, ours.eps, decay)
    if isinstance(ours, AdaDelta):
        return torch.optim.Adadelta(parameters, ours.lr, ours.rho, ours.eps, ours.weight_decay)
    assert isinstance(ours, Sgd)
    return torch.optim.SGD(parameters, ours.lr, ours.momentum, weight_decay=ours.weight_decay)


class BareLoop:
    """Zero_grad, forward, backward, step; two of them never meet."""

    def __init__(self, place: Place) -> None:
        self._place = place
        self._model = self._made(place.task.model())
        self._optimizer = _of_torch(place.optimiser, self._model)
        self._turn = 0

    def run(self, steps: int) -> None:
        data = self._place.data
        for _ in range(steps):
            batch = data.batch(self._place.order.indices(self._place.rank, self._turn))
            self._turn += 1
            self._optimizer.zero_grad()
            data.loss(self._model, batch).backward()
            self._optimizer.step()
            self._meet()

    def _made(self, model: nn.Module) -> nn.Module:
        return model

    def _meet(self) -> None: ...


class ManyGradients(BareLoop):
    """What no simulation of asynchronous workers can do without: a gradient in waiting for each.

    A step takes the oldest; the next is computed from the weights after it.
    """

    def __init__(self, place: Place, workers: int) -> None:
        super().__init__(place)
        self._parameters = list(self._model.parameters())
        self._waiting = deque(
            [torch.zeros_like(p) for p in self._parameters] for _ in range(workers)
        )
        self._lr = place.optimiser.lr

    def run(self, steps: int) -> None:
        data, order = self._place.data, self._place.order
        for _ in range(steps):
            oldest = self._waiting.popleft()
            with torch.no_grad():
                for parameter, gradient in zip(self._parameters, oldest, strict=True):
                    parameter.sub_(gradient, alpha=self._lr)
            del oldest, gradient  # at once: the next may have the memory
            loss = data.loss(self._model, data.batch(order.indices(self._place.rank, self._turn)))
            self._turn += 1
            self._waiting.append(list(torch.autograd.grad(loss, self._parameters)))


class Ddp(BareLoop):
    """DistributedDataParallel as it comes."""

    def _made(self, model: nn.Module) -> nn.Module:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return DistributedDataParallel(model)


class SynchronousLimit(BareLoop):
    """Independent processes that meet after every step and exchange nothing."""

    def __init__(self, place: Place) -> None:
        super().__init__(place)
        self._meet = _fastest([dist.barrier, self._sum_a_number])  # type: ignore[method-assign]

    def _sum_a_number(self) -> None:
        comm = self._place.comm
        assert comm is not None

        async def meet() -> None:
            await comm.all_reduce(torch.zeros(1))

        run_blocking(meet())


class SeldomMeeting(SynchronousLimit):
    """The same, but they meet only as often as workers that average."""

    def __init__(self, place: Place) -> None:
        super().__init__(place)
        self._meet_at_last = self._meet
        self._meet = self._meet_after_a_period  # type: ignore[method-assign]

    def _meet_after_a_period(self) -> None:
        if self._turn % PERIOD == 0:
            self._meet_at_last()


def _fastest(ways: list[Callable[[], Any]]) -> Callable[[], Any]:
    """The one that all ranks together are done with first."""
    seconds = torch.zeros(len(ways))
    for number, way in enumerate(ways):
        way()
        began = time.perf_counter()
        for _ in range(_TRIALS):
            way()
        seconds[number] = time.perf_counter() - began
    dist.all_reduce(seconds)  # so that all choose alike
    return ways[int(seconds.argmin())]
