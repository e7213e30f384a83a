"""One worker against a bare PyTorch loop: what vectors, roles and events cost."""

from __future__ import annotations

from regatta.benchmarks import Result
from regatta.benchmarks.duel import duel
from regatta.benchmarks.peers import BareLoop
from regatta.benchmarks.world import NETWORKS

_BAR = 0.97


def one_worker(pairs: int) -> Result:
    duels = [(net, duel("single", net, BareLoop, pairs, workers=1)) for net in NETWORKS]
    cases = [each.case(net.name, _BAR) for net, each in duels]
    return Result("one-worker", "one real worker / a bare PyTorch loop", cases)
