"""An asynchronous parameter server against two processes that never meet.

The server is a third process on two cores: what it computes, the workers lack. Of the arithmetic
that a bare loop does, one thing only moves: the step, which the server makes as a merge (one pass
that reads two vectors and writes one). The arithmetic alone therefore allows
`bare / (bare - step + merge)`; the rest goes to moving vectors, changing processes, and waiting.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from statistics import median
from typing import Any

import torch

from regatta.aboard import prepare_rank
from regatta.benchmarks import Result
from regatta.benchmarks.duel import Duel, duel
from regatta.benchmarks.peers import BareLoop
from regatta.benchmarks.world import NETWORKS, Network
from regatta.learn.layout import num_vector_bytes
from regatta.worlds.launch import launch

_TRIALS = 15


def server(pairs: int, networks: tuple[Network, ...] = NETWORKS) -> Result:
    duels = [duel("parameter-server", net, BareLoop, pairs, lead=1) for net in networks]
    cases = [each.case(net.name, None) for net, each in zip(networks, duels, strict=True)]
    accounts = {net.name: _account(net, each) for net, each in zip(networks, duels, strict=True)}
    details: list[dict[str, str | float]] = [
        {"ms a step": quantity} | {name: account[quantity] for name, account in accounts.items()}
        for quantity in accounts[networks[0].name]
    ]
    versus = "two real workers and a server on two cores / two processes that never meet"
    return Result("server", versus, cases, details=details)


def _account(network: Network, fought: Duel) -> dict[str, float]:
    """Milliseconds a step of one worker, and what the arithmetic alone would allow."""
    step, merge = launch(1, passes, (network.task,))[0]
    ours, bare = (fought.milliseconds(side, lambda lap: lap.wall) for side in "AB")
    serving = 1000 * fought.server["seconds"] / fought.server["gradients"]
    return {
        "ours": ours,
        "bare loop": bare,
        "worker's own CPU": fought.milliseconds("A", lambda lap: lap.own),
        "CPU of its other threads": fought.milliseconds("A", lambda lap: lap.others),
        "server's CPU, a gradient": serving,
        "server's share of the cores": serving / ours,
        "merge alone": merge,
        "step of SGD alone": step,
        "ratio that arithmetic allows": bare / (bare - step + merge),
    }


def passes(rank: int, size: int, _: str, task: Any) -> tuple[float, float]:
    """Milliseconds of a step of torch's SGD, and of a merge."""
    prepare_rank(rank, size)
    model = task.model()
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)
    numel = num_vector_bytes(model) // 4
    weights, gradient, merged = (torch.ones(numel) for _ in range(3))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    merge = _milliseconds(lambda: torch.add(weights, gradient, alpha=-0.01, out=merged))
    return _milliseconds(optimizer.step), merge


def _milliseconds(work: Callable[[], Any]) -> float:
    seconds = []
    for _ in range(_TRIALS):
        began = time.perf_counter()
        work()
        seconds.append(time.perf_counter() - began)
    return 1000 * median(seconds)
