"""What meeting and exchanging cost: strategies against processes that exchange nothing.

The limit of a strategy whose workers depend on each other every step is two processes that meet at
a barrier every step; that of one whose workers train apart is two that never meet.
"""

from __future__ import annotations

from dataclasses import replace

from regatta.benchmarks import Case, Result
from regatta.benchmarks.duel import between_peers, duel
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
    cases += [_meeting_alone(network, pairs) for network in (DNN, LSTM)]
    return Result("limit", "two real workers / two processes that exchange nothing", cases)


def _in_step(strategy: str, network: Network, bar: float, pairs: int, lead: int = 0) -> Case:
    name = f"{strategy}, {network.name}, limit meets every step"
    return duel(strategy, network, SynchronousLimit, pairs, lead).case(name, bar)


def _apart(network: Network, peer: type[Peer], limit: str, bar: float | None, pairs: int) -> Case:
    strategy = f"averaging:period={PERIOD}"
    name = f"{strategy}, {network.name}, {limit}"
    return duel(strategy, _of_whole_periods(network), peer, pairs).case(name, bar)


def _meeting_alone(network: Network, pairs: int) -> Case:
    """What no strategy that meets can do without: the slower of two cores is waited for."""
    fought = between_peers(_of_whole_periods(network), SeldomMeeting, BareLoop, pairs)
    name = f"bare loops that meet every {PERIOD} steps, {network.name}, limit never meets"
    return fought.case(name, None)


def _of_whole_periods(network: Network) -> Network:
    """In blocks that have one meeting each."""
    return replace(network, steps=PERIOD, repeats=network.repeats // 2)
