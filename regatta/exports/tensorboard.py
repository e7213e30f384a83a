"""Scalars for TensorBoard: evaluations against samples, and every rank's progress."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from regatta.events import Evaluated, Progress, Usage
from regatta.exports import Source


def write(run: Source, out: Path) -> list[Path]:
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        raise ValueError(
            "TensorBoard is not installed: pip install tensorboard, or 'regatta-train[tensorboard]'"
        ) from None
    writer: Any = SummaryWriter(str(out))
    samples = 0  # where usage, which has no count of its own, stands in time
    for event in run.events:
        now = run.began + event.time
        if isinstance(event, Evaluated):
            samples = event.samples
            for name, value in event.results.items():
                writer.add_scalar(f"evaluation/{name}", value, event.samples, now)
        elif isinstance(event, Progress):
            if event.loss is not None:
                writer.add_scalar(f"loss/rank {event.rank}", event.loss, event.samples, now)
            busy = event.computing + event.waiting
            if busy:
                share = event.waiting / busy
                writer.add_scalar(f"waiting/rank {event.rank}", share, event.samples, now)
        elif isinstance(event, Usage):
            cores = sum(event.cpu) / len(event.cpu)
            writer.add_scalar(f"cores busy/rank {event.rank}", cores, samples, now)
    writer.close()
    return sorted(out.glob("events.out.tfevents.*"))
