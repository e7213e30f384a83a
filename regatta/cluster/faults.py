"""What goes wrong, as data: a rank that is slow for a while or dies, a host or link that is cut.

In a cluster each is one line of text: `slow rank=1 factor=3 from=2 to=5`, `crash rank=2 at=4`,
`cut host=0 from=1 to=2`, `cut link=uplink from=1 to=2`; times are seconds of the virtual clock.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, TypeAlias

from regatta.comm import Seconds
from regatta.plain import shown


@dataclass(frozen=True)
class Slow:
    """All that a rank computes takes longer, from one moment to another."""

    rank: int
    factor: float
    since: Seconds
    until: Seconds


@dataclass(frozen=True)
class Crash:
    """A rank dies: it does, sends and receives nothing more."""

    rank: int
    at: Seconds


@dataclass(frozen=True)
class Cut:
    """A host's card carries nothing new; what is on its way still arrives."""

    host: int
    since: Seconds
    until: Seconds


@dataclass(frozen=True)
class CutLink:
    """Likewise all links of a name in a described cluster, or the one above a switch: `rack-1`."""

    link: str
    since: Seconds
    until: Seconds


Fault: TypeAlias = Slow | Crash | Cut | CutLink
_KINDS: dict[str, Sequence[type[Any]]] = {"slow": [Slow], "crash": [Crash], "cut": [Cut, CutLink]}
_READ = {"rank": int, "host": int, "link": str}
_SPELLED = {"since": "from", "until": "to"}


def read_fault(text: str) -> Fault:
    """From its line; whatever makes no sense is named."""
    kind, *words = text.split() or [""]
    if kind not in _KINDS:
        raise ValueError(f"cluster.faults: {shown(text)} is none of {', '.join(_KINDS)}")
    hint = f"cluster.faults: {shown(text)} should be like {_example(kind)}"
    given = dict(word.partition("=")[::2] for word in words)
    for fault in _KINDS[kind]:
        names = {_SPELLED.get(f.name, f.name): f for f in fields(fault)}
        if set(given) == set(names) and len(given) == len(words):
            break
    else:
        raise ValueError(hint)
    try:
        values = {f.name: _READ.get(f.name, float)(given[name]) for name, f in names.items()}
    except ValueError:
        raise ValueError(hint) from None
    _check(values, text)
    found: Fault = fault(**values)
    return found


def _example(kind: str) -> str:
    window = "from=2 to=5"
    return {
        "slow": f"'slow rank=1 factor=3 {window}'", "crash": "'crash rank=1 at=4'",
        "cut": f"'cut host=0 {window}' or 'cut link=uplink {window}'",
    }[kind]  # fmt: skip


def _check(values: dict[str, Any], text: str) -> None:
    for name, value in values.items():
        if name != "link" and not 0 <= value < math.inf:
            said = _SPELLED.get(name, name)
            raise ValueError(f"cluster.faults: {shown(text)}: {said} must not be negative")
    if values.get("factor") == 0:
        raise ValueError(f"cluster.faults: {shown(text)}: factor must be more than 0")
    if "since" in values and values["since"] >= values["until"]:
        raise ValueError(f"cluster.faults: {shown(text)}: to must be later than from")


def of_members(faults: Sequence[Fault], members: Sequence[int]) -> list[Fault]:
    """The same by new numbers: the first of these is rank 0, and so on; others are not there."""
    found: list[Fault] = []
    for fault in faults:
        if isinstance(fault, Cut | CutLink):
            found.append(fault)
        elif fault.rank in members:
            found.append(replace(fault, rank=members.index(fault.rank)))
    return found


def from_then_on(faults: Sequence[Fault], began: Seconds) -> list[Fault]:
    """The same on a clock that begins at that moment; who has died by then has come back."""
    later: list[Fault] = []
    for fault in faults:
        if not isinstance(fault, Crash):
            later.append(replace(fault, since=fault.since - began, until=fault.until - began))
        elif fault.at > began or not began:
            later.append(replace(fault, at=fault.at - began))
    return later


def end_of_work(slow: Sequence[Slow], start: Seconds, seconds: Seconds) -> Seconds:
    """When work is done that alone takes so long; where several are slow at once, all are."""
    edges = sorted({edge for each in slow for edge in (each.since, each.until) if edge > start})
    now, left = start, seconds
    for edge in [*edges, math.inf]:
        factor = math.prod(each.factor for each in slow if each.since <= now < each.until)
        if now + left * factor <= edge:
            return now + left * factor
        left -= (edge - now) / factor
        now = edge
    raise AssertionError("the last edge is never reached")


def end_of_cuts(cuts: Sequence[Cut | CutLink], start: Seconds) -> Seconds:
    """When something that is to start then can start."""
    for cut in sorted(cuts, key=lambda cut: cut.since):
        if cut.since <= start < cut.until:
            start = cut.until
    return start
