"""`regatta topology`: the order of devices in a ring, and which of them to leave out."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.box import SIMPLE_HEAD
from rich.table import Table

from regatta.cli.common import AsJson, app, err, out

if TYPE_CHECKING:
    from regatta.cluster.paths import Paths
    from regatta.cluster.rings import Advice, Choice, Setting
    from regatta.cluster.topology import Topology


@app.command()
def topology(
    file: Annotated[
        str,
        typer.Argument(
            help="output of nvidia-smi topo -m or NCCL's XML (- for a pipe); a cluster that "
            "describes its hosts, as hu-8; or hu, whose links have NCCL's figures"
        ),
    ],
    megabytes: Annotated[
        float, typer.Option("--megabytes", help="that a step sums up: four a million weights")
    ] = 178.0,
    compute: Annotated[
        float | None,
        typer.Option(
            "--compute-seconds", help="of one worker's minibatch; else a cluster's, or 0.1"
        ),
    ] = None,
    samples: Annotated[int, typer.Option("--samples", help="of one worker's minibatch")] = 512,
    pairs: Annotated[
        Path | None, typer.Option("--pairs", help="output of p2pBandwidthLatencyTest")
    ] = None,
    sums: Annotated[
        Path | None, typer.Option("--sums", help="output of nccl-tests' all_reduce_perf")
    ] = None,
    reached: Annotated[
        float, typer.Option("--reached", help="what a program makes of links: 1 is all")
    ] = 1.0,
    explain: Annotated[bool, typer.Option("--explain", help="formulas, inputs, sources")] = False,
    as_json: AsJson = False,
) -> None:
    """Advise how to use the devices of a host: the order of a ring, and whom to leave out."""
    from regatta.cluster.rings import Setting, advise

    cluster = _cluster(file)
    found = _read(file) if cluster is None else cluster.topology(0)
    seconds, source = _computing(compute, cluster, samples)
    setting = Setting(seconds, megabytes * 1e6, samples)
    if pairs is not None:
        found = _with_pairs(found, pairs)
    found = found.slowed(_reached(found, sums, reached))
    advice = advise(found, setting)
    for warning in found.warnings:
        err.print(f"warning: {warning}", markup=False)
    if as_json:
        print(json.dumps(_plain(found, advice)))
        return
    out.print(_table(found, advice))
    out.print(_verdict(found, advice), markup=False)
    if explain:
        for line in _explained(found, advice.best, setting, source):
            out.print(line, markup=False, soft_wrap=True)


def _read(file: str) -> Topology:
    from regatta.cluster import formats
    from regatta.cluster.formats.topology import read_topology
    from regatta.cluster.machines import topologies

    shipped = topologies()
    if file in shipped:
        text = shipped[file]
    elif file == "-":
        text = sys.stdin.read()
    else:
        text = _text(Path(file), f"; or a shipped machine: {', '.join([*shipped, *_described()])}")
    try:
        return read_topology(text)
    except formats.Unreadable as error:
        raise ValueError(f"{file}: {error}") from None


def _described() -> list[str]:
    """Shipped clusters that say how their devices are joined."""
    from regatta.cluster.files import known_clusters, load_cluster

    return [name for name in known_clusters() if load_cluster(name).described]


def _cluster(name: str) -> Paths | None:
    """None: the file is another tool's."""
    from regatta.cluster.files import known_clusters, load_cluster
    from regatta.cluster.machines import topologies
    from regatta.cluster.paths import Paths

    is_file = name.endswith((".toml", ".yaml", ".yml", ".json"))
    if name in topologies() or not (is_file or name in known_clusters()):
        return None
    cluster = load_cluster(name)
    if not cluster.described:
        others = ", ".join(_described())
        raise ValueError(
            f"{name} describes equal hosts, and not how their devices are joined; give what "
            f"nvidia-smi topo -m prints, or a cluster with [[host]] tables: {others}"
        )
    return Paths(cluster)


def _computing(given: float | None, cluster: Paths | None, samples: int) -> tuple[float, str]:
    """Seconds of one worker's minibatch, and who says so: of the slowest device of a host."""
    if given is not None:
        return given, "--compute-seconds"
    if cluster is None:
        return 0.1, "the default of --compute-seconds"
    each = cluster.minibatch(0, samples)
    return max((seconds, f"{samples} samples on a {kind}") for kind, seconds in each)


def _text(path: Path, otherwise: str = "") -> str:
    try:
        return path.read_text(errors="replace")
    except OSError as error:
        raise ValueError(f"{path}: {error.strerror}{otherwise}") from None


def _with_pairs(found: Topology, path: Path) -> Topology:
    from regatta.cluster.formats import Unreadable
    from regatta.cluster.formats.pairs import read_pairs

    try:
        measured = read_pairs(_text(path))
    except Unreadable as error:
        raise ValueError(f"{path}: {error}") from None
    # Its devices are numbers; the names of the topology end in them.
    numbers = {int(name.removeprefix("GPU")): place for place, name in enumerate(found.devices)}
    strangers = {d for pair in measured.bandwidths for d in pair if d not in numbers}
    if strangers:
        raise ValueError(f"{path}: tells of device {min(strangers)}, which the topology has not")
    known = {
        (min(a, b), max(a, b)): bandwidth
        for (a, b), bandwidth in (
            ((numbers[a], numbers[b]), value) for (a, b), value in measured.bandwidths.items()
        )
    }
    return found.with_measured(known, f"measured: {path.name}")


