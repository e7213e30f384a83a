"""nccl-tests (`all_reduce_perf` and others): seconds by size, and the line through them."""

from __future__ import annotations

import re
from dataclasses import dataclass

from regatta.cluster.formats import Unreadable
from regatta.comm import Seconds

_ROW = re.compile(
    r"^\s*(?:\[[^\]]*\]\s*)?(\d+)\s+(\d+)\s+(\w+)\s+(\w+)\s+(-?\d+)\s+(\S+)\s+(\S+)\s+(\S+)"
)
_RANK = re.compile(r"^#\s+Rank\s+(\d+)\b.*?(?:on\s+(\S+))?\s+device", re.IGNORECASE)
_NAME = re.compile(r"(\w+)_perf")


@dataclass(frozen=True)
class Sizes:
    """One operation of so many ranks."""

    operation: str  # all_reduce, broadcast, ...; empty: not told
    ranks: int  # 0: not told
    hosts: int
    seconds: tuple[tuple[int, Seconds], ...]  # by bytes


def read_nccl_tests(text: str) -> Sizes:
    """Times out of place, which are the first of a row."""
    operation, ranks, hosts, rows = "", 0, set(), []
    for number, line in enumerate(text.splitlines(), 1):
        rank = _RANK.match(line.strip())
        if rank:
            ranks += 1
            hosts.add(rank[2] or "")
            continue
        named = _NAME.search(line)
        if named and not operation:
            operation = named[1]
        row = _ROW.match(line)
        if not row or line.lstrip().startswith("#"):
            continue
        nbytes = int(row[1])
        try:
            microseconds = float(row[6])
        except ValueError:
            raise Unreadable(f"line {number}: {row[6]} is not a time in us") from None
        if microseconds <= 0:
            raise Unreadable(f"line {number}: a time of {row[6]} us")
        if nbytes:
            rows.append((nbytes, microseconds * 1e-6))
    if not rows:
        raise Unreadable(
            "no line with size, count, type, redop, root and time: is this the output of "
            "nccl-tests (all_reduce_perf)?"
        )
    return Sizes(operation, ranks, len(hosts), tuple(sorted(rows)))
