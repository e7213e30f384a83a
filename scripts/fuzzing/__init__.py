"""Hostile inputs: how they are made, what is fed with them, and what may come of it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from fuzzing.checkpoints import checkpoints
from fuzzing.files import choices, events, locks, races, stored
from fuzzing.messages import pipes, sockets
from fuzzing.target import Target
from fuzzing.words import clusters, settings, specs

TARGETS: dict[str, Callable[[Path], Target]] = {
    "pipes": pipes,
    "sockets": sockets,
    "checkpoints": checkpoints,
    "events": events,
    "choices": choices,
    "run": stored,
    "race": races,
    "lock": locks,
    "set": settings,
    "specs": specs,
    "clusters": clusters,
}
