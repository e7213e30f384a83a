"""Let a model begin with the weights of another: by name and shape, the head by its symbols.

A head is a model's last layer, whose rows stand for symbols. It may stay as it was drawn, or take
over the rows of symbols that both models know. Everything else must fit: nothing is left out that
nobody named.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

_LEAVE = "or begin with fresh weights (leave --from out)"
_USE_NEW = f"use start.head=new, {_LEAVE}"


@dataclass(frozen=True)
class Head:
    prefix: str = ""  # how the names of its tensors begin; empty: nobody said
    symbols: tuple[str, ...] = ()  # that its rows stand for; empty: nobody said

    def has(self, name: str) -> bool:
        return bool(self.prefix) and f"{name}.".startswith(f"{self.prefix}.")


@dataclass(frozen=True)
class Weights:
    """A model's tensors by its own names, and what is known of it."""

    name: str  # for messages
    tensors: Mapping[str, Tensor]
    head: Head = field(default_factory=Head)
    task: Mapping[str, Any] = field(default_factory=dict)  # as JSON; empty: not known

    def __str__(self) -> str:
        return f"{self.name} (task {self.task['name']})" if "name" in self.task else self.name


def take_over(source: Weights, target: Weights, keeps_head: bool) -> str:
    """Write the source's numbers to the target's tensors; says in words which."""
    head = target.head
    if head.prefix and not any(map(head.has, target.tensors)):
        raise ValueError(
            f"the data of {target} call its last layer {head.prefix!r}, which it lacks"
        )
    _refuse_misfits(source, target)
    body = [name for name in target.tensors if not head.has(name)]
    for name in body:
        target.tensors[name].copy_(source.tensors[name])
    if not head.prefix:
        return f"all {len(body)} tensors"
    told = _take_head(source, target) if keeps_head else "the head new"
    return f"{len(body)} tensors, {told}"


def _refuse_misfits(source: Weights, target: Weights) -> None:
    """Outside the heads all tensors of both must be the same, in name and shape."""
    misfits = list(_misfits(source, target))
    if misfits:
        more = f" (and {len(misfits) - 1} more do not fit)" if len(misfits) > 1 else ""
        raise ValueError(f"{misfits[0]}{more}: {_remedy(source, target)}")


def _misfits(source: Weights, target: Weights) -> Iterator[str]:
    theirs = source.tensors
    for name, tensor in target.tensors.items():
        if target.head.has(name):
            continue
        if name not in theirs:
            yield f"{source} has no {name}, which {target} has as {_shape(tensor)}"
        elif not _alike(theirs[name], tensor):
            yield (
                f"{name} is {_shape(theirs[name])} in {source}, but {_shape(tensor)} in {target}"
            )
    for name, tensor in theirs.items():
        in_a_head = target.head.has(name) or (target.head.prefix and source.head.has(name))
        if name not in target.tensors and not in_a_head:
            yield f"{target} has no {name}, which {source} has as {_shape(tensor)}"


def _remedy(source: Weights, target: Weights) -> str:
    both = [name for name in source.task if name in target.task and name != "name"]
    differing = [
        f"task.{name} (there {_text(source.task[name])}, here {_text(target.task[name])})"
        for name in both
        if _text(source.task[name]) != _text(target.task[name])
    ]
    if differing:
        text = f"set as the source has it whatever shapes the model: {', '.join(differing)}"
    else:
        text = "name a source of the same model"
    if not target.head.prefix:
        text += "; or let the task's data name its last layer (`head`), which then may be another"
    return f"{text}; {_LEAVE}"


def _take_head(source: Weights, target: Weights) -> str:
    """Row by row, or whole where nobody says what rows stand for."""
    here, there = target.head.symbols, source.head.symbols
    if here and not there:
        raise ValueError(f"{source} does not say what the rows of its head stand for: {_USE_NEW}")
    pairs = [_pair(name, source, target) for name in target.tensors if target.head.has(name)]
    if not here:
        for ours, theirs in pairs:
            ours.copy_(theirs)
        return "the head kept"
    rows = {symbol: row for row, symbol in enumerate(there)}
    known = [row for row, symbol in enumerate(here) if symbol in rows]
    for ours, theirs in pairs:
        ours[known] = theirs[[rows[here[row]] for row in known]].to(ours.dtype)
    return f"the head's rows of {len(known)} of {len(here)} symbols"


def _pair(name: str, source: Weights, target: Weights) -> tuple[Tensor, Tensor]:
    """A tensor of the target's head and its counterpart, if their rows can be compared."""
    ours = target.tensors[name]
    renamed = source.head.prefix + name.removeprefix(target.head.prefix)
    there = next((n for n in (name, renamed) if n in source.tensors), None)
    if there is None:
        raise ValueError(f"{source} has no {name}, which is in the head of {target}: {_USE_NEW}")
    theirs = source.tensors[there]
    for weights, tensor in ((target, ours), (source, theirs)):
        symbols = len(weights.head.symbols)
        if target.head.symbols and tensor.shape[:1] != (symbols,):
            raise ValueError(
                f"{name if tensor is ours else there} is {_shape(tensor)} in {weights}, not a row "
                f"for each of {symbols} symbols: {_USE_NEW}"
            )
    first = 1 if target.head.symbols else 0
    if theirs.shape[first:] != ours.shape[first:]:
        raise ValueError(
            f"{there} is {_shape(theirs)} in the head of {source}, but {_shape(ours)} in that of "
            f"{target}: {_USE_NEW}"
        )
    return ours, theirs


def _alike(one: Tensor, other: Tensor) -> bool:
    return one.shape == other.shape and one.is_floating_point() == other.is_floating_point()


def _shape(tensor: Tensor) -> str:
    kind = "" if tensor.is_floating_point() else f" of {str(tensor.dtype).removeprefix('torch.')}"
    return (" x ".join(map(str, tensor.shape)) or "one number") + kind


def _text(value: Any) -> str:
    return ",".join(map(_text, value)) if isinstance(value, list | tuple) else str(value)
