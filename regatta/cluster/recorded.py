"""A cluster from the events of a run: what its workers computed, merged and waited for."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import pairwise
from statistics import fmean, median, pstdev
from typing import Any

from regatta.cluster import Cluster
from regatta.cluster.probe import Fitted
from regatta.comm import Seconds
from regatta.events import Event, RankEnded, Spans

_APART = 3.0  # merges are told from gradients where they are so many times as short
_PAUSE = 2.0  # as in a probe


def recorded(events: Iterable[Event], minibatch: int, devices: int, sums: bool) -> Fitted:
    """Of a run on processes; `sums`: its workers wait for nothing but sums of all of them.

    The workers' own times are those of a full host, so nothing is charged for crowding. One run has
    one minibatch and one vector: what a part of a time is fixed, and what grows, it does not tell.
    """
    events = list(events)
    ended = {e.rank: e for e in events if isinstance(e, RankEnded)}
    workers = sorted(rank for rank, end in ended.items() if end.role == "worker")
    if not workers:
        raise ValueError("no worker of this run has ended: let it end, or probe the machine")
    spans = _durations(events)
    told: dict[str, tuple[Any, str]] = {
        "devices": (devices, "what this process may use"),
        "per_host": (devices, "likewise"),
    }
    remarks = ["one minibatch: its fixed part could not be told from the part of every sample"]
    gradients, merges = _parted([spans.get((rank, "c"), []) for rank in workers])
    if not all(gradients):
        raise ValueError("this run has no spans of computing: train with recording.spans=1000")
    own = [median(times) for times in gradients]
    count = sum(map(len, gradients))
    told["curve"] = ((minibatch, fmean(own)),), f"medians of {count} gradients"
    told["paces"] = tuple(each / fmean(own) for each in own), "medians of each worker / their mean"
    usual = [
        seconds / centre
        for times, centre in zip(gradients, own, strict=True)
        for seconds in times
        if seconds < _PAUSE * centre
    ]
    told["jitter"] = pstdev(usual), f"{len(usual)} gradients against their medians"
    first = ended[workers[0]]
    nbytes = first.bytes / max(first.messages, 1)
    servers = [rank for rank in ended if rank not in workers]
    merges += [spans.get((rank, "c"), []) for rank in servers]
    merging = [seconds for times in merges for seconds in times]
    if merging:
        bandwidth = nbytes / median(merging)
        told["merge_bandwidth"] = bandwidth, f"{len(merging)} merges of {nbytes:,.0f} bytes"
    else:
        remarks.append("merges could not be told: this strategy makes none")
    waits = [spans.get((rank, "w"), []) for rank in workers]
    if sums and len(workers) > 1 and all(waits):
        # Who comes last waits for the sum alone.
        seconds = median(min(meeting) for meeting in zip(*waits, strict=False))
        told["sum_bandwidth"] = nbytes / seconds, f"sums of {nbytes:,.0f} bytes, the last to come"
        remarks.append("one size of sums: latency could not be told from bandwidth")
    else:
        remarks.append("sums could not be told: this strategy's workers wait for other things too")
    values = {name: value for name, (value, _) in told.items()}
    sources = {name: source for name, (_, source) in told.items()}
    return Fitted(Cluster(**values), sources, remarks)


def _durations(events: Iterable[Event]) -> dict[tuple[int, str], list[Seconds]]:
    found: dict[tuple[int, str], list[Seconds]] = {}
    for event in events:
        if isinstance(event, Spans):
            for kind, start, end in zip(event.kinds, event.starts, event.ends, strict=True):
                found.setdefault((event.rank, kind), []).append(end - start)
    return found


def _parted(
    computing: Sequence[Sequence[Seconds]],
) -> tuple[list[list[Seconds]], list[list[Seconds]]]:
    """Gradients and merges of every worker: parted by the widest gap, where that is wide."""
    every = sorted(seconds for times in computing for seconds in times if seconds > 0)
    ratio, edge = max(
        ((more / less, (less + more) / 2) for less, more in pairwise(every)), default=(0.0, 0.0)
    )
    shorter = sum(seconds < edge for seconds in every)
    if ratio < _APART or not 0.25 < shorter / len(every) < 0.75:
        return [list(times) for times in computing], []
    return (
        [[seconds for seconds in times if seconds >= edge] for times in computing],
        [[seconds for seconds in times if seconds < edge] for times in computing],
    )
