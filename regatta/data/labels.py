"""Frames and their classes: phones, parts of phones, or phones between others, by their times."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from regatta.data.manifest import Label

SILENCE = "sil"  # where nothing is labelled
TIERS = ("phones", "words")


class Unit(NamedTuple):
    """What a frame may be labelled with: a phone, its part, and what stands beside it."""

    name: str
    part: int = 0
    left: str = ""
    right: str = ""

    @property
    def alone(self) -> Unit:
        """The same wherever it stands."""
        return Unit(self.name, self.part)

    def __str__(self) -> str:
        name = f"{self.left}-{self.name}+{self.right}" if self.left or self.right else self.name
        return f"{name}/{self.part}" if self.part else name


@dataclass(frozen=True)
class Labelling:
    """What the classes are."""

    tier: str = "phones"  # the times that are taken: phones, or words
    states: int = 1  # parts of equal length that each is cut into
    senones: int = 0  # most classes of phones between phones; 0: phones wherever they stand

    def __post_init__(self) -> None:
        if self.tier not in TIERS:
            raise ValueError(f"labels: tier must be one of {', '.join(TIERS)}, not {self.tier}")
        if self.states < 1 or self.senones < 0:
            raise ValueError("labels: states must be 1 or more, senones 0 or more")

    def units(self, labels: Sequence[Label], frames: int, hop: float) -> list[Unit]:
        """One a frame. A frame is what lies at its middle; of two that overlap, the later one."""
        found = [Unit(SILENCE)] * frames
        spoken = sorted(label for label in labels if label.name != SILENCE)
        firsts = [_first_after(label.start, hop, frames) for label in spoken]
        stops = [_first_after(label.end, hop, frames) for label in spoken]
        for number, (label, first, stop) in enumerate(zip(spoken, firsts, stops, strict=True)):
            sides = ("", "")
            if self.senones:
                # What stands beyond a frame of silence is no neighbour.
                near_left = number > 0 and stops[number - 1] >= first
                near_right = number + 1 < len(spoken) and stop >= firsts[number + 1]
                sides = (
                    spoken[number - 1].name if near_left else SILENCE,
                    spoken[number + 1].name if near_right else SILENCE,
                )
            length = max(label.end - label.start, 1e-9)
            for frame in range(first, stop):
                place = ((frame + 0.5) * hop - label.start) / length
                part = min(int(place * self.states), self.states - 1) + 1
                found[frame] = Unit(label.name, part if self.states > 1 else 0, *sides)
        return found


def _first_after(time: float, hop: float, frames: int) -> int:
    """The first frame whose middle is not before this time."""
    return min(max(0, int(np.ceil(time / hop - 0.5))), frames)


class Classes:
    """The classes of one language, by number."""

    def __init__(self, names: Iterable[str]) -> None:
        self.names = tuple(names)
        self._numbers = {name: number for number, name in enumerate(self.names)}

    @classmethod
    def of(cls, counts: Counter[Unit], senones: int) -> Classes:
        """All units alone, and with their neighbours as many of the most frequent as may be."""
        alone = sorted({str(unit.alone) for unit in counts})
        between = [unit for unit in counts if unit != unit.alone]
        often = sorted(between, key=lambda unit: (-counts[unit], unit))
        return cls([*alone, *map(str, often[: max(0, senones - len(alone))])])

    def number(self, unit: Unit) -> int:
        """With its neighbours if that is a class, or alone; -1 for what was never heard of."""
        exact = self._numbers.get(str(unit))
        return self._numbers.get(str(unit.alone), -1) if exact is None else exact

    def numbers(self, units: Sequence[Unit]) -> NDArray[np.int32]:
        known = {unit: self.number(unit) for unit in set(units)}
        return np.array([known[unit] for unit in units], dtype=np.int32)

    def __len__(self) -> int:
        return len(self.names)
