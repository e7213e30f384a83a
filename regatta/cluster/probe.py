"""From what was measured on a machine to a cluster that the virtual clock can charge by."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations, pairwise
from statistics import fmean, median

from regatta.cluster import Cluster
from regatta.cluster.fit import fit_line
from regatta.comm import Seconds

_PAUSE = 2.0  # what takes so many times the usual was interrupted
_AT_ONCE = 1e15  # bytes a second of what is too fast to be seen
_OF_A_GAP = math.sqrt(math.pi) / 2  # the spread of normal values over the mean gap of two of them


@dataclass(frozen=True)
class Measured:
    """By the workers of one host, in several starts. A list of times is one worker's."""

    nbytes: int  # of the vector
    alone: Mapping[int, Sequence[Seconds]]  # worker 0's gradients by minibatch, nobody else's
    together: Mapping[int, Sequence[Sequence[Sequence[Seconds]]]]  # all at once; by start, worker
    steps: Sequence[Sequence[Seconds]]  # of the optimiser, in place
    gathers: Sequence[Sequence[Seconds]]  # that gradients take longer as one vector
    merges: Sequence[Sequence[Seconds]]  # of a gradient into a model that came from another worker
    exchanges: Sequence[Sequence[Seconds]] = ()  # a sum of all workers' vectors, and a step with it
    messages: Sequence[tuple[int, Seconds]] = ()  # one way
    sums: Sequence[tuple[int, Seconds]] = ()


@dataclass(frozen=True)
class Fitted:
    """A cluster, where each of its values comes from, and what could not be told."""

    cluster: Cluster
    sources: Mapping[str, str] = field(default_factory=dict)
    remarks: Sequence[str] = ()


def fitted(measured: Measured, devices: int) -> Fitted:
    """As many `devices` as the host has."""
    fit = _Fit(measured)
    return Fitted(
        Cluster(per_host=devices, devices=devices, **fit.values),  # type: ignore[arg-type]
        fit.sources | {"devices": "what this process may use", "per_host": "likewise"},
        fit.remarks,
    )


