"""Networks of ASTRA-sim's analytical backend: one line a dimension, the innermost first."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from regatta.cluster.formats import Unreadable

_KINDS = ("Ring", "FullyConnected", "Switch")


class _Dimension(NamedTuple):
    kind: str
    size: int
    bandwidth: float  # GB a second of every device in it
    latency: float  # nanoseconds


def astra_sim_as_toml(given: Mapping[str, Any]) -> str:
    """As a cluster file: devices in hosts, hosts on a switch, switches on others.

    Its bandwidths are those of every device. Here the devices of a host share the host's network
    card, and hosts the link of their switch: both are as wide as all who share them.
    """
    return "\n".join(_lines(_dimensions(given))) + "\n"


def _lines(dimensions: list[_Dimension]) -> Iterator[str]:
    inside = dimensions[0] if len(dimensions) > 1 else None
    above = dimensions[1:] if inside else dimensions
    per_host = inside.size if inside else 1
    hosts, below = 1, per_host
    for each in above:
        hosts *= each.size
    shape = " x ".join(f"{each.kind} of {each.size}" for each in dimensions)
    yield f"# A network of ASTRA-sim: {shape}. It tells nothing of how fast devices compute."
    if inside:
        yield f"local_bandwidth_gigabytes = {inside.bandwidth!r}  # {_source(1, inside)}"
        yield f"local_latency_nanoseconds = {inside.latency!r}  # {_source(1, inside)}"
    number = 2 if inside else 1
    yield (f"bandwidth_gigabytes = {per_host * above[0].bandwidth!r}  "
           f"# {_source(number, above[0])}{_shared_by(per_host)}")  # fmt: skip
    yield f"latency_nanoseconds = {above[0].latency!r}  # {_source(number, above[0])}"
    if len(above) == 1:
        yield f"per_host = {per_host}"
        yield f"devices = {hosts * per_host}"
        return
    yield "\n[device.npu]"
    switches, joined = hosts, above[1:]
    for level, each in enumerate(joined, 1):
        below *= above[level - 1].size
        switches //= above[level - 1].size
        source = _source(number + level, each)
        yield f"\n[link.dimension-{number + level}]"
        yield f"bandwidth_gigabytes = {below * each.bandwidth!r}  # {source}{_shared_by(below)}"
        yield f"latency_nanoseconds = {each.latency!r}  # {source}"
        yield f"\n[switch.level-{level}]"
        yield f"count = {switches}"
        yield f'link = "dimension-{number + level}"'
        if level < len(joined):
            yield f'above = "level-{level + 1}"'
    yield "\n[[host]]"
    yield 'name = "host"'
    yield f"count = {hosts}"
    yield f'devices = ["{per_host} npu"]'
    yield 'switch = "level-1"'


def _source(number: int, dimension: _Dimension) -> str:
    return f"dimension {number}, {dimension.kind} of {dimension.size}"


def _shared_by(devices: int) -> str:
    return f", {devices} times, for as many devices share it" if devices > 1 else ""


def _dimensions(given: Mapping[str, Any]) -> list[_Dimension]:
    kinds = _row(given, "topology")
    for kind in kinds:
        if kind not in _KINDS:
            raise Unreadable(f"topology {kind}: one of {', '.join(_KINDS)}")
    counts, bandwidths, latencies = (
        [_number(each, key) for each in _row(given, key, len(kinds))]
        for key in ("npus_count", "bandwidth", "latency")
    )
    for count in counts:
        if count != int(count):
            raise Unreadable(f"npus_count {count:g} is not a whole number above 0")
    whole = map(int, counts)
    return [_Dimension(*each) for each in zip(kinds, whole, bandwidths, latencies, strict=True)]


def _row(given: Mapping[str, Any], key: str, length: int | None = None) -> list[Any]:
    row = given.get(key)
    if not isinstance(row, list) or not row:
        raise Unreadable(f"{key} must be a list, a value a dimension")
    if length is not None and len(row) != length:
        raise Unreadable(f"{key} has {len(row)} values, topology {length}")
    return row


def _number(value: Any, key: str) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise Unreadable(f"{key}: {value!r} is not a number")
    if not (0 < value < float("inf") or (key == "latency" and value == 0)):
        raise Unreadable(f"{key}: {value!r} must be more than 0")
    return float(value)
