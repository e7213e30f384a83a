"""Settings that are given several values: every combination of them is raced."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path

from regatta import config
from regatta.config import Run
from regatta.plain import shortened, shown
from regatta.race.entries import with_values

_MOST_RUNS = 1000  # combinations of settings in one race
_OWN_OPTIONS = {
    "strategy": "--strategies", "workers": "--workers", "minibatch": "--minibatch",
    "seed": "--seed and --seeds",
    "cluster.jitter_seed": "--seed: it draws the jitter as well",
}  # fmt: skip
_ONE_FOR_ALL = {
    "task": "race each task alone: their results are not comparable",
    "stop.target": "give one value with --target",
    "stop.last": "give one value with --last",
}


@dataclass(frozen=True)
class Grid:
    """Settings in the order that they were given in, by their full names."""

    settings: tuple[str, ...] = ()  # of those that vary, all values, parted by ;
    combinations: tuple[tuple[str, ...], ...] = ((),)  # a value of each that varies

    def runs(self, run: Run) -> list[Run]:
        """One for every combination, which is named if it is impossible or nothing of its own."""
        made: list[Run] = []
        for combination in self.combinations:
            another = self._run(run, combination)
            if another in made:
                same = ", ".join(self.combinations[made.index(another)])
                raise ValueError(
                    f"{', '.join(combination)} and {same} are the same run: what varies is "
                    "overridden by a later --set"
                )
            made.append(another)
        return made

    def _run(self, run: Run, combination: Sequence[str]) -> Run:
        try:
            return config.assign(run, with_values(self.settings, combination))
        except ValueError as error:
            if not combination:
                raise
            raise ValueError(f"{', '.join(combination)} cannot be raced: {error}") from None


def grid_of(run: Run, settings: Sequence[str]) -> Grid:
    """Refuses what is no field of the run, no value of its field, or an option's own business."""
    given: list[tuple[str, list[str]]] = []
    for setting in settings:
        name, equals, text = (part.strip() for part in setting.partition("="))
        if not equals:
            raise ValueError(f"--set {shown(setting)} is not of the form name=value")
        name = config.full_name(run, name)
        _refuse_owned(name)
        values = _values(run, name, text)
        if len(values) > 1 and name in _ONE_FOR_ALL:
            raise ValueError(f"--set {name} cannot vary within a race: {_ONE_FOR_ALL[name]}")
        given.append((name, values))
        run = _checked(run, name, values)[0]
    _refuse_given_twice(given)
    varying = [[f"{name}={v}" for v in values] for name, values in given if len(values) > 1]
    if math.prod(map(len, varying)) > _MOST_RUNS:
        raise ValueError(f"--set asks for more than {_MOST_RUNS} combinations: leave some out")
    return Grid(
        tuple(f"{name}={';'.join(values)}" for name, values in given), tuple(product(*varying))
    )


def _refuse_owned(name: str) -> None:
    owner = "strategy" if name.startswith("strategy.") else name
    if owner in _OWN_OPTIONS:
        raise ValueError(f"--set {name} is for one run: in a race use {_OWN_OPTIONS[owner]}")


def _values(run: Run, name: str, text: str) -> list[str]:
    if _is_file(text):  # whatever its name is made of
        return [text]
    parts = text.split(";")
    if len(parts) == 1 and config.commas_part_values(run, name, text):
        parts = text.split(",")
    values = [part.strip() for part in parts]
    if len(values) > 1 and "" in values:
        raise ValueError(f"--set {name}={shortened(text)}: a value is missing")
    if len(values) > _MOST_RUNS:
        raise ValueError(f"--set {name} has {len(values)} values: {_MOST_RUNS} at most")
    return values


def _is_file(text: str) -> bool:
    try:
        return Path(text).exists()
    except (OSError, ValueError):  # it could not even be the name of one
        return False


def _checked(run: Run, name: str, values: Sequence[str]) -> list[Run]:
    """The run with each of the values, which must be values and differ."""
    runs = [config.assign(run, [f"{name}={value}"]) for value in values]
    for number, made in enumerate(runs):
        if made in runs[:number]:
            raise ValueError(
                f"--set {name}: {values[number]} is there twice, maybe in other words: "
                "leave one out"
            )
    return runs


def _refuse_given_twice(given: Sequence[tuple[str, Sequence[str]]]) -> None:
    names = [name for name, _ in given]
    for name, values in given:
        if len(values) > 1 and names.count(name) > 1:
            raise ValueError(
                f"--set {name} is given twice: give all of its values at once, parted by ;"
            )
