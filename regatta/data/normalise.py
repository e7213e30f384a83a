"""Features brought to mean 0 and variance 1, by corpus or by speaker."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

NORMALISATIONS = ("none", "global", "speaker")


@dataclass(frozen=True)
class Sums:
    """Of features, to make their mean and variance from; sums of sums are sums."""

    count: float
    total: Tensor = field(repr=False)  # float64
    squares: Tensor = field(repr=False)

    @classmethod
    def of(cls, features: Tensor) -> Sums:
        exact = features.to(torch.float64)
        return cls(len(features), exact.sum(0), exact.square().sum(0))

    @classmethod
    def of_plain(cls, plain: Sequence[Any]) -> Sums:
        count, *values = plain
        total, squares = (torch.tensor(value, dtype=torch.float64) for value in values)
        return cls(count, total, squares)

    def plain(self) -> list[Any]:
        """Every digit, for JSON."""
        return [self.count, self.total.tolist(), self.squares.tolist()]

    def __add__(self, other: Sums) -> Sums:
        return Sums(
            self.count + other.count, self.total + other.total, self.squares + other.squares
        )

    def scale_and_shift(self, least: float = 1e-3) -> tuple[Tensor, Tensor]:
        """`x * scale + shift` has mean 0 and variance 1; a feature that never varies stays 0."""
        mean = self.total / self.count
        deviation = (self.squares / self.count - mean.square()).clamp_(min=0).sqrt_()
        scale = 1 / deviation.clamp_(min=least)
        return scale.to(torch.float32), (-mean * scale).to(torch.float32)


def added(pairs: Iterable[tuple[str, Sums]]) -> dict[str, Sums]:
    """By speaker, in the order in which they come."""
    total: dict[str, Sums] = {}
    for speaker, sums in pairs:
        total[speaker] = total[speaker] + sums if speaker in total else sums
    return total


class Normaliser:
    """Writes `x * scale + shift`, by corpus or by speaker."""

    def __init__(
        self, kind: str, sums: Mapping[str, Sums], own: Mapping[str, Sums], speakers: Sequence[str]
    ) -> None:
        """`sums` by speaker are those of the whole corpus; `own` those of who speaks here."""
        self._all = None if kind == "none" else sum_of(sums).scale_and_shift()
        self._speakers = speakers if kind == "speaker" else ()
        self._of_speaker: dict[str, tuple[Tensor, Tensor]] = {}
        if kind == "speaker":
            self._of_speaker = {name: found.scale_and_shift() for name, found in own.items()}

    def __call__(self, features: Tensor, number: int, out: Tensor) -> None:
        if self._all is None:
            out.copy_(features)
            return
        speaker = self._speakers[number] if self._speakers else ""
        scale, shift = self._of_speaker.get(speaker, self._all)
        torch.addcmul(shift, features.to(torch.float32), scale, out=out)


def sum_of(sums: Mapping[str, Sums]) -> Sums:
    """Of all speakers, in the order of their names."""
    total, *others = (sums[speaker] for speaker in sorted(sums))
    for other in others:
        total = total + other
    return total