class _Fit:
    def __init__(self, measured: Measured) -> None:
        self._measured = measured
        self.values: dict[str, object] = {}
        self.sources: dict[str, str] = {}
        self.remarks: list[str] = []
        self._workers = len(measured.steps)
        self._computing()
        self._variation()
        self._vectors()
        if self._workers > 1:
            self._messages()
            self._sums()
        else:
            self.remarks.append("links and sums could not be told: there was one worker")

    def _tell(self, name: str, value: object, source: str) -> None:
        self.values[name], self.sources[name] = value, source

    def _computing(self) -> None:
        found = self._measured
        curve = tuple((m, _usual(times)) for m, times in sorted(found.alone.items()))
        count = sum(len(times) for times in found.alone.values())
        self._tell(
            "curve", curve, f"means of {count} gradients of one worker alone, without pauses"
        )
        ratios = [
            fmean(_usual(times) for start in starts for times in start) / _usual(found.alone[m])
            for m, starts in found.together.items()
        ]
        self._crowded = max(median(ratios), 1.0) if self._workers > 1 else 1.0
        if self._workers > 1:
            source = f"{self._workers} workers at once / one alone"
            self._tell("crowded", self._crowded, source)

    def _variation(self) -> None:
        """Each worker's own pace, its luck in a start, how gradients vary, rare interruptions."""
        found = self._measured.together
        starts = [start for starts in found.values() for start in starts]
        centres = [[_usual(times) for times in start] for start in starts]
        if self._workers > 1:
            self._paces([[own / fmean(start) for own in start] for start in centres], len(found))
        relative = [
            [[seconds / centre for seconds in times] for times, centre in zip(*both, strict=True)]
            for both in zip(starts, centres, strict=True)
        ]
        every = [each for start in relative for times in start for each in times]
        source = f"how far {len(every)} gradients of a start lie apart, two by two"
        self._tell("jitter", _apart(relative), source)
        pauses = sum(each >= _PAUSE for each in every)
        if not pauses:
            self.remarks.append(f"pauses could not be told: none in {len(every)} gradients")
            return
        beyond = [
            seconds - centre
            for both in zip(starts, centres, strict=True)
            for times, centre in zip(*both, strict=True)
            for seconds in times
            if seconds >= _PAUSE * centre
        ]
        source = f"{pauses} of {len(every)} gradients took {_PAUSE:g} times the mean or more"
        self._tell("pauses", pauses / len(every), source)
        self._tell("pause_seconds", fmean(beyond), source)

    def _paces(self, slow: Sequence[Sequence[float]], minibatches: int) -> None:
        """How slow the workers were, by minibatch and start: what is always so, and what is luck.

        A start has its luck with all minibatches: they are taken together.
        """
        count = len(slow) // minibatches
        starts = [
            [fmean(own) for own in zip(*slow[start::count], strict=True)] for start in range(count)
        ]
        paces = [fmean(own) for own in zip(*starts, strict=True)]
        self._tell("paces", tuple(paces), "means of each worker / the mean of all")
        luck = [[[own / pace] for own, pace in zip(s, paces, strict=True)] for s in starts]
        # Of few starts the mean lies nearer to them than to what it estimates.
        spread = _apart(luck) * math.sqrt(count / (count - 1)) if count > 1 else 0.0
        self._tell("uneven", spread, f"how far they lie apart from that in {count} starts")

    def _vectors(self) -> None:
        """Measured while all workers do so: the clock makes them as slow again."""
        found = self._measured
        for name, times, middle in (
            ("step_bandwidth", found.steps, _usual),
            ("gather_bandwidth", found.gathers, median),  # differences: some are below zero
            ("merge_bandwidth", found.merges, _usual),
        ):
            seconds = fmean(map(middle, times)) / self._crowded
            bandwidth = found.nbytes / seconds if seconds > found.nbytes / _AT_ONCE else _AT_ONCE
            count = sum(map(len, times))
            self._tell(name, bandwidth, f"{count} times {found.nbytes:,} bytes")

    def _messages(self) -> None:
        line = fit_line(self._measured.messages)
        self.remarks += [f"messages: {remark}" for remark in line.remarks]
        source = f"messages of {_sizes(self._measured.messages)}, line within {line.error:.0%}"
        self._tell("local_latency", line.fixed or 0.0, source)
        self._tell("local_bandwidth", line.bandwidth or _AT_ONCE, source)

    def _sums(self) -> None:
        """Small sums tell what meeting costs; the vector itself, between gradients, the rest."""
        found = self._measured
        meeting = min(seconds for _, seconds in found.sums)
        whole = fmean(map(_usual, found.exchanges)) - fmean(map(_usual, found.steps))
        if whole <= meeting:
            self.remarks.append("the bandwidth of sums could not be told: a step hides them")
        meeting = max(min(meeting, whole), 0.0)
        rest = whole - meeting
        bandwidth = found.nbytes / rest if rest > found.nbytes / _AT_ONCE else _AT_ONCE
        source = f"sums of {_sizes(found.sums)}, and of the vector with a step, less the step"
        self._tell("sum_latency", meeting, source)
        self._tell("sum_bandwidth", bandwidth, source)


def _apart(groups: Sequence[Sequence[Sequence[float]]]) -> float:
    """The coefficient of variation by which workers would wait for each other as long.

    A group has the workers' times of a start, over their means. Those that two workers had at once
    are compared; a lone worker's are taken in pairs. It goes by what varying costs where somebody
    waits: rare slow ones cost less than their squares say, and what makes all workers slower at
    once costs nothing there.
    """
    gaps = []
    for group in groups:
        at_once = (pair for two in combinations(group, 2) for pair in zip(*two, strict=True))
        pairs = at_once if len(group) > 1 else pairwise(group[0])
        gaps += [abs(one - other) for one, other in pairs if max(one, other) < _PAUSE]
    return fmean(gaps) * _OF_A_GAP if gaps else 0.0


def _usual(times: Sequence[Seconds]) -> Seconds:
    """The mean without pauses: of many steps it is the sum that counts."""
    limit = _PAUSE * median(times)
    return fmean(seconds for seconds in times if seconds < limit) if limit > 0 else median(times)


def _sizes(points: Sequence[tuple[int, Seconds]]) -> str:
    sizes = [nbytes for nbytes, _ in points]
    return f"{min(sizes):,} to {max(sizes):,} bytes"


def as_toml(fit: Fitted, title: str) -> str:
    """A cluster file; every value with its source beside it."""
    lines = [f"# {title}"]
    for name, source in fit.sources.items():
        lines.append(f"{name} = {toml_value(getattr(fit.cluster, name))}  # {source}")
    lines += [f"# {remark}" for remark in fit.remarks]
    return "\n".join(lines) + "\n"


def toml_value(value: object) -> str:
    if isinstance(value, tuple):
        return "[" + ", ".join(map(toml_value, value)) + "]"
    if isinstance(value, bool | str):
        return json.dumps(value)
    return f"{value:.6g}" if isinstance(value, float) else str(value)
