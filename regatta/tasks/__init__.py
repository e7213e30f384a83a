"""What is learnt: model, loss, data, and a metric with its direction.

A task is a frozen dataclass of sizes; `open()` makes or reads its data once a process, and every
rank of that process shares them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Protocol

import torch
from torch import Tensor, nn


@dataclass(frozen=True)
class Metric:
    name: str
    higher_is_better: bool = True

    def reached(self, value: float, target: float) -> bool:
        return value >= target if self.higher_is_better else value <= target

    def better(self, value: float, other: float | None) -> bool:
        return other is None or (value > other if self.higher_is_better else value < other)


class Data(Protocol):
    """A task's samples, and what to do with them.

    Data may also name the model's last layer, `head: str` (how the names of its parameters begin),
    and what the rows of that layer stand for, `symbols: Sequence[str]`: a run that begins with the
    weights of another leaves it fresh, or takes over the rows of symbols that both know. Data may
    deal out batches of their own making (`deal`, see `regatta.data.order`), tell how long a batch
    lasts (`audio_seconds`), begin with the next batch beside training when they are told of it
    (`expect`, as `batch`), let the model write a sentence now and then (`sentence(model, index)`:
    what is right and what the model says), and describe what somebody needs who uses the model
    without them (`description`).
    """

    train_samples: int

    def batch(self, indices: Tensor) -> Any: ...
    def loss(self, model: nn.Module, batch: Any) -> Tensor: ...
    def evaluate(self, model: nn.Module) -> dict[str, float]:
        """Named results on the dev set, the task's metric among them."""
        ...


class Task(Protocol):
    """One may also refuse who holds the answer in the end (`check_answer(strategy, answer)`), and
    tell its data without making them (`outline()`, as `open`): as many samples of the same shape,
    for simulations that only charge the clock.
    """

    name: ClassVar[str]
    metric: ClassVar[Metric]

    def model(self) -> nn.Module: ...
    def open(self) -> Data: ...


def device_of(model: nn.Module) -> torch.device:
    return next(model.parameters()).device


def registry() -> dict[str, type[Task]]:
    from regatta.tasks.frames import Frames
    from regatta.tasks.images import Images
    from regatta.tasks.sequences import Sequences
    from regatta.tasks.speech import Speech
    from regatta.tasks.teacher import Teacher
    from regatta.tasks.vectors import Vectors

    return {task.name: task for task in (Teacher, Vectors, Sequences, Frames, Speech, Images)}
