"""A run's configuration: frozen dataclasses, each owned by its component.

Everything can be set by name (`--set stop.epochs=3`), stored as JSON and read back; a name or value
that does not fit is refused with the nearest one that does.
"""

from __future__ import annotations

import inspect
import math
import re
from collections.abc import Callable, Mapping
from dataclasses import MISSING, dataclass, field, fields, is_dataclass, replace
from typing import Any, TypeVar, get_args, get_origin, get_type_hints

from regatta import plain, strategies, tasks
from regatta.cluster import Cluster
from regatta.death import Death
from regatta.learn import natural, optimisers, schedules
from regatta.learn.natural import Gradient, Plain
from regatta.learn.optimisers import Optimiser, Sgd
from regatta.learn.schedules import Fixed, Scaling, Schedule
from regatta.plain import shown
from regatta.strategies.base import Strategy
from regatta.strategies.single import Single
from regatta.tasks import Task
from regatta.tasks.teacher import Teacher
from regatta.wording import nearest as nearest  # here for who deals with configurations

T = TypeVar("T")


@dataclass(frozen=True)
class Stop:
    """When a run ends: at whichever comes first."""

    epochs: float = 10.0
    samples: int = 0  # of all workers; 0: no limit
    seconds: float = 0.0  # of training; 0: no limit
    target: float | None = None  # of the task's metric
    last: int = 1  # evaluations whose median must reach it
    patience: int = 0  # evaluations without a better score, then the best is the answer; 0: never
    grace: float = 20.0  # seconds that a preempted run may go on, to where stopping changes nothing

    def __post_init__(self) -> None:
        if not 0 < self.epochs < math.inf:
            raise ValueError(f"stop.epochs must be a number more than 0, not {self.epochs}")
        if self.samples < 0 or not 0 <= self.seconds < math.inf:
            raise ValueError("stop.samples and stop.seconds must be 0 or more")
        if self.last < 1:
            raise ValueError(f"stop.last must be 1 or more, not {self.last}")
        if self.patience < 0:
            raise ValueError(f"stop.patience must be 0 or more, not {self.patience}")
        if not 0 <= self.grace < math.inf:
            raise ValueError(f"stop.grace must be 0 seconds or more, not {self.grace}")


@dataclass(frozen=True)
class Evaluation:
    every: float = 1.0  # epochs

    def __post_init__(self) -> None:
        if self.every <= 0:
            raise ValueError("evaluation.every must be more than 0 epochs")


@dataclass(frozen=True)
class Checkpointing:
    every: float = 0.0  # epochs; 0: only at the end
    batches: int = 0  # a worker, from one to the next; 0: not by them
    keep: int = 2

    def __post_init__(self) -> None:
        if self.every < 0 or self.batches < 0 or self.keep < 1:
            raise ValueError(
                "checkpointing.every and checkpointing.batches must be 0 or more, "
                "checkpointing.keep 1 or more"
            )

    @property
    def on_the_way(self) -> bool:
        """Whether there is any before the end."""
        return bool(self.every or self.batches)


@dataclass(frozen=True)
class Recording:
    """What is written down besides results."""

    usage: float = 0.1  # seconds from one sample of the processors' use to the next; 0: none
    spans: int = 2000  # stretches of computing, sending and waiting of a rank; 0: none
    sentences: int = 50  # batches from one that is written down to the next; 0: none

    def __post_init__(self) -> None:
        if self.usage < 0 or self.spans < 0 or self.sentences < 0:
            names = "recording.usage, recording.spans and recording.sentences"
            raise ValueError(f"{names} must be 0 or more")


@dataclass(frozen=True)
class Start:
    """The weights to begin with: fresh ones, or those of another run."""

    run: str = ""  # its folder, or a .safetensors file with a model; empty: fresh weights
    head: str = "new"  # the last layer's weights; or kept: the rows of symbols that both know
    sha256: str = ""  # of that file; found out where it is not given

    def __post_init__(self) -> None:
        if self.head not in ("new", "kept"):
            raise ValueError(f"start.head must be new or kept, not {self.head}")


