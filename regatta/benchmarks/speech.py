"""The recogniser trained by one worker, against the same network in a bare PyTorch loop."""

from __future__ import annotations

from regatta.benchmarks import Result
from regatta.benchmarks.duel import duel
from regatta.benchmarks.peers import BareLoop
from regatta.benchmarks.world import Network
from regatta.learn.optimisers import AdaDelta, Adam
from regatta.models.recogniser import PAPER
from regatta.tasks.speech import Speech

_BAR = 0.97
_SPOKEN = Speech(minutes=10.0, dev_minutes=1.0)
SMALL = Network(
    "recogniser of 1.2 M", _SPOKEN, 16, steps=2, repeats=4, optimiser=Adam(lr=2e-3)
)  # as in the recipe `speech`
LARGE = Network(
    "recogniser of 25.6 M",
    Speech(minutes=10.0, dev_minutes=1.0, network=PAPER),
    8,
    steps=1,
    repeats=3,
    optimiser=AdaDelta(),
)


def speech(pairs: int) -> Result:
    """Both take the same batches, of like lengths, from the same features on disk."""
    _SPOKEN.prepare()  # made once, before anything is timed
    duels = [(net, duel("single", net, BareLoop, pairs, workers=1)) for net in (SMALL, LARGE)]
    cases = [each.case(net.name, _BAR) for net, each in duels]
    return Result("speech", "one real worker / a bare PyTorch loop", cases)
