"""Traces small enough to check by eye.

One weight starts at 1, the learning rate is 1 and a batch is its own gradient, so that with
gradients of 2 a weight reads 1, -1, -3 ... A minibatch takes 1 s, a merge 0.25 s, a message 0.125 s
of latency and 0.5 s of transmission.
"""

from __future__ import annotations

from dataclasses import dataclass

import pytest
from helpers import Crew, Weight, slope

from regatta.strategies.all_reduce import AllReduce
from regatta.strategies.averaging import Averaging
from regatta.strategies.base import Strategy
from regatta.strategies.parameter_server import ParameterServer
from regatta.strategies.ring import Ring
from regatta.strategies.single import Single


class Traced(Weight):
    """Remembers every weight that it computed a gradient at."""

    def __init__(self):
        super().__init__()
        self.seen = []


def traced_slope(model, batch):
    model.seen.append(model.weight.item())
    return slope(model, batch)


@dataclass(frozen=True)
class Trace:
    strategy: Strategy
    gradients: list[list[float]]  # of each worker, in its order
    seen: list[list[float]]  # the weight at each of them
    final: float  # on every rank
    seconds: float  # until the last rank ended


TRACES = {
    "single": Trace(
        Single(),
        gradients=[[2, 2, 2]],
        seen=[[1, -1, -3]],
        final=-5,
        seconds=3.0,
    ),
    # A round is 1 s of computing and 2 x (0.125 + 0.25) s of all-reduce; a last round adds nothing.
    "all-reduce": Trace(
        AllReduce(),
        gradients=[[2, 2, 2], [2, 2, 2]],
        seen=[[1, -1, -3], [1, -1, -3]],
        final=-5,
        seconds=3 * 1.75 + 0.75,
    ),
    # The mean of 2 and 6, then 6 alone, undivided: who has nothing to add does not count.
    "all-reduce, uneven": Trace(
        AllReduce(),
        gradients=[[2], [6, 6, 6]],
        seen=[[1], [1, -3, -9]],
        final=-15,
        seconds=3 * 1.75 + 0.75,
    ),
    # -3 and -7 meet at -5; -9 and -13 at -11; the rest, -13 and -15, at -14.
    "averaging": Trace(
        Averaging(period=2),
        gradients=[[2, 2, 2, 2, 2], [4, 4, 4, 4, 4]],
        seen=[[1, -1, -5, -7, -11], [1, -3, -5, -9, -11]],
        final=-14,
        seconds=5 * 1.0 + 4 * 0.75,
    ),
    # Rank 0 brings its 1 step (-1) when rank 1 has made 2 (-3): -2. From there rank 1 goes alone.
    "averaging, uneven": Trace(
        Averaging(period=2),
        gradients=[[2], [2, 2, 2]],
        seen=[[1], [1, -1, -2]],
        final=-4,
        seconds=2.75 + 1.75 + 0.75,
    ),
    # The server goes -1, -3, -5, -7; each worker computes from what it was last sent.
    "parameter-server": Trace(
        ParameterServer(),
        gradients=[[2, 2], [2, 2]],
        seen=[[1, -1], [1, -3]],
        final=-7,
        seconds=6.75,
    ),
    # One model goes round: -1, -3, -5, -7, -9, -11. All first minibatches saw the initial one.
    "ring": Trace(
        Ring(),
        gradients=[[2, 2], [2, 2], [2, 2]],
        seen=[[1, -1], [1, -3], [1, -5]],
        final=-11,
        seconds=9.375,
    ),
}


@pytest.mark.parametrize("name", TRACES)
def test_trace(name):
    trace = TRACES[name]
    crew = Crew(trace.strategy, len(trace.gradients), Traced, traced_slope).play(trace.gradients)
    workers = crew.replicas[: len(trace.gradients)]
    assert [replica.model.seen for replica in workers] == trace.seen
    assert crew.final == [[trace.final, 1.0]] * len(crew.replicas)  # the 1 counts one model
    assert crew.world.now == trace.seconds


