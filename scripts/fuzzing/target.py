"""What is fed, with what to begin, how that is changed; and the small runs that it comes from."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random

from regatta import runs
from regatta.config import Checkpointing, Evaluation, Run, Stop, component
from regatta.folders import Plan
from regatta.learn.optimisers import Sgd
from regatta.tasks.teacher import Teacher

Feed = Callable[[bytes], None]  # raises what a person is told in one line, and nothing else


@dataclass(frozen=True)
class Target:
    what: str
    seeds: Sequence[bytes]
    change: Callable[[Random, bytes], bytes]
    feed: Feed

    def input(self, chance: Random) -> bytes:
        return self.change(chance, chance.choice(self.seeds))


def small(strategy: str) -> Run:
    """So small that its files are read in no time."""
    return Run(
        task=Teacher(inputs=3, hidden=(3,), classes=2, teacher_hidden=2, train=64, dev=16),
        strategy=component("strategy", strategy),
        optimiser=Sgd(momentum=0.5),
        workers=2,
        minibatch=8,
        stop=Stop(epochs=1, target=2.0),
        evaluation=Evaluation(every=0.25),
        checkpointing=Checkpointing(every=0.5),
    )


def played(folder: Path, strategy: str) -> Path:
    """The folder of a run that has ended."""
    if folder.exists():
        shutil.rmtree(folder)
    run = small(strategy)
    runs.simulate(run, Plan("teacher", run, folder))
    return folder


def of_runs(folder: Path, name: str) -> list[bytes]:
    """A file of several runs."""
    strategies = ("parameter-server", "averaging", "gossip")
    contents = [(played(folder / each, each) / name).read_bytes() for each in strategies]
    return [content for content in contents if content]  # not all leave anything to chance
