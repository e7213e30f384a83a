"""A task's data, opened for a run."""

from __future__ import annotations

from regatta.config import Run
from regatta.engine import order_of
from regatta.tasks import Data
from regatta.worlds.launch import WrongUsage


def open_data(run: Run, timing_only: bool = False) -> Data:
    """The task's data, if there is enough of them for all workers."""
    outline = getattr(run.task, "outline", run.task.open)  # nobody looks at samples then
    data: Data = outline() if timing_only else run.task.open()
    try:
        order_of(run, data)
    except ValueError as error:
        raise WrongUsage(str(error)) from None
    return data


def identity_of(data: Data) -> str:
    """A digest of the samples, where a task's data tell one."""
    return str(getattr(data, "identity", ""))
