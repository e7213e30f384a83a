"""A model that a run has saved, on the evaluation data of the task that it learnt."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from regatta import checkpoint, tasks
from regatta.checkpoint import BadCheckpoint
from regatta.config import from_plain
from regatta.folders import open_plan
from regatta.start import file_of
from regatta.tasks import Task
from regatta.tasks.speech import Speech


@dataclass(frozen=True, eq=False)
class Answer:
    file: Path
    tensors: dict[str, Tensor]
    task: Task
    recorded: dict[str, float]  # what the run itself found

    @classmethod
    def open(cls, path: Path) -> Answer:
        """Of a run's folder (its best model) or of a .safetensors file."""
        file = file_of(path)
        tensors, about = checkpoint.load_answer(file)
        values = about.get("task")
        if not isinstance(values, dict) or not isinstance(values.get("name"), str):
            raise BadCheckpoint(
                f"{file} does not say what it learnt: name a run, or a model that a run has saved"
            )
        recorded = about.get("results")
        return cls(
            file,
            tensors,
            _task(path, file, values),
            recorded if isinstance(recorded, dict) else {},
        )

    @property
    def is_recogniser(self) -> bool:
        return isinstance(self.task, Speech)

    @torch.no_grad()
    def results(self) -> dict[str, float]:
        """As the run's own evaluations find them."""
        model = self.task.model()
        try:
            model.load_state_dict(self.tensors)
        except RuntimeError as error:
            reason = str(error).splitlines()[-1].strip()
            raise BadCheckpoint(
                f"{self.file} does not fit the model of the task {self.task.name} ({reason}): it "
                "is damaged or of another version"
            ) from None
        return self.task.open().evaluate(model.eval())


def _task(path: Path, file: Path, values: dict[str, Any]) -> Task:
    """A recogniser's file says it all; else a run's recipe also knows classes of one's own."""
    name, known = values["name"], tasks.registry()
    if path.is_dir() and name != Speech.name:
        return open_plan(path)[0].run.task
    if name not in known:
        raise ValueError(
            f"{file} is of a task of one's own, {name}: name the folder of its run instead"
        )
    try:
        task: Task = from_plain(known[name], {k: v for k, v in values.items() if k != "name"})
    except (TypeError, ValueError) as error:
        raise BadCheckpoint(
            f"{file} does not describe a task that can be built ({error}): it is damaged or of "
            "another version"
        ) from None
    return task
