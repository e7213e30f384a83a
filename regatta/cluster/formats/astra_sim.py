"""Networks of ASTRA-sim's analytical backend: one line a dimension, the innermost first."""

from __future__ import annotations

from typing import Any

import yaml

from regatta.cluster import Cluster
from regatta.cluster.formats import Unreadable

_KINDS = ("Ring", "FullyConnected", "Switch")


def read_astra_sim(text: str) -> Cluster:
    """One or two dimensions: devices of a host, and hosts. GB a second and nanoseconds."""
    try:
        given = yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise Unreadable(f"not YAML: {str(error).splitlines()[0]}") from None
    if not isinstance(given, dict) or "topology" not in given:
        raise Unreadable("no `topology:` in it; ASTRA-sim's networks have topology, npus_count, "
                         "bandwidth and latency")  # fmt: skip
    kinds = _row(given, "topology")
    for kind in kinds:
        if kind not in _KINDS:
            raise Unreadable(f"topology {kind}: one of {', '.join(_KINDS)}")
    counts, bandwidths, latencies = (
        [_number(each, key) for each in _row(given, key, len(kinds))]
        for key in ("npus_count", "bandwidth", "latency")
    )
    if len(kinds) > 2:
        raise Unreadable(
            f"{len(kinds)} dimensions; a cluster here has devices in hosts: give two at most"
        )
    per_host = counts[0] if len(kinds) == 2 else 1
    if per_host != int(per_host) or per_host < 1:
        raise Unreadable(f"npus_count {per_host:g} is not a whole number above 0")
    return Cluster(
        per_host=int(per_host),
        local_bandwidth=bandwidths[0] * 1e9,
        local_latency=latencies[0] * 1e-9,
        bandwidth=bandwidths[-1] * 1e9,
        latency=latencies[-1] * 1e-9,
    )


def _row(given: dict[str, Any], key: str, length: int | None = None) -> list[Any]:
    row = given.get(key)
    if not isinstance(row, list) or not row:
        raise Unreadable(f"{key} must be a list, a value a dimension")
    if length is not None and len(row) != length:
        raise Unreadable(f"{key} has {len(row)} values, topology {length}")
    return row


def _number(value: Any, key: str) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not value >= 0:
        raise Unreadable(f"{key}: {value!r} is not a number that is not negative")
    if key != "latency" and not 0 < value < float("inf"):
        raise Unreadable(f"{key}: {value!r} must be more than 0")
    return float(value)
