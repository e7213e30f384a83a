"""`p2pBandwidthLatencyTest` of the CUDA samples: bandwidths and latencies of pairs of devices."""

from __future__ import annotations

import re
from dataclasses import dataclass

from regatta.cluster.formats import Unreadable

_BANDWIDTH = re.compile(r"^Unidirectional P2P=(Enabled|Disabled) Bandwidth.*Matrix \(GB/s\)")
_LATENCY = re.compile(r"^P2P=(Enabled|Disabled) Latency.*Matrix \(us\)")

Pairs = dict[tuple[int, int], float]


@dataclass(frozen=True)
class Measured:
    """Of pairs (a, b) with a < b, in the slower of the two directions."""

    bandwidths: Pairs  # bytes a second, one way
    latencies: Pairs  # seconds
    peer_to_peer: bool  # False: devices could only talk through the host's memory


def read_pairs(text: str) -> Measured:
    """Peer-to-peer figures where the tool has them. Figures for both ways at once are not used:
    they are sums of both directions, which links with full duplex have twice."""
    tables: dict[tuple[str, str], Pairs] = {}
    lines = text.splitlines()
    for number, line in enumerate(lines):
        for what, pattern in (("bandwidth", _BANDWIDTH), ("latency", _LATENCY)):
            found = pattern.match(line.strip())
            if found:
                worse = min if what == "bandwidth" else max
                both = _matrix(lines, number + 1)
                tables[what, found[1]] = {pair: worse(values) for pair, values in both.items()}
    if not any(what == "bandwidth" for what, _ in tables):
        raise Unreadable(
            "no table 'Unidirectional P2P=... Bandwidth Matrix (GB/s)': is this the whole output "
            "of p2pBandwidthLatencyTest?"
        )
    used = "Enabled" if ("bandwidth", "Enabled") in tables else "Disabled"
    bandwidths = {pair: 1e9 * value for pair, value in tables["bandwidth", used].items()}
    latencies = {pair: 1e-6 * value for pair, value in tables.get(("latency", used), {}).items()}
    return Measured(bandwidths, latencies, used == "Enabled")


def _matrix(lines: list[str], start: int) -> dict[tuple[int, int], list[float]]:
    """Of pairs, what was measured in either direction. The diagonal is a device's own memory."""
    columns = lines[start].split()[1:] if start < len(lines) else []
    if not columns or not all(cell.isdigit() for cell in columns):
        raise Unreadable(f"line {start + 1}: the numbers of the devices are missing")
    found: dict[tuple[int, int], list[float]] = {}
    for offset, name in enumerate(columns):
        number = start + 1 + offset
        cells = lines[number].split() if number < len(lines) else []
        if len(cells) != len(columns) + 1 or cells[0] != name:
            raise Unreadable(f"line {number + 1}: the row of device {name} is missing or cut short")
        for column, cell in zip(columns, cells[1:], strict=True):
            if column == name or cell == "N/A":
                continue
            a, b = sorted((int(name), int(column)))
            found.setdefault((a, b), []).append(_positive(cell, number))
    return found


def _positive(cell: str, number: int) -> float:
    try:
        value = float(cell)
    except ValueError:
        value = -1.0
    if not 0 < value < float("inf"):
        raise Unreadable(f"line {number + 1}: {cell} is not a number above 0")
    return value
