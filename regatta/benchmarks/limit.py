"""What meeting and exchanging cost: strategies against processes that exchange nothing.

The limit of a strategy whose workers depend on each other every step is two processes that meet at
a barrier every step; that of one whose workers train apart is two that never meet.
"""

from __future__ import annotations

from dataclasses import replace

from regatta.benchmarks import Case, Result
from regatta.benchmarks.duel import duel
from regatta.benchmarks.peers import PERIOD, BareLoop, Peer, SeldomMeeting, SynchronousLimit
from regatta.benchmarks.world import DNN, LARGE, LSTM, Network

_BARS = ((DNN, 0.95), (LARGE, 0.96), (LSTM, 0.95))
_APART_BAR = 0.97


def limit(pairs: int) -> Result:
    cases = [_in_step("all-reduce", network, bar, pairs) for network, bar in _BARS]
    # Every node merges after the node before it, so the ring runs staggered.
    cases += [_in_step("ring", network, bar, pairs, lead=1) for network, bar in _BARS]
    cases += [_apart(net, BareLoop, "limit never meets", _APART_BAR, pairs) for net in (DNN, LSTM)]
    # What averaging lacks to this one is its own; the rest of the above is waiting for the slower.
    cases.append(_apart(DNN, SeldomMeeting, f"limit meets every {PERIOD} steps", None, pairs))
    return Result("limit", "two real workers / two processes that exchange nothing", cases)


def _in_step(strategy: str, network: Network, bar: float, pairs: int, lead: int = 0) -> Case:
    name = f"{strategy}, {network.name}, limit meets every step"
    return duel(strategy, network, SynchronousLimit, pairs, lead).case(name, bar)


def _apart(network: Network, peer: type[Peer], limit: str, bar: float | None, pairs: int) -> Case:
    """Blocks of a whole period: each has one meeting."""
    strategy = f"averaging:period={PERIOD}"
    whole = replace(network, steps=PERIOD, repeats=network.repeats // 2)
    name = f"{strategy}, {network.name}, {limit}"
    return duel(strategy, whole, peer, pairs).case(name, bar)