def _reached(found: Topology, sums: Path | None, reached: float) -> float:
    """Of the bandwidth of the best ring of all devices, by a measured sum if there is one."""
    if sums is None:
        if not 0 < reached < float("inf"):
            raise ValueError(f"--reached must be more than 0, not {reached:g}")
        return reached
    from regatta.cluster.fit import fit_line
    from regatta.cluster.formats import Unreadable
    from regatta.cluster.formats.nccl_tests import read_nccl_tests
    from regatta.cluster.rings import best_ring

    try:
        sizes = read_nccl_tests(_text(sums))
    except Unreadable as error:
        raise ValueError(f"{sums}: {error}") from None
    ranks = sizes.ranks or len(found.devices)
    if sizes.operation not in ("", "all_reduce"):
        raise ValueError(f"{sums}: times of {sizes.operation}; give those of all_reduce_perf")
    if sizes.hosts > 1 or ranks != len(found.devices):
        raise ValueError(
            f"{sums}: a sum of {ranks} ranks on {max(sizes.hosts, 1)} hosts; give one of all "
            f"{len(found.devices)} devices of this host"
        )
    line = fit_line(sizes.seconds)
    for remark in line.remarks:
        err.print(f"warning: {sums.name}: {remark}", markup=False)
    if line.bandwidth is None:
        raise ValueError(f"{sums}: no message was large enough to tell a bandwidth: -e 1G")
    carried = 2 * (ranks - 1) / ranks * line.bandwidth
    return carried / best_ring(found, range(len(found.devices))).bandwidth


# -- what is said -----------------------------------------------------------------------------


def _names(found: Topology, devices: Any) -> str:
    return " ".join(found.devices[device] for device in devices)


def _table(found: Topology, advice: Advice) -> Table:
    table = Table(title="the best ring of every number of devices", box=SIMPLE_HEAD)
    for heading in ("devices", "step, ms", "samples/s", "speedup"):
        table.add_column(heading, justify="right", no_wrap=True)
    table.add_column("slowest hop", no_wrap=True)
    gpus = all(name.startswith("GPU") for name in found.devices)  # one word says it for all
    table.add_column("ring of GPUs" if gpus else "ring")
    for choice in advice.choices:
        ring, style = choice.ring, "bold" if choice == advice.best else ""
        a, b = ring.slowest
        hop = "" if a == b else f"{found.devices[a]}-{found.devices[b]}, {_gigabytes(choice)} GB/s"
        order = _names(found, ring.order)
        hop, order = (text.replace("GPU", "") if gpus else text for text in (hop, order))
        table.add_row(
            str(len(ring.order)), f"{1000 * choice.step_seconds:.1f}",
            f"{choice.speed:,.{1 if choice.speed < 1000 else 0}f}",
            f"{choice.speedup:.2f}", hop, order, style=style,
        )  # fmt: skip
    return table


def _gigabytes(choice: Choice) -> str:
    return f"{choice.ring.bandwidth / 1e9:.3g}"


def _verdict(found: Topology, advice: Advice) -> str:
    best = advice.best
    ring = f"ring: {_names(found, best.ring.order)}"
    if not best.ring.proved:
        ring += " (the best of the orders that were tried)"
    if not best.left_out:
        return f"Use all {len(best.ring.order)} devices. {ring}"
    left = _names(found, best.left_out)
    return f"Leave out {left}: {100 * (advice.gain - 1):.0f} % more samples a second. {ring}"


def _explained(found: Topology, choice: Choice, setting: Setting, source: str) -> list[str]:
    ring, ranks = choice.ring, len(choice.ring.order)
    lines = [f"compute = {setting.compute_seconds:g} s ({source})"]
    if ranks > 1:
        path = found.path(*ring.slowest)
        a, b = (found.devices[device] for device in ring.slowest)
        lines += [
            f"sum = 2 (P - 1) (latency + bytes / P / bandwidth) = "
            f"{ring.seconds(setting.nbytes):.4g} s with P = {ranks}, "
            f"bytes = {setting.nbytes:g} (--megabytes)",
            f"bandwidth = {ring.bandwidth:.4g} bytes/s of the slowest hop, {a}-{b} ({path.kind}): "
            f"{path.bandwidth:.4g} for it alone ({path.source}), shared by "
            f"{path.bandwidth / ring.bandwidth:.3g}",
            f"latency = {ring.latency:.3g} s, the longest of its hops",
        ]
    lines.append(
        f"step = compute + sum = {choice.step_seconds:.4g} s; "
        f"samples/s = P x {setting.samples} / step = {choice.speed:,.0f}"
    )
    return lines


def _plain(found: Topology, advice: Advice) -> dict[str, Any]:
    def told(choice: Choice) -> dict[str, Any]:
        return {
            "ring": [found.devices[device] for device in choice.ring.order],
            "left_out": [found.devices[device] for device in choice.left_out],
            "slowest_hop": [found.devices[device] for device in choice.ring.slowest],
            "bandwidth": None if len(choice.ring.order) < 2 else choice.ring.bandwidth,
            "proved": choice.ring.proved,
            "step_seconds": choice.step_seconds,
            "samples_per_second": choice.speed,
            "speedup": choice.speedup,
        }

    return {
        "devices": list(found.devices),
        "advised": told(advice.best),
        "gain": advice.gain,
        "choices": [told(choice) for choice in advice.choices],
        "warnings": list(found.warnings),
    }
