"""Fingerprints: of weights, to compare them; of a run, to know a checkpoint's own."""

from __future__ import annotations

import hashlib
import json

import torch

from regatta.config import Run, to_json


def weights_digest(weights: torch.Tensor) -> str:
    """A fingerprint of every bit of a vector."""
    return hashlib.sha256(weights.detach().cpu().numpy().data).hexdigest()[:16]


def run_digest(run: Run) -> str:
    """A fingerprint of what shapes a run's weights; where it stops may be extended."""
    values = to_json(run)
    for free in ("stop", "recording", "death", "cluster", "threads"):
        values.pop(free)
    start = values.pop("start")
    if start.pop("run"):  # what it holds counts, not where it lay
        values["start"] = start
    return hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()[:16]
