"""Folding: does a function treat points that are mirror images of each other alike, beyond being right about them?"""

from __future__ import annotations

import numpy as np
from jaxtyping import Float64, Int64

from ntkscope.core.arguments import Matrix

ROUNDING = 32 * np.finfo(np.float64).eps  # of the largest score: residuals below are rounding, not structure
BLOCK = 2**22  # inner products held at a time
LEFT = " have scores that are the same at all points of a radius: no residual is left to compare"


def fold_profile(
    scores: Matrix, strata: Int64[np.ndarray, " n"], at: int | None = None
) -> tuple[Float64[np.ndarray, " distances"], list[str | None]]:
    """Entry k is the correlation of scores between points that differ in k signs, each radius's mean removed.

    `scores` (n, 2^d) are those of n base points at all their reflections, in the order of `orthant_signs`; `strata` (n) are the
    base points' radii, compared for equality. In each orthant the mean of each radius is subtracted, so that being right
    everywhere (a function of the radius, of the orthant, or of both) leaves nothing and does not count as folding. With
    residuals r, over the pairs of orthants (a, o) that differ in k signs, a being `at` or by default any,

        Σ ⟨r_a, r_o⟩ / sqrt(Σ |r_a|² · Σ |r_o|²)

    is 1 for a function of |x| and (1 - 2k/d) on average for a linear one. Without residuals the entry is NaN, never 0 or 1, and
    the second list says why. Cost: O(n |at| 2^d).

    >>> fold_profile(np.array([[1.0, 2.0], [2.0, 3.0], [4.0, 5.0]]), np.array([1, 1, 1]))[0].round(6).tolist()
    [1.0, 1.0]
    >>> fold_profile(np.array([[1.0, 7.0], [1.0, 7.0], [2.0, 4.0]]), np.array([1, 1, 2]))[1][0]
    'scores are the same at all points of a radius in each orthant: no residual is left to compare'
    """
    orthants = scores.shape[1]
    _, radii = np.unique(strata, return_inverse=True)
    first = np.arange(orthants) if at is None else np.array([at])
    scaled = scores / max(np.abs(scores).max(), np.finfo(np.float64).tiny)
    residuals = _residuals(scaled, radii)
    residuals[:, np.abs(residuals).max(0) <= ROUNDING * np.abs(scaled).max(0)] = 0.0
    products, squares, partners = _sums(residuals, first, orthants.bit_length())
    known = (squares > 0) & (partners > 0)
    correlations = np.full(len(known), np.nan)
    correlations[known] = products[known] / np.sqrt(squares[known]) / np.sqrt(partners[known])
    nothing = "" if residuals.any() else _why_nothing(scaled, radii)
    whose = [f"orthants {k} signs away" if squares[k] > 0 else "the orthants asked for" for k in range(len(known))]
    return np.clip(correlations, -1, 1), [None if fine else nothing or who + LEFT for fine, who in zip(known, whose)]


def _residuals(values: Matrix, radii: Int64[np.ndarray, " n"]) -> Matrix:
    """What is left of the scores in each orthant when the mean of each radius is removed; exactly 0 where they are equal."""
    _, start, count = np.unique(radii, return_index=True, return_counts=True)
    offsets = values - values[start][radii]
    sums = np.zeros((len(start), values.shape[1]))
    np.add.at(sums, radii, offsets)
    return offsets - (sums / count[:, None])[radii]


def _sums(residuals: Matrix, first: Int64[np.ndarray, " starts"], bins: int) -> Float64[np.ndarray, "three distances"]:
    """Over pairs (a, o) at each distance, a in `first`: Σ ⟨r_a, r_o⟩, Σ |r_a|², Σ |r_o|²."""
    orthants = residuals.shape[1]
    norms = np.square(residuals).sum(0)
    sums = np.zeros((3, bins))
    for start in range(0, len(first), rows := max(1, BLOCK // orthants)):
        block = first[start : start + rows]
        distances = np.bitwise_count(block[:, None] ^ np.arange(orthants)).reshape(-1)
        inner = residuals[:, block].T @ residuals
        for k, entries in enumerate((inner, norms[block, None], norms[None])):
            weights = np.broadcast_to(entries, inner.shape).reshape(-1)
            sums[k] += np.bincount(distances, weights, minlength=bins)
    return sums


def _why_nothing(scores: Matrix, radii: Int64[np.ndarray, " n"]) -> str:
    """Why no orthant has a residual."""
    if scores.min() == scores.max():
        return "the scores are constant"
    if len(np.unique(radii)) == len(radii):
        return "every radius has one point: removing its mean leaves nothing to compare"
    return "scores are the same at all points of a radius in each orthant: no residual is left to compare"
