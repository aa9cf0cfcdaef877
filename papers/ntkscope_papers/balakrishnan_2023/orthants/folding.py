"""Folding: does a function treat points that are mirror images of each other alike, beyond being right about them?"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import Float64, Int64
from torch import Tensor

from ntkscope.core import UsageError
from ntkscope.core.arguments import Labels, Matrix, finite, order_of, plain_array

ROUNDING = 32  # units in the last place of the largest score: residuals below are rounding, not structure
BLOCK = 2**22  # inner products held at a time
LEFT = " have scores that are the same at all points of a radius: no residual is left to compare"


@dataclass(frozen=True, eq=False)
class FoldProfile:
    """Correlations by the number of signs in which points differ, 0 … d; `reasons` says why an entry is NaN, else None."""

    correlations: Float64[np.ndarray, " distances"]
    reasons: tuple[str | None, ...]

    def __len__(self) -> int:
        return len(self.correlations)

    def __getitem__(self, distance: int) -> float:
        return float(self.correlations[distance])

    def __iter__(self) -> Iterator[float]:
        return iter(self.correlations.tolist())


def fold_profile(scores: Any, strata: Any, at: int | Sequence[int] | None = None) -> FoldProfile:
    """Entry k is the correlation of scores between points that differ in k signs, each radius's mean removed.

    `scores` (n, 2^d) are those of n base points at all their reflections, in the order of `orthant_signs`; `strata` (n) are the
    base points' radii, compared for equality. In each orthant the mean of each radius is subtracted, so that being right
    everywhere (a function of the radius, of the orthant, or of both) leaves nothing and does not count as folding. With
    residuals r, over the pairs of orthants (a, o) that differ in k signs, a in `at` (an orthant, several, or by default all),

        Σ ⟨r_a, r_o⟩ / sqrt(Σ |r_a|² · Σ |r_o|²)

    is 1 for a function of |x| and (1 - 2k/d) on average for a linear one. Without residuals the entry is NaN with its reason,
    never 0 or 1. Cost: O(n |at| 2^d).

    >>> profile = fold_profile([[1.0, 2.0], [2.0, 3.0], [4.0, 5.0]], [1, 1, 1])
    >>> [round(entry, 6) for entry in profile]
    [1.0, 1.0]
    >>> profile = fold_profile([[1.0, 7.0], [1.0, 7.0], [2.0, 4.0]], [1, 1, 2])
    >>> profile[1], profile.reasons[1]
    (nan, 'scores are the same at all points of a radius in each orthant: no residual is left to compare')
    """
    values = finite(scores, "scores", 2)
    points, orthants = values.shape
    dimension = orthants.bit_length() - 1
    if points < 2 or dimension < 1 or orthants != 2**dimension:
        raise UsageError(
            f"got scores of shape {values.shape}; expected (points, 2^d), at least two points at all their reflections"
        )
    radii = order_of(strata, "strata")
    if radii.shape != (points,):
        raise UsageError(f"got {len(radii)} strata for {points} base points; expected the radius of each")
    first = _orthants(at, orthants)

    largest = np.abs(values).max()
    scaled = values / largest if largest > 0 else values
    residuals = _residuals(scaled, radii)
    rounding = ROUNDING * _precision(scores) * np.abs(scaled).max(0)
    residuals[:, np.abs(residuals).max(0) <= rounding] = 0.0

    products, squares, partners = _sums(residuals, first, dimension)
    known = (squares > 0) & (partners > 0)
    correlations = np.full(dimension + 1, math.nan)
    correlations[known] = products[known] / np.sqrt(squares[known]) / np.sqrt(partners[known])
    nothing = _why_nothing(scaled, radii, bool(residuals.any()))
    reasons = tuple(
        None
        if known[k]
        else nothing or (f"orthants {k} signs away" if squares[k] > 0 else "the orthants asked for") + LEFT
        for k in range(dimension + 1)
    )
    return FoldProfile(np.clip(correlations, -1, 1), reasons)


def _residuals(values: Matrix, radii: Labels) -> Matrix:
    """What is left of the scores in each orthant when the mean of each radius is removed; exactly 0 where they are equal."""
    _, start, count = np.unique(radii, return_index=True, return_counts=True)
    offsets = values - values[start][radii]
    sums = np.zeros((len(start), values.shape[1]))
    np.add.at(sums, radii, offsets)
    return offsets - (sums / count[:, None])[radii]


def _sums(
    residuals: Matrix, first: Int64[np.ndarray, " starts"], dimension: int
) -> Float64[np.ndarray, "three distances"]:
    """Over pairs (a, o) at each distance, a in `first`: Σ ⟨r_a, r_o⟩, Σ |r_a|², Σ |r_o|²."""
    orthants = residuals.shape[1]
    norms = np.square(residuals).sum(0)
    sums = np.zeros((3, dimension + 1))
    for start in range(0, len(first), rows := max(1, BLOCK // orthants)):
        block = first[start : start + rows]
        distances = np.bitwise_count(block[:, None] ^ np.arange(orthants)).reshape(-1)
        inner = residuals[:, block].T @ residuals
        for k, entries in enumerate((inner, norms[block, None], norms[None])):
            weights = np.broadcast_to(entries, inner.shape).reshape(-1)
            sums[k] += np.bincount(distances, weights, minlength=dimension + 1)
    return sums


def _orthants(at: int | Sequence[int] | None, orthants: int) -> Labels:
    """The orthants at which pairs begin."""
    if at is None:
        return np.arange(orthants)
    listed = plain_array(at).reshape(-1)
    whole = listed.dtype.kind in "iu" and len(listed) > 0 and len(np.unique(listed)) == len(listed)
    if not whole or listed.min() < 0 or listed.max() >= orthants:
        raise UsageError(f"got at={at!r}; expected distinct orthant numbers from 0 to {orthants - 1}, or None for all")
    return listed.astype(np.int64)


def _precision(scores: Any) -> float:
    """The relative spacing of the numbers that the scores came as."""
    if isinstance(scores, Tensor) and scores.is_floating_point():
        return float(torch.finfo(scores.dtype).eps)
    dtype = np.asarray(scores).dtype if not isinstance(scores, Tensor) else np.dtype(np.float64)
    return float(np.finfo(dtype if dtype.kind == "f" else np.float64).eps)


def _why_nothing(scores: Matrix, radii: Labels, something: bool) -> str | None:
    """Why no orthant has a residual, or None if one has."""
    if something:
        return None
    if scores.min() == scores.max():
        return "the scores are constant"
    if len(np.unique(radii)) == len(radii):
        return "every radius has one point: removing its mean leaves nothing to compare"
    return "scores are the same at all points of a radius in each orthant: no residual is left to compare"