@dataclass(frozen=True)
class Run:
    """One training, completely described."""

    task: Task = field(default_factory=Teacher)
    strategy: Strategy = field(default_factory=Single)
    optimiser: Optimiser = field(default_factory=Sgd)
    schedule: Schedule = field(default_factory=Fixed)  # of the learning rate
    scaling: Scaling = field(default_factory=Scaling)  # of the learning rate
    gradient: Gradient = field(default_factory=Plain)  # that the optimiser is given
    workers: int = 1
    minibatch: int = 64  # a worker
    early_minibatches: tuple[int, ...] = ()  # instead, in the first epochs: one an epoch
    seed: int = 0
    start: Start = field(default_factory=Start)
    stop: Stop = field(default_factory=Stop)
    evaluation: Evaluation = field(default_factory=Evaluation)
    checkpointing: Checkpointing = field(default_factory=Checkpointing)
    recording: Recording = field(default_factory=Recording)
    death: Death = field(default_factory=Death)  # of a rank, and what follows
    cluster: Cluster = field(default_factory=Cluster)  # what simulation charges by
    threads: int = 1  # a rank
    device: str = "cpu"
    transport: str = "auto"  # shared memory inside a host; or sockets everywhere
    bucket_bytes: int = -1  # summed while backward runs; 0: one sum after it; -1: what is faster

    def __post_init__(self) -> None:
        for name in ("workers", "minibatch", "threads"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be 1 or more, not {getattr(self, name)}")
        if any(minibatch < 1 for minibatch in self.early_minibatches):
            raise ValueError(f"early_minibatches must be 1 or more, not {self.early_minibatches}")
        if self.bucket_bytes < -1:
            raise ValueError("bucket_bytes must be 0 or more, or -1 for what is faster")
        for name, known in (("device", ("cpu", "cuda")), ("transport", ("auto", "sockets"))):
            if getattr(self, name) not in known:
                raise ValueError(f"{name} must be {' or '.join(known)}, not {getattr(self, name)}")
        self.strategy.check(self.workers)
        self.death.check(self.strategy)
        if check := getattr(self.task, "check_answer", None):
            check(self.strategy.name, self.strategy.answer)
        for minibatch in {*self.early_minibatches, self.minibatch}:
            self.strategy.check_run(minibatch, self.bucket_bytes)
        scheduled = self.schedule.name != Fixed.name or self.scaling.by != "none"
        if self.strategy.own_rates and scheduled:
            raise ValueError(
                f"{spec_of(self.strategy)} has a learning-rate schedule and a scaling of its own: "
                "leave that option out, or use schedule=fixed and scaling.by=none"
            )

    @property
    def num_ranks(self) -> int:
        return self.workers + self.strategy.num_servers

    def follows_death_of(self, rank: int) -> str:
        return self.death.follows(self.strategy.fate_of(rank, self.workers))


_REGISTRIES: dict[str, Callable[[], Mapping[str, Any]]] = {
    "task": tasks.registry, "strategy": strategies.registry, "optimiser": optimisers.registry,
    "schedule": schedules.registry, "gradient": natural.registry,
}  # fmt: skip


def component(part: str, spec: str, like: Any = None) -> Any:
    """A strategy, task, optimiser or gradient from `name` or `name:option=value,option=value`."""
    name, _, options = spec.partition(":")
    kind = _kind(part, name, like)
    if like is not None and like.name == name and not options:
        return like
    values: dict[str, Any] = {}
    for option in filter(None, _split_options(options)):
        key, equals, value = option.partition("=")
        if not equals:
            raise ValueError(f"{part} option {shown(option)} is not of the form name=value")
        values[key] = plain.parsed(_field_type(kind, key, f"{name} option"), value, key)
    made = kind(**values)
    for key, value in values.items():
        _refuse_no_number(key, value)
    return made


def _kind(part: str, name: str, like: Any) -> Any:
    known: dict[str, Any] = dict(_REGISTRIES[part]())
    if like is not None:
        known.setdefault(like.name, type(like))
    if name not in known:
        raise ValueError(nearest(name, sorted(known), part))
    return known[name]


def is_known(values: dict[str, Any]) -> bool:
    """Whether a run, as JSON, has only components that come with Regatta."""
    parts = {part: values.get(part) for part in _REGISTRIES}
    names = {part: value.get("name") for part, value in parts.items() if isinstance(value, dict)}
    return all(str(name) in _REGISTRIES[part]() for part, name in names.items())


def spec_of(component: Any) -> str:
    """As a person writes it: the name, and the options that are not as usual."""
    given = {
        f.name: getattr(component, f.name)
        for f in fields(component)
        if f.default is MISSING or getattr(component, f.name) != f.default
    }
    texts = [f"{name}={_text(value)}" for name, value in given.items()]
    return f"{component.name}:{','.join(texts)}" if texts else str(component.name)


def _text(value: Any) -> str:
    if isinstance(value, tuple):
        return ",".join(map(_text, value))
    return str(value).lower() if isinstance(value, bool) or value is None else str(value)


def _split_options(options: str) -> list[str]:
    """At commas, except where the next piece is a further number of a list: sizes=3,4."""
    pieces: list[str] = []
    for piece in options.split(","):
        if pieces and "=" not in piece and piece:
            pieces[-1] += "," + piece
        else:
            pieces.append(piece)
    return pieces


def assign(owner: T, settings: list[str]) -> T:
    """Apply `a.b=c` settings, in order, to a run or to any other configuration."""
    for setting in settings:
        path, equals, value = setting.partition("=")
        if not equals:
            raise ValueError(f"--set {shown(setting)} is not of the form name=value")
        name = full_name(owner, path.strip())
        changed: T = _assign(owner, name.split("."), value.strip(), name)
        owner = changed
    return owner


def full_name(owner: Any, name: str) -> str:
    """A field of the task may be named without `task.` where the run has none of that name."""
    if not isinstance(owner, Run):
        return name
    first = name.partition(".")[0]
    known = [f.name for f in fields(Run)]
    of_task = [f.name for f in fields(owner.task) if f.name not in known]  # type: ignore[arg-type]
    if first not in (*known, *of_task):
        raise ValueError(nearest(first, [*known, *of_task], "setting"))
    return f"task.{name}" if first in of_task else name


def short_name(name: str) -> str:
    """The other way round: as few words as `full_name` understands."""
    prefix, _, rest = name.partition(".")
    is_the_runs = rest.partition(".")[0] in {f.name for f in fields(Run)}
    return rest if prefix == "task" and rest and not is_the_runs else name


def commas_part_values(run: Run, name: str, text: str) -> bool:
    """Whether a comma can only part values: not in a list, nor between a component's options."""
    if name in _REGISTRIES:
        return ":" not in text
    owner: Any = run
    *path, last = name.split(".")
    for part in path:
        owner = getattr(owner, part, None)
    kind = get_type_hints(type(owner)).get(last) if is_dataclass(owner) else None
    return not any(get_origin(k) is tuple for k in (kind, *get_args(kind)))


def _assign(owner: Any, path: list[str], value: str, whole: str) -> Any:
    name, *rest = path
    kind = _field_type(type(owner), name, "setting" if whole == name else f"part of {whole}:")
    if rest:
        inner = getattr(owner, name)
        if not is_dataclass(inner):
            raise ValueError(f"--set {plain.shortened(whole)}: {name} has no parts")
        return replace(owner, **{name: _assign(inner, rest, value, whole)})
    if name in _REGISTRIES and isinstance(owner, Run):
        return replace(owner, **{name: component(name, value, getattr(owner, name))})
    parsed = plain.parsed(kind, value, whole)
    changed = replace(owner, **{name: parsed})
    _refuse_no_number(whole, parsed)
    return changed


def _refuse_no_number(name: str, value: Any) -> None:
    """Many options have a better message of their own, which comes first."""
    if isinstance(value, float) and math.isnan(value):
        raise ValueError(f"{name} must be a number, not nan")


def _field_type(owner: type, name: str, what: str) -> Any:
    hints = get_type_hints(owner)
    known = [f.name for f in fields(owner)]
    if name not in known:
        raise ValueError(nearest(name, known, what))
    return hints[name]


def to_json(run: Any) -> dict[str, Any]:
    """Every field; components that have names carry theirs as `name`."""
    values: dict[str, Any] = {"name": run.name} if hasattr(run, "name") else {}
    for f in fields(run):
        values[f.name] = _plain(getattr(run, f.name))
    return values


def _plain(value: Any) -> Any:
    if isinstance(value, tuple) and any(map(is_dataclass, value)):
        return [_plain(each) for each in value]
    return to_json(value) if is_dataclass(value) else value


def from_json(values: dict[str, Any], base: Run) -> Run:
    """A run read back. `base`, the recipe's own, knows the classes that no registry knows."""
    parts: dict[str, Any] = {}
    hints = get_type_hints(Run)
    for f in fields(Run):
        if f.name not in values:
            continue
        value, default = values[f.name], getattr(base, f.name)
        if f.name in _REGISTRIES:
            name = value.get("name") if isinstance(value, dict) else None
            if not isinstance(name, str):
                raise ValueError(f"{f.name} must be an object with a name, not {shown(value)}")
            kind = _kind(f.name, name, default)
            parts[f.name] = from_plain(kind, {k: v for k, v in value.items() if k != "name"})
        else:
            kind = type(default) if is_dataclass(default) else hints[f.name]
            _refuse_too_long(value, f.name, plain.LONGEST)
            parts[f.name] = _value(kind, value, f.name)
    return replace(base, **parts)


def from_plain(kind: Any, values: dict[str, Any]) -> Any:
    hints = get_type_hints(kind)
    known = {f.name: f for f in fields(kind)}
    for name, value in values.items():
        if name not in known:
            raise ValueError(nearest(name, sorted(known), f"field of {kind.__name__}"))
        _refuse_too_long(value, name, known[name].metadata.get("longest", plain.LONGEST))
    try:
        made = kind(**{name: _value(hints[name], value, name) for name, value in values.items()})
    except TypeError as error:  # one that has no default
        raise ValueError(f"{kind.__name__}: {error}") from None
    for name, value in values.items():
        _refuse_no_number(name, value)
    return made


def _value(kind: Any, value: Any, name: str) -> Any:
    if is_dataclass(kind) and isinstance(value, dict):
        return from_plain(kind, value)
    if not (isinstance(value, kind) if is_dataclass(kind) else plain.fits(kind, value)):  # type: ignore[arg-type]
        raise ValueError(plain.misfit(name, kind, value))
    return _values(kind, value, name) if get_origin(kind) is tuple else value


def _refuse_too_long(value: Any, name: str, longest: int) -> None:
    if isinstance(value, str) and len(value) > longest:
        raise ValueError(f"{name} has {len(value)} letters: {longest} at most")


def _values(kind: Any, values: Any, name: str) -> tuple[Any, ...]:
    inner, *others = get_args(kind)
    kinds = [inner] * len(values) if others == [...] else [inner, *others]
    return tuple(_value(each, value, name) for each, value in zip(kinds, values, strict=True))


def options(kind: Any) -> dict[str, Any]:
    """The options of a component with their defaults."""
    return {
        f.name: f.default if f.default is not MISSING else f.default_factory for f in fields(kind)
    }


def option_notes(kind: Any) -> dict[str, str]:
    """What stands beside the options in the text of a component."""
    lines = inspect.getsource(kind).splitlines()
    known = "|".join(f.name for f in fields(kind)) or "(?!)"
    found = (re.match(rf"    ({known}): .*  # (.*)", line) for line in lines)
    return {match[1]: match[2] for match in found if match}
