"""What the virtual clock charged a run, in formulas: their inputs, and where those come from."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from regatta.cluster import Cluster
from regatta.comm import Load, Seconds

_DEFAULT = "the default"
_LINE = re.compile(r"^(\w+)\s*[=:].*?\s#\s*(.+)$", re.MULTILINE)


def sources_in(text: str) -> dict[str, str]:
    """The remark beside every value of a cluster file."""
    return dict(_LINE.findall(text))


@dataclass(frozen=True)
class Job:
    """What there is to charge for."""

    workers: int
    hosts: int
    minibatch: int
    nbytes: int  # of the vector


def explained(
    cluster: Cluster, job: Job, sources: Mapping[str, str] | None = None
) -> Iterator[str]:
    """A line a figure, and a line for every value that it rests on."""
    told: set[str] = set()
    for name, formula, seconds, inputs in _figures(cluster, job):
        yield f"{name}: {formula} = {_seconds(seconds)}"
        for each in inputs:
            if each not in told:
                told.add(each)
                is_default = getattr(cluster, each) == getattr(Cluster(), each)
                source = (sources or {}).get(each, _DEFAULT if is_default else "as given")
                yield f"    {each} = {_value(getattr(cluster, each))}: {source}"


def _figures(cluster: Cluster, job: Job) -> Iterator[tuple[str, str, Seconds, Sequence[str]]]:
    steady = replace(cluster, jitter=0.0, pauses=0.0)
    charge = steady.computing(0, job.workers)
    slower = [name for name in ("crowded", "paces", "uneven") if _matters(cluster, name)]
    times = "".join(f" * {name}" for name in slower)
    if cluster.curve:
        formula, inputs = f"curve at {job.minibatch} samples", ["curve"]
    else:
        formula = f"batch_seconds + {job.minibatch} * sample_seconds"
        inputs = ["batch_seconds", "sample_seconds"]
    yield "a gradient of worker 0", formula + times, charge(Load(samples=job.minibatch)), [
        *inputs, *slower, *(name for name in ("jitter", "pauses") if _matters(cluster, name))
    ]  # fmt: skip
    if cluster.step_bandwidth:
        seconds = charge(Load(stepped=job.nbytes))
        yield "a step", f"{job.nbytes:,} / step_bandwidth{times}", seconds, ["step_bandwidth"]
    if cluster.gather_bandwidth:
        seconds = charge(Load(gathered=job.nbytes))
        formula = f"{job.nbytes:,} / gather_bandwidth{times}"
        yield "gathering a gradient in a vector", formula, seconds, ["gather_bandwidth"]
    seconds = charge(Load(nbytes=job.nbytes))
    yield "a merge", f"{job.nbytes:,} / merge_bandwidth{times}", seconds, ["merge_bandwidth"]
    for prefix, where, there in (
        ("local_", "inside a host", job.hosts < job.workers),
        ("", "between hosts", job.hosts > 1),
    ):
        if there:
            latency, bandwidth = f"{prefix}latency", f"{prefix}bandwidth"
            seconds = getattr(cluster, latency) + job.nbytes / getattr(cluster, bandwidth)
            formula = f"{latency} + {job.nbytes:,} / {bandwidth}"
            yield f"a message {where}", formula, seconds, [latency, bandwidth]
    if job.workers > 1:
        formula, inputs = _sum(cluster, job)
        seconds = cluster.all_reduce(job.nbytes, job.workers, job.hosts)
        yield f"a sum of {job.workers} workers", formula, seconds, inputs


def _sum(cluster: Cluster, job: Job) -> tuple[str, list[str]]:
    """A ring between hosts, and one inside each, or memory that its ranks share."""
    parts, inputs = [], []
    if job.hosts > 1:
        parts.append(f"2({job.hosts}-1)(latency + {job.nbytes:,} / {job.hosts} / bandwidth)")
        inputs += ["latency", "bandwidth"]
    inside = -(-job.workers // job.hosts)
    if inside > 1 and cluster.sum_bandwidth:
        parts.append(f"sum_latency + {job.nbytes:,} / sum_bandwidth")
        inputs += ["sum_latency", "sum_bandwidth"]
    elif inside > 1:
        hop = f"local_latency + {job.nbytes:,} / {inside} / local_bandwidth"
        parts.append(f"2({inside}-1)({hop})")
        inputs += ["local_latency", "local_bandwidth"]
    return " + ".join(parts), inputs


def _matters(cluster: Cluster, name: str) -> bool:
    return bool(getattr(cluster, name) != getattr(Cluster(), name))


def _seconds(seconds: Seconds) -> str:
    for unit, size in (("s", 1.0), ("ms", 1e-3)):
        if seconds >= size:
            return f"{seconds / size:.3g} {unit}"
    return f"{seconds * 1e6:.3g} us"


def _value(value: object) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)
