"""Intrinsic dimension: of how many dimensions the set is on which features lie, by nearest neighbours or by variance.

Facco, d'Errico, Rodriguez & Laio, "Estimating the intrinsic dimension of datasets by a minimal neighborhood information"
(2017).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any, TypeAlias

import numpy as np
import torch
from jaxtyping import Float64, Int64
from scipy.sparse import csr_matrix
from torch import Tensor

from ntkscope.core import UsageError, numpy_generator
from ntkscope.core.arguments import vector
from ntkscope.core.checked import CountOrZero, Numbers, Positive, within
from ntkscope.linalg.features.rows import features_of, finite_blocks

CANDIDATES = 8  # neighbours whose distances are computed again from differences
NUMBERS = 1 << 25  # of one block of distances or differences: 256 MiB
Discarded: TypeAlias = Annotated[float, within(low=0, below=0.9)]
LEAST = 20  # items of an estimate


@dataclass(frozen=True)
class Estimate:
    """The dimension that so many items show, with its standard error."""

    items: int
    dimension: float
    error: float


@dataclass(frozen=True)
class TwoNN:
    """An intrinsic dimension; `duplicates`: how many items were left out because an equal one was there before.

    `curve`: the same estimate of random halves, quarters, …, the fullest first: the mean over the disjoint parts. A
    dimension that falls as items are left out was the noise's; a plateau is the set's own.
    """

    dimension: float
    error: float
    items: int
    duplicates: int
    curve: tuple[Estimate, ...]


def two_nn(features: Any, *, discard: Discarded = 0.1, halvings: CountOrZero = 4, seed: int = 0) -> TwoNN:
    """The dimension d for which `r₂/r₁`, the distances to the two nearest neighbours, is distributed as `1 - (r₂/r₁)^-d`.

    A line through the origin is fitted to `-log(1 - i/n)` over the sorted `log(r₂/r₁)`, without the largest `discard` of
    them: equation 4 and figure 1 there. Exact only where the density is constant over the neighbourhoods, so it falls short
    of high dimensions. Distances are exact to rounding; O(n² p), n² in blocks.

    Examples:
        >>> line = np.random.default_rng(0).random((500, 1)) @ np.ones((1, 3))
        >>> found = two_nn(line)
        >>> abs(found.dimension - 1) < 3 * found.error, found.duplicates
        (True, 0)
    """
    rows = features_of(features)
    X = torch.cat([block for _, block in finite_blocks(rows)])
    kept = _distinct(X)
    if len(kept) < LEAST:
        raise UsageError(f"got {len(kept)} distinct items of {len(X)}; expected at least {LEAST}")
    X = X[kept.to(X.device)]
    X = X - X.mean(0)
    X = X / X.abs().max()
    first, *rest = (_mean(X, parts, discard, seed) for parts in _parts(len(X), halvings))
    return TwoNN(first.dimension, first.error, len(X), rows.n - len(X), (first, *rest))


def _parts(items: int, halvings: int) -> Sequence[int]:
    """Into how many parts the items are divided: 1, 2, 4, …, as long as each has enough."""
    return [2**k for k in range(halvings + 1) if k == 0 or items // 2**k >= LEAST]


def _mean(X: Float64[Tensor, "n p"], parts: int, discard: float, seed: int) -> Estimate:
    """The mean estimate over disjoint random parts."""
    if parts == 1:
        return _estimated(X, discard)
    order = torch.from_numpy(numpy_generator(seed, "two-nn", parts).permutation(len(X))).to(X.device)
    found = [_estimated(X[piece], discard) for piece in order[: len(X) // parts * parts].chunk(parts)]
    error = float(np.sqrt(np.mean([one.error**2 for one in found]) / parts))
    return Estimate(found[0].items, float(np.mean([one.dimension for one in found])), error)


def _estimated(X: Float64[Tensor, "n p"], discard: float) -> Estimate:
    """The estimate from rows, its error widened by what neighbours have in common."""
    ratios, nearest = _neighbour_ratios(X)
    found = estimate(ratios, discard)
    return replace(found, error=found.error * shared_neighbours(np.log(ratios), nearest, discard) ** 0.5)


def shared_neighbours(logs: Float64[np.ndarray, " n"], nearest: Int64[np.ndarray, " n"], discard: float = 0.1) -> float:
    """By how much the variance of a mean of `logs` exceeds that of independent ones; at least 1.

    Items that are each other's nearest neighbours share a distance, and so do those with the same nearest neighbour:
    products of deviations over all such pairs, over the sum of squares. The largest `discard` count as the largest of the
    others.

    Examples:
        >>> shared_neighbours(np.array([1.0, 1.0, 3.0, 3.0]), np.array([1, 0, 3, 2]), 0.0)
        2.0
    """
    n = len(logs)
    away = np.minimum(logs, np.sort(logs)[max(0, int(n * (1 - discard)) - 1)])
    away = away - away.mean()
    rows = np.repeat(np.arange(n), 2)
    touched = csr_matrix((np.ones(2 * n), (rows, np.stack([np.arange(n), nearest], 1).ravel())), shape=(n, n))
    pairs = (touched @ touched.T).sign()
    return max(1.0, float(away @ (pairs @ away)) / max(float(away @ away), 1e-300))


def estimate(ratios: Any, discard: Discarded = 0.1) -> Estimate:
    """The dimension of n independent ratios `r₂/r₁ ≥ 1`, and its standard error.

    `log(r₂/r₁)` is exponential with rate d. To first order the error of the fit is a weighted sum of the gaps between the
    sorted values, which are independent (Rényi), so its variance needs no resampling.

    Examples:
        >>> round(estimate(np.exp(-np.log(1 - np.arange(1, 10000) / 10000) / 7)).dimension, 2)
        7.0
    """
    found = np.sort(vector(ratios, "the ratios"))
    n = len(found)
    used = int(n * (1 - discard))
    if n < LEAST or found[0] < 1 or not (found[:used] > 1).any():
        raise UsageError(f"got {n} ratios, {int((found > 1).sum())} above 1; expected at least {LEAST}, none below 1")
    logs = np.log(found)
    used = min(used, n - 1)  # 1 - n/n has no logarithm
    places = -np.log1p(-np.arange(1, used + 1) / n)
    fitted = float(logs[:used] @ places / np.square(logs[:used]).sum())
    after = np.cumsum(places[::-1])[::-1] / (n - np.arange(used))  # of each gap, over what it is divided by
    return Estimate(n, fitted, fitted * float(np.linalg.norm(after) / np.square(places).sum()))


def _neighbour_ratios(X: Float64[Tensor, "n p"]) -> tuple[Float64[np.ndarray, " n"], Int64[np.ndarray, " n"]]:
    """`r₂/r₁` of every row of distinct ones, and which row is nearest.

    Candidates come from products; their distances from differences. Where a product's rounding could have hidden a nearer
    row, all differences of that row are taken.

    >>> [found.tolist() for found in _neighbour_ratios(torch.tensor([[0.0], [1.0], [3.0]]).double())]
    [[3.0, 2.0, 1.5], [1, 0, 1]]
    """
    n, p = X.shape
    squares = X.square().sum(1)
    count = min(CANDIDATES, n - 1)
    step = max(1, min(NUMBERS // n, NUMBERS // (count * p)))
    found, nearest = [], []
    for start in range(0, n, step):
        own = torch.arange(start, min(n, start + step), device=X.device)
        apart = squares[own, None] + squares - 2 * X[own] @ X.T
        apart[own - start, own] = torch.inf
        near = apart.topk(count, largest=False)
        exact = (X[own, None] - X[near.indices]).square().sum(2).sort(1)
        distances = exact.values[:, :2]
        closest = near.indices.gather(1, exact.indices[:, :1])[:, 0]
        slack = 4 * p * np.finfo(float).eps * (squares[own] + squares.max())
        for k in (near.values[:, -1] - slack < distances[:, 1]).nonzero().flatten().tolist() if n - 1 > count else ():
            distances[k], closest[k] = _two_smallest(X, int(own[k]))
        found.append((distances[:, 1] / distances[:, 0]).sqrt())
        nearest.append(closest)
    return torch.cat(found).cpu().numpy(), torch.cat(nearest).cpu().numpy()


def _two_smallest(X: Float64[Tensor, "n p"], row: int) -> tuple[Float64[Tensor, " 2"], int]:
    """Squared distances of a row to its two nearest, from all differences, and which is nearest."""
    step = max(1, NUMBERS // X.shape[1])
    squares = torch.cat([(X[k : k + step] - X[row]).square().sum(1) for k in range(0, len(X), step)])
    squares[row] = torch.inf
    found = squares.topk(2, largest=False)
    return found.values, int(found.indices[0])


def _distinct(X: Float64[Tensor, "n p"]) -> Tensor:
    """The first row of every kind, in order."""
    places: dict[bytes, int] = {}
    for at, row in enumerate((X + 0.0).cpu().numpy()):  # + 0.0: -0.0 and 0.0 are equal and have different bytes
        places.setdefault(row.tobytes(), at)
    return torch.tensor(list(places.values()))


def components_for(variance: Numbers, total: Positive, share: Annotated[float, within(above=0, high=1)] = 0.9) -> int:
    """How many principal components hold this share of the variance: the "PC-ID" of Ansuini et al. (2019) at 90 %.

    `variance`: of each component, the largest first; `total`: of all, those not computed included.

    Examples:
        >>> components_for([6.0, 3.0, 0.5], 10.0)
        2
    """
    sums = np.cumsum(vector(variance, "the variance"))
    if not len(sums):
        raise UsageError("got the variance of no component; expected at least one")
    reached = np.flatnonzero(sums >= share * total * (1 - 1e-12))
    if not len(reached):
        raise UsageError(
            f"got {len(sums)} components with {sums[-1] / total:.3f} of the variance; expected at least {share}: compute more"
        )
    return int(reached[0]) + 1
