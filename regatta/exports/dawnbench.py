"""An entry as DAWNBench took them: a JSON file about the run and a TSV file of its evaluations.

Hours are training time, evaluation excluded, as DAWNBench had it. An error rate stands under its
own name; accuracies are in per cent.
"""

from __future__ import annotations

import json
import re
from datetime import UTC, datetime
from pathlib import Path

from regatta.events import Evaluated
from regatta.exports import Source


def write(run: Source, out: Path) -> list[Path]:
    out.mkdir(parents=True, exist_ok=True)
    task = re.sub(r"[^\w.+-]+", "-", run.task)  # no part of a path
    strategy = re.sub(r"[^\w.+-]+", "-", run.summary.strategy)
    stem = f"{task}-{strategy}-{run.summary.workers}w-seed{run.summary.seed}"
    about, curve = out / f"{stem}.json", out / f"{stem}.tsv"
    curve.write_text(_curve(run))
    about.write_text(json.dumps(_about(run, curve.name), indent=4) + "\n")
    return [about, curve]


def _about(run: Source, curve: str) -> dict[str, object]:
    machine = run.stored.get("environment", {})
    began = datetime.fromtimestamp(run.began, UTC).date().isoformat() if run.began else ""
    return {
        "version": "v1.0",
        "author": "not stated",
        "authorEmail": "not stated",
        "framework": f"Regatta on PyTorch {machine.get('torch', 'unknown')}",
        "codeURL": "not stated",
        "model": run.task,
        "hardware": f"{run.started.hosts} host(s), {machine.get('machine', 'unknown')}, "
        f"{machine.get('cores', '?')} cores, {run.summary.workers} workers"
        + (" (simulated)" if run.started.world == "virtual" else ""),
        "costPerHour": run.summary.price_per_hour,
        "timestamp": began,
        "logFilename": curve,
        "misc": {"strategy": run.summary.spec, "seed": run.summary.seed},
    }


def _curve(run: Source) -> str:
    metric = run.started.metric
    is_accuracy = metric == "accuracy"
    names = {"accuracy": "top1Accuracy", "top5": "top5Accuracy"}
    found = [e for e in run.events if isinstance(e, Evaluated) and metric in e.results]
    further = [n for n in ("top5",) if any(n in e.results for e in found)]
    lines = ["\t".join(["epoch", "hours", names.get(metric, metric), *map(names.get, further)])]  # type: ignore[list-item]
    for event in found:
        values = [event.results[metric], *(event.results.get(n, 0.0) for n in further)]
        shown = [f"{100 * v:.4f}" if is_accuracy else f"{v:.6g}" for v in values]
        lines.append("\t".join([f"{event.epoch:.4f}", f"{event.training / 3600:.8f}", *shown]))
    return "\n".join(lines) + "\n"