# -- who sends what to whom, and when --------------------------------------------------------


class Noted:
    """An operation that tells when it has ended."""

    def __init__(self, operation, note):
        self._operation, self._note = operation, note

    def __await__(self):
        message = yield from self._operation.__await__()
        self._note(message)
        return message


class Logbook:
    """A rank's communication with every message written down."""

    sends_unwritten = False  # numbers are to be read here

    def __init__(self, comm, lines):
        self._comm, self._lines = comm, lines

    def __getattr__(self, name):
        return getattr(self._comm, name)

    def send(self, dst, data, tag=0, version=0):
        self._write(f"sends {_shown(data)} v{version} to {dst}")
        return self._comm.send(dst, data, tag, version)

    def recv(self, *source_and_tag, **named):
        def note(message):
            self._write(f"takes {_shown(message.data)} v{message.version} from {message.src}")

        return Noted(self._comm.recv(*source_and_tag, **named), note)

    def _write(self, text):
        self._lines.append(f"{self._comm.now():5.3f} rank {self._comm.rank} {text}")


def _shown(data):
    return f"{data[0].item():g}" if len(data) else "nothing"


def log_of(strategy, gradients):
    lines = []
    Crew(strategy, len(gradients), wrap=lambda comm: Logbook(comm, lines)).play(gradients)
    return lines


def test_the_log_of_a_ring():
    assert log_of(Ring(), [[2, 2], [2, 2]]) == [
        "1.250 rank 0 sends -1 v1 to 1",  # computed until 1, merged until 1.25
        "1.875 rank 1 takes -1 v1 from 0",
        "2.125 rank 1 sends -3 v2 to 0",
        "2.750 rank 0 takes -3 v2 from 1",  # its second minibatch was ready at 2.25
        "3.000 rank 0 sends -5 v3 to 1",
        "3.625 rank 1 takes -5 v3 from 0",
        "3.875 rank 1 sends -7 v4 to 0",
        "4.500 rank 0 takes -7 v4 from 1",  # news to rank 0: once more round
        "4.500 rank 0 sends -7 v4 to 1",
        "5.125 rank 1 takes -7 v4 from 0",  # what rank 1 has sent comes back: the last lap
        "5.125 rank 1 sends -7 v4 to 0",
        "5.750 rank 0 takes -7 v4 from 1",
        "5.750 rank 0 sends -7 v4 to 1",
        "6.375 rank 1 takes -7 v4 from 0",
    ]


def test_the_log_of_a_server():
    assert log_of(ParameterServer(), [[2, 2], [2]]) == [
        "1.000 rank 0 sends 2 v0 to 2",
        "1.000 rank 1 sends 2 v0 to 2",
        "1.625 rank 2 takes 2 v0 from 0",
        "1.875 rank 2 sends -1 v1 to 0",
        "2.125 rank 2 takes 2 v0 from 1",  # the server's card takes one message at a time
        "2.375 rank 2 sends -3 v2 to 1",
        "2.500 rank 0 takes -1 v1 from 2",
        "3.000 rank 1 takes -3 v2 from 2",
        "3.000 rank 1 sends nothing v0 to 2",  # goodbye, which is all header
        "3.125 rank 2 takes nothing v0 from 1",
        "3.500 rank 0 sends 2 v1 to 2",
        "4.125 rank 2 takes 2 v1 from 0",
        "4.375 rank 2 sends -5 v3 to 0",
        "5.000 rank 0 takes -5 v3 from 2",
        "5.000 rank 0 sends nothing v0 to 2",
        "5.125 rank 2 takes nothing v0 from 0",
        "5.125 rank 2 sends -5 v3 to 0",
        "5.125 rank 2 sends -5 v3 to 1",
        "5.750 rank 0 takes -5 v3 from 2",
        "6.250 rank 1 takes -5 v3 from 2",
    ]
