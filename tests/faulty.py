"""A recipe whose task can be told to fail: used by the tests of death, resume and torchrun."""

from __future__ import annotations

import os
import signal
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import torch.distributed as dist
from torch import Tensor, nn

from regatta.config import Evaluation, Run, Stop
from regatta.learn.optimisers import Sgd
from regatta.tasks import Metric
from regatta.tasks.teacher import LabelledVectors, Teacher

SIGNALS = {
    "kill": signal.SIGKILL, "stop": signal.SIGSTOP, "int": signal.SIGINT,
    "term": signal.SIGTERM, "usr1": signal.SIGUSR1,
}  # fmt: skip


class _FailingData:
    def __init__(self, data: LabelledVectors, task: Faulty) -> None:
        self.train_samples = data.train_samples
        self.batch, self.evaluate = data.batch, data.evaluate
        self._data, self._task = data, task
        self._turns = 0

    def loss(self, model: nn.Module, batch: Any) -> Tensor:
        fuse = Path(self._task.fuse)
        if self._turns == self._task.turn and dist.is_initialized() and self._is_due(fuse):
            if not self._task.again:
                fuse.unlink()  # so that a resumed run goes on
            fuse.with_suffix(".burnt").write_text(str(os.getpid()))  # tells the moment, too
            if self._task.how == "raise":
                raise ArithmeticError("the batch was cursed")
            os.kill(os.getpid(), SIGNALS[self._task.how])
        self._turns += 1
        return self._data.loss(model, batch)

    def _is_due(self, fuse: Path) -> bool:
        return dist.get_rank() == self._task.rank and fuse.is_file()


@dataclass(frozen=True)
class Faulty:
    """A small teacher; rank `rank` fails at its turn `turn` if the file `fuse` exists."""

    name: ClassVar[str] = "faulty"
    metric: ClassVar[Metric] = Metric("accuracy")

    fuse: str = ""
    rank: int = 1
    turn: int = 20
    how: str = "kill"
    again: bool = False  # and whenever it comes so far once more

    def _teacher(self) -> Teacher:
        return Teacher(inputs=8, hidden=(16, 16), classes=3, train=1024, dev=128)

    def model(self) -> nn.Module:
        return self._teacher().model()

    def open(self) -> _FailingData:
        return _FailingData(self._teacher().open(), self)


@dataclass(frozen=True)
class Wide(Faulty):
    """Weights and statistics in a vector that ranks share, of several pieces for each of two."""

    name: ClassVar[str] = "wide"

    def _teacher(self) -> Teacher:
        return Teacher(inputs=8, hidden=(900, 700), classes=3, train=487, dev=64)

    def model(self) -> nn.Module:
        return nn.Sequential(nn.BatchNorm1d(8), super().model())


def wide() -> Run:
    return replace(small(), task=Wide(), stop=Stop(epochs=1))


def small() -> Run:
    return Run(
        task=Faulty(),
        optimiser=Sgd(lr=0.1, momentum=0.9),
        minibatch=16,
        stop=Stop(epochs=2),
        evaluation=Evaluation(every=0.5),
    )


def on_hosts() -> Run:
    """Ranks that torchrun starts pretend to be on several hosts, two on each."""
    os.environ["REGATTA_HOST"] = str(int(os.environ.get("RANK", "0")) // 2)
    return small()
