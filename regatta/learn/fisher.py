"""The Fisher matrix of one side of a layer, estimated online, and the inverse that goes with it.

Povey, Zhang & Khudanpur (2015), as Kaldi has it. Rows X are a minibatch's inputs to a layer, or the
derivatives of its outputs. Their matrix of second moments is kept as F = R'DR + rho I, where R has
a few orthonormal rows. Smoothed by alpha times its mean diagonal it is R'DR + beta I, and X times
the inverse of that is, up to a factor, X - X W'W with

    W = E^1/2 R,    e = 1 / (beta / d + 1),    beta = rho (1 + alpha) + alpha tr D / dim.

The factor is chosen to give X its old norm back. Now and then F takes a minibatch in with weight
eta, and R moves to the best directions that one turn of subspace iteration finds.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import torch
from torch import Tensor

_FIRST_UPDATES = 10  # calls that all take their rows in; later ones now and then
_FIRST_PASSES = 3  # over the first rows
_MOST_ETA = 0.9  # something is always left of what was there
_LEAST = 1e-10  # of D and rho; also what they start from
_LEAST_SHARE = 5e-4  # of D and rho, beside the largest of D
_WORST_CONDITION = 1e6  # of what R is made by; beyond it R may not be orthonormal
_TOLERANCE = 1e-3  # of products of R's rows
_LARGEST_INVERSE = 100.0  # beyond it, Cholesky's factor is not to be trusted


class Preconditioned(NamedTuple):
    rows: Tensor
    ones: Tensor | None  # what has become of the column of ones, if there is one
    scale: float  # by which the rows have the norm that they came with


class Fisher:
    """Of rows of so many columns; the last may be all ones, and is then not handed over."""

    def __init__(
        self,
        columns: int,
        rank: int,
        has_ones: bool = False,
        period: int = 4,
        alpha: float = 4.0,
        history: float = 2000.0,
    ) -> None:
        self.dim = columns + has_ones
        self.rank = min(
            rank, self.dim - 1
        )  # none is left to a single column: rows stay as they are
        self._columns, self._has_ones = columns, has_ones
        self._period, self._alpha, self._history = period, alpha, history
        self.forget()

    def forget(self) -> None:
        self.calls = 0
        self._directions: Tensor | None = None  # W; there is none before the first rows
        self._strengths = torch.empty(0, dtype=torch.float64)  # D
        self._rest = 0.0  # rho

    @property
    def is_due(self) -> bool:
        """Whether the next call takes its rows in."""
        return self.calls < _FIRST_UPDATES or self.calls % self._period == 0

    @property
    def basis(self) -> Tensor:
        """R, whose rows are orthonormal but for rounding."""
        assert self._directions is not None
        return self._directions.double() / self._shares().sqrt().unsqueeze(1)

    def precondition(self, rows: Tensor, factor: float = 1.0) -> Preconditioned:
        """Rows times the inverse of F as it was before them; then F takes them in, if it is due.

        F is that of `factor` times the rows: its least values are absolute. Rows that hold no
        numbers come back as they are, and leave nothing behind.
        """
        square = self._square(rows)
        if self.rank < 1 or not len(rows) or not math.isfinite(square):
            return Preconditioned(rows, self._ones(rows), 1.0)
        if self._directions is None:
            self._begin(rows, square, factor)
        directions = self._directions
        assert directions is not None
        along = self._along(rows)
        fitted = torch.addmm(rows, along, directions[:, : self._columns], alpha=-1)
        ones = self._ones(rows)
        if ones is not None:
            ones = torch.addmv(ones, along, directions[:, -1], alpha=-1)
        left = self._square(fitted, ones)
        if self.is_due:
            self._take_in(rows, along, square, factor)
        self.calls += 1
        return Preconditioned(fitted, ones, math.sqrt(square / left) if left > 0 else 1.0)

    # -- how it comes about -----------------------------------------------------------------

    def _begin(self, rows: Tensor, square: float, factor: float) -> None:
        """From nothing, by several passes over the first rows; few rows are soon learnt."""
        self._strengths = torch.full((self.rank,), _LEAST, dtype=torch.float64, device=rows.device)
        self._rest = _LEAST
        start = _evenly_spread(self.rank, self.dim).to(rows) * self._shares().sqrt()[0].item()
        self._directions = start
        for _ in range(1 if len(rows) <= self.rank else _FIRST_PASSES):
            self._take_in(rows, self._along(rows), square, factor)

    def _shares(self) -> Tensor:
        """E: how much of every direction is taken off."""
        return _shares(self._strengths, self._rest, self._alpha, self.dim)

    def _along(self, rows: Tensor) -> Tensor:
        """H: the rows along the directions."""
        assert self._directions is not None
        directions = self._directions[:, : self._columns].t()
        if not self._has_ones:
            return rows @ directions
        return torch.addmm(self._directions[:, -1], rows, directions)

    def _ones(self, rows: Tensor) -> Tensor | None:
        return rows.new_ones(len(rows)) if self._has_ones else None

    def _square(self, rows: Tensor, ones: Tensor | None = None) -> float:
        """Of all numbers in the rows. Summed row by row: one sum of millions is too rough."""
        norms = torch.linalg.vector_norm(rows, dim=1)
        square = float(norms.double().square().sum())
        if ones is not None:
            return square + float(ones.double().square().sum())
        return square + len(rows) * self._has_ones

    def _take_in(self, rows: Tensor, along: Tensor, square: float, factor: float) -> None:
        """Let F be (1 - eta) F + eta / N X'X, of as few directions as before."""
        directions, strengths, rest = self._directions, self._strengths + self._rest, self._rest
        assert directions is not None
        keep = max(math.exp(-len(rows) / self._history), 1 - _MOST_ETA)  # 1 - eta
        # What is as large as X'X is divided by its trace, and multiplied again in double precision.
        weight = (1 - keep) / len(rows) * factor * factor * square
        scaled = along / (square or 1.0)
        images = scaled.t() @ rows  # J
        if self._has_ones:
            images = torch.cat([images, scaled.sum(0).unsqueeze(1)], 1)
        shares = self._shares()
        upright = shares.rsqrt()
        within = _framed((scaled.t() @ along).double(), upright)  # L
        both = keep * weight * within * strengths
        z = weight**2 * _framed((images @ images.t()).double(), upright)  # K
        z += both + both.t() + (keep * strengths).square().diag()
        if not torch.isfinite(z).all():
            return
        squares, vectors = (found.flip(-1) for found in torch.linalg.eigh(z))
        floor = (rest * keep) ** 2
        may_lean = bool(squares[-1] < max(floor, squares[0] / _WORST_CONDITION))
        roots = squares.clamp_min(floor).sqrt()  # D + rho that are to be
        trace = weight + keep * (self.dim * rest + self._strengths.sum().item())
        least = max(_LEAST, _LEAST_SHARE * roots[0].item())
        new_rest = max((trace - roots.sum().item()) / (self.dim - self.rank), least)
        new_strengths = (roots - new_rest).clamp_min(least)
        new_shares = _shares(new_strengths, new_rest, self._alpha, self.dim)
        turn = (new_shares.sqrt() / roots).unsqueeze(1) * vectors.t() * upright
        moved = (weight * turn).to(rows) @ images
        moved.addmm_((turn * (keep * strengths)).to(rows), directions)
        if may_lean:
            moved = _righted(moved, new_shares)
        if torch.isfinite(torch.linalg.vector_norm(moved)):  # faster than to ask every number
            self._directions, self._strengths, self._rest = moved, new_strengths, new_rest

    # -- what outlives the process ----------------------------------------------------------

    def state(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        tensors = {}
        if self._directions is not None:
            tensors = {"directions": self._directions, "strengths": self._strengths}
        return tensors, {"rest": self._rest, "calls": self.calls}

    def restore(self, tensors: dict[str, Tensor], numbers: dict[str, Any]) -> None:
        self.forget()
        if tensors:
            # Into memory of its own: a file's need not begin where a product has its usual bits.
            self._directions = tensors["directions"].clone()
            self._strengths = tensors["strengths"].clone()
        self._rest, self.calls = numbers["rest"], numbers["calls"]


def _shares(strengths: Tensor, rest: float, alpha: float, dim: int) -> Tensor:
    smooth = rest * (1 + alpha) + alpha * strengths.sum() / dim
    return (smooth / strengths + 1).reciprocal()


def _framed(matrix: Tensor, factors: Tensor) -> Tensor:
    return factors.unsqueeze(1) * matrix * factors


def _evenly_spread(rank: int, dim: int) -> Tensor:
    """Orthonormal rows that share no column, and each has some; its first a little larger."""
    rows = torch.zeros(rank, dim, dtype=torch.float64)
    for number, row in enumerate(rows):
        row[number::rank] = 1.0
        row[number] = 1.1
    return rows.div_(torch.linalg.vector_norm(rows, dim=1, keepdim=True))


def _righted(directions: Tensor, shares: Tensor) -> Tensor:
    """The nearest directions whose basis is orthonormal."""
    lengths = shares.sqrt().unsqueeze(1)
    basis = directions.double() / lengths
    products = basis @ basis.t()
    unit = torch.eye(len(basis), dtype=torch.float64, device=basis.device)
    if (products - unit).abs().max() <= _TOLERANCE:
        return directions
    factor, failed = torch.linalg.cholesky_ex(products)
    inverse = torch.linalg.solve_triangular(factor, unit, upper=False)
    if failed == 0 and inverse.abs().max() < _LARGEST_INVERSE:
        basis = inverse @ basis
    elif torch.isfinite(basis).all():  # Gram and Schmidt's, by reflections: it never fails
        columns, triangle = torch.linalg.qr(basis.t())
        basis = (columns * torch.where(triangle.diagonal() < 0, -1.0, 1.0)).t()
    return (basis * lengths).to(directions)
