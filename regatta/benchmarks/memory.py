"""How much memory a rank has at its peak beyond a bare loop, in vectors of the model's size.

What counts is the proportional set size: a page that n processes share counts 1/n for each, so
shared memory is neither forgotten nor counted twice. The bare loops are as many processes as the
ranks that they are compared with, since all share PyTorch's own pages.
"""

from __future__ import annotations

import re
import threading
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

import torch
import torch.distributed as dist

from regatta.aboard import aboard, play, prepare_rank
from regatta.benchmarks import Case, Result
from regatta.benchmarks.peers import BareLoop, Ddp, Peer, Place
from regatta.benchmarks.world import LARGE, Network, measured_run, order_of
from regatta.learn.layout import num_vector_bytes
from regatta.stream import Stream
from regatta.worlds.launch import launch
from regatta.worlds.processes import connect

_BAR = 2.0  # vectors
_EVERY_SECONDS = 0.005
_ACCOUNT = Path("/proc/self/smaps_rollup")
_STRATEGIES = ("all-reduce", "ring", "averaging:period=2", "parameter-server")
_WORKERS = 2
_DDP = "DistributedDataParallel"


def memory(
    pairs: int, network: Network = LARGE, strategies: tuple[str, ...] = _STRATEGIES
) -> Result:
    """Some steps, to come to the peak, in a few fresh starts: who happens to hold what differs."""
    steps, starts = max(3, min(pairs, 6)), max(1, pairs // 5)
    versus = f"a worker's peak beyond a bare loop's, {network.name}"
    if not _ACCOUNT.exists():
        return Result("memory", f"{versus}: not measured, this system has no {_ACCOUNT}", [])
    vector = num_vector_bytes(network.task.model())
    beyond: dict[str, list[float]] = {}
    told: dict[str, tuple[str, str]] = {}
    for _ in range(starts):
        peaks = {strategy: _peaks(strategy, network, steps) for strategy in strategies}
        peaks[_DDP] = _peer_peaks(Ddp, network, steps, _WORKERS)
        processes = {len(ranks) for ranks in peaks.values()}
        bare = {ranks: _peer_peaks(BareLoop, network, steps, ranks) for ranks in processes}
        for name, ours in peaks.items():
            ours, peers = ours[:_WORKERS], bare[len(ours)][:_WORKERS]
            beyond.setdefault(name, []).extend((own - fmean(peers)) / vector for own in ours)
            told[name] = f"{max(ours) / 1e6:,.0f} MB", f"{max(peers) / 1e6:,.0f} MB"
    cases = [
        Case(name, ratios, _BAR if name in strategies else None, *told[name], at_most=True)
        for name, ratios in beyond.items()
    ]
    return Result("memory", versus, cases, f"vectors of {vector / 1e6:,.0f} MB")


def _peaks(strategy: str, network: Network, steps: int) -> list[int]:
    ranks = measured_run(strategy, network, _WORKERS).num_ranks
    return launch(ranks, _train, (strategy, network, steps))


def _peer_peaks(kind: type[Peer], network: Network, steps: int, processes: int) -> list[int]:
    return launch(processes, _train_peer, (kind, network, steps))


def _train(
    rank: int, size: int, init_method: str, strategy: str, network: Network, steps: int
) -> int:
    """A few steps of a strategy; the peak of this process."""
    run = measured_run(strategy, network, _WORKERS)
    # A bare loop's optimiser imports torch's compiler, 70 MB that are no vector; ours does not.
    torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))])
    with ExitStack() as watch:
        peak = watch.enter_context(Peak())
        with aboard(rank, size, init_method, run) as player:
            player.replica.stream = _Looking(player.stream, peak, steps)
            play(player)
            _end_together(watch)
    return peak.nbytes


def _end_together(watch: ExitStack) -> None:
    """While all are there: who leaves makes the others' share of common pages larger."""
    watch.close()
    dist.barrier()


def _train_peer(
    rank: int, size: int, init_method: str, kind: type[Peer], network: Network, steps: int
) -> int:
    """The same of a peer, with nothing of ours beside it; a third process looks on."""
    prepare_rank(rank, _WORKERS)
    connect(rank, size, init_method)
    with ExitStack() as watch:
        peak = watch.enter_context(Peak())
        if rank < _WORKERS:
            data = network.task.open()
            peer = kind(Place(network.task, data, order_of(network, data, _WORKERS), rank))
            for _ in range(steps):
                peer.run(1)
                peak.look()
        _end_together(watch)
    dist.destroy_process_group()
    return peak.nbytes


@dataclass
class _Looking:
    """A stream that looks at the memory wherever a step is done."""

    stream: Stream
    peak: Peak
    left: int

    def __post_init__(self) -> None:
        self.samples = self.stream.samples

    def next(self, number: int | None = None) -> Any | None:
        self.peak.look()
        self.left -= 1
        return self.stream.next(number) if self.left >= 0 else None


class Peak:
    """The most memory that this process has had while watched: during steps, and where asked to."""

    def __init__(self) -> None:
        self.nbytes = 0
        self._over = threading.Event()
        self._watch = threading.Thread(target=self._look_now_and_then, daemon=True)

    def __enter__(self) -> Peak:
        self._watch.start()
        return self

    def __exit__(self, *error: object) -> None:
        self.look()
        self._over.set()
        self._watch.join()

    def look(self) -> None:
        self.nbytes = max(self.nbytes, proportional_bytes())

    def _look_now_and_then(self) -> None:
        while not self._over.wait(_EVERY_SECONDS):
            self.look()


def proportional_bytes() -> int:
    """This process's memory, shared pages by their share."""
    found = re.search(r"^Pss:\s+(\d+) kB", _ACCOUNT.read_text(), re.MULTILINE)
    assert found is not None
    return 1024 * int(found[1])
