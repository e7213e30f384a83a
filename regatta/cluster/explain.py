"""What the virtual clock charged a run, in formulas: their inputs, and where those come from."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from regatta.cluster import Cluster
from regatta.cluster.device import Device
from regatta.cluster.units import without_unit
from regatta.comm import Load, Seconds

_DEFAULT = "the default"
_HEADING = re.compile(r"\[+([\w.-]+)\]+")  # of a table, in TOML
_VALUE = re.compile(r"(\s*)([\w-]+)\s*[=:]\s*(.*?)(?:\s#\s*(.+))?$")


def sources_in(text: str) -> dict[str, str]:
    """The remark beside every value of a cluster file; of a table's as `link.card.bandwidth`."""
    found: dict[str, str] = {}
    tables: list[tuple[int, str]] = []  # by how far they are indented, in YAML
    for line in text.splitlines():
        if heading := _HEADING.match(line):
            tables = [(-1, heading[1])]
        elif value := _VALUE.match(line):
            indent, name = len(value[1]), value[2]
            tables = [table for table in tables if table[0] < indent]
            if not value[3]:
                tables.append((indent, name))
            elif value[4]:
                path = [*(table for _, table in tables), without_unit(name)[0]]
                found[".".join(path)] = value[4]
    return found


@dataclass(frozen=True)
class Job:
    """What there is to charge for."""

    workers: int
    hosts: int
    minibatch: int
    nbytes: int  # of the vector


class Input(NamedTuple):
    """What a figure rests on, by its name in a cluster file."""

    name: str
    value: object
    source: str = ""  # where no file tells it


class Figure(NamedTuple):
    name: str
    formula: str
    seconds: Seconds
    inputs: Sequence[Input]


def explained(
    cluster: Cluster, job: Job, sources: Mapping[str, str] | None = None
) -> Iterator[str]:
    """A line a figure, and a line for every value that it rests on."""
    from regatta.cluster.explain_described import described_figures  # it builds on what is here

    told: set[str] = set()
    figures = described_figures if cluster.described else _figures
    for figure in figures(cluster, job):
        yield f"{figure.name}: {figure.formula} = {_seconds(figure.seconds)}"
        for name, value, source in figure.inputs:
            if name not in told:
                told.add(name)
                is_default = value == getattr(Cluster(), name, None)
                known = (sources or {}).get(name, _DEFAULT if is_default else "as given")
                yield f"    {name} = {_value(value)}: {source or known}"


def _figures(cluster: Cluster, job: Job) -> Iterator[Figure]:
    steady = replace(cluster, jitter=0.0, pauses=0.0)
    yield from of_computing(cluster, cluster, steady.computing(0, job.workers), job)
    for prefix, where, there in (
        ("local_", "inside a host", job.hosts < job.workers),
        ("", "between hosts", job.hosts > 1),
    ):
        if there:
            latency, bandwidth = f"{prefix}latency", f"{prefix}bandwidth"
            seconds = getattr(cluster, latency) + job.nbytes / getattr(cluster, bandwidth)
            formula = f"{latency} + {job.nbytes:,} / {bandwidth}"
            inputs = of_cluster(cluster, latency, bandwidth)
            yield Figure(f"a message {where}", formula, seconds, inputs)
    if job.workers > 1:
        formula, names = _sum(cluster, job)
        seconds = cluster.all_reduce(job.nbytes, job.workers, job.hosts)
        yield Figure(f"a sum of {job.workers} workers", formula, seconds,
                     of_cluster(cluster, *names))  # fmt: skip


def of_cluster(cluster: Cluster, *names: str) -> list[Input]:
    return [Input(name, getattr(cluster, name)) for name in names]


def of_computing(
    cluster: Cluster,
    device: Device,
    charge: Callable[[Load], Seconds],
    job: Job,
    on: str = "",
    named: Callable[[str], str] = str,
    worker: int = 0,
) -> Iterator[Figure]:
    """Gradients, steps and merges on a kind of device, whose values are `named` by its file."""
    slower = [name for name in ("crowded", "paces", "uneven") if _matters(cluster, name)]
    times = "".join(f" * {name}" for name in slower)

    def inputs(*names: str) -> list[Input]:
        return [Input(named(name), getattr(device, name)) for name in names]

    if device.curve:
        formula, computing = f"{named('curve')} at {job.minibatch} samples", inputs("curve")
    else:
        fixed, each = named("batch_seconds"), named("sample_seconds")
        formula = f"{fixed} + {job.minibatch} * {each}"
        computing = inputs("batch_seconds", "sample_seconds")
    varying = [name for name in ("jitter", "pauses") if _matters(cluster, name)]
    seconds = charge(Load(samples=job.minibatch))
    yield Figure(f"a gradient of worker {worker}{on}", formula + times, seconds,
                 computing + of_cluster(cluster, *slower, *varying))  # fmt: skip
    if device.step_bandwidth:
        formula = f"{job.nbytes:,} / {named('step_bandwidth')}{times}"
        yield Figure(f"a step{on}", formula, charge(Load(stepped=job.nbytes)),
                     inputs("step_bandwidth"))  # fmt: skip
    if device.gather_bandwidth:
        formula = f"{job.nbytes:,} / {named('gather_bandwidth')}{times}"
        yield Figure(f"gathering a gradient in a vector{on}", formula,
                     charge(Load(gathered=job.nbytes)), inputs("gather_bandwidth"))  # fmt: skip
    formula = f"{job.nbytes:,} / {named('merge_bandwidth')}{times}"
    yield Figure(f"a merge{on}", formula, charge(Load(nbytes=job.nbytes)),
                 inputs("merge_bandwidth"))  # fmt: skip


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
