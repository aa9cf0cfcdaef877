"""Principal components of features that may lie on disk: exact by covariance or Gram, or by randomised iterations."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import torch
from jaxtyping import Float, Float64
from torch import Tensor

from ntkscope.core import NumericalError, UsageError, generator
from ntkscope.core.arguments import whole
from ntkscope.core.machine.tensor_cores import tensor_cores
from ntkscope.core.sizes import over_budget, parse_bytes
from ntkscope.linalg.features.rows import BLOCK, FeatureRows, Features, Standardisation, standardisation

SMALL = 2048  # sides below this are always decomposed exactly
OVERSAMPLED = 32  # directions carried at least beside those asked for; half as many again where that is more
LEAST, MOST = 3, 16  # products with the covariance before the one that measures: two power iterations and the first
SETTLED = 3e-4  # of the captured variance: what further iterations would still gain
COPIES = 4  # of the square matrix while it is decomposed, or of the directions while they are iterated
BLOCKS = 3  # a block as it is read, standardised, and one of another kind
PROBES = 8  # random combinations of components by which the error of an exact decomposition is measured


@dataclass(frozen=True, eq=False)
class PCA:
    """Principal components: standardise with `mean` and `scale`, then project on `directions`, all in float64.

    `variance`: of each component, largest first, with 1/n. `total`: of all of them. `error`: `‖C V - V Λ‖ / ‖Λ‖` in the
    Frobenius norm, for the covariance C, measured and not assumed.
    """

    mean: Float64[Tensor, " p"]
    scale: Float64[Tensor, " p"]
    directions: Float64[Tensor, "p k"]
    variance: Float64[Tensor, " k"]
    total: float
    error: float
    method: str

    def __len__(self) -> int:
        """The number of components."""
        return len(self.variance)

    @property
    def shares(self) -> Float64[Tensor, " k"]:
        """The share of the total variance that the first 1, 2, … components explain."""
        return self.variance.cumsum(0) / self.total

    def transform(self, X: Features, components: int | None = None) -> Float[Tensor, "n k"]:
        """Scores of rows on the first `components` (all when None), on the device of the directions; O(n p k).

        They are computed in float64 and returned in the features' own precision, at least float32.
        """
        rows = FeatureRows.of(X)
        if rows.width != len(self.mean):
            raise UsageError(f"got features of width {rows.width} for components of {len(self.mean)} features")
        k = len(self) if components is None else whole(components, "components", low=1, high=len(self))
        still, directions = Standardisation(self.mean, self.scale), self.directions[:, :k]
        dtype = torch.promote_types(rows.dtype, torch.float32)
        scores = torch.empty(rows.n, k, dtype=dtype, device=directions.device)
        for at, block in rows.blocks():
            scores[at] = (still(block) @ directions).to(dtype)
        bad = (~torch.isfinite(scores).all(1)).nonzero().flatten()
        if len(bad):
            raise NumericalError(
                f"the scores of {len(bad)} rows are NaN or infinite, the first of row {int(bad[0])}; check the inputs those"
                " features were computed from"
            )
        return scores


def pca(
    features: Features,
    *,
    components: int | None = None,
    standardise: bool = True,
    method: Literal["auto", "exact", "randomised"] = "auto",
    memory: str | int | float = "2GiB",
    seed: int = 0,
) -> PCA:
    """The leading eigenvectors of the covariance of (n, p) features: a tensor, an array or a `FeatureStore`.

    `standardise`: every column is divided by its standard deviation (1/n), constant columns by 1. `components`: how many,
    default all. Directions along which nothing varies are left out, so there may be fewer.

    `method="exact"` decomposes the covariance (p ≤ n) or the Gram (n < p) in float64: O(n p min(n, p) + min(n, p)³).
    `"randomised"` is subspace iteration from a random start, at least two power iterations and as many more as the captured
    variance still gains from (Halko, Martinsson & Tropp 2011, algorithm 4.4): O(n p k) per pass over the rows, products in the
    features' own precision. `"auto"` is exact where a side is short, where most components are asked for, and for all
    of them. Rows pass by in blocks: of the features themselves, only blocks are copied.

    Examples:
        >>> X = torch.tensor([[3.0, 1.0, 5.0], [-3.0, 1.0, 5.0], [3.0, -1.0, 5.0], [-3.0, -1.0, 5.0]])
        >>> found = pca(X, standardise=False)
        >>> found.variance.tolist(), found.total
        ([9.0, 1.0], 10.0)
        >>> found.transform(X)[:, 0].abs().tolist()
        [3.0, 3.0, 3.0, 3.0]
    """
    budget = parse_bytes(memory)
    rows = FeatureRows.of(features)
    side = min(rows.n, rows.width)
    if rows.n < 2:
        raise UsageError("got one row of features; expected at least two: one row does not vary")
    if components is not None and not 1 <= components <= side:
        raise UsageError(
            f"got components={components!r} for features of shape ({rows.n}, {rows.width}); expected 1 … {side}"
        )
    wanted = side if components is None else components
    square = 8 * (COPIES * side**2 + (rows.width * wanted if rows.n < rows.width else 0))
    exact = method == "exact" or components is None or wanted > side // 4 or side <= SMALL
    if method == "randomised" or (method == "auto" and components is not None and not _fits(square, rows, budget)):
        exact = False
    held = square if exact else 8 * COPIES * rows.width * _carried(side, wanted)
    if not _fits(held, rows, budget):
        what = f"the {side} × {side} matrix of an exact decomposition" if exact else f"{wanted} components"
        raise over_budget(
            budget, held + _row_bytes(rows), f"for {what}", "raise memory=, or ask for fewer with components="
        )
    rows = FeatureRows.of(features, min(BLOCK, (budget - held) // BLOCKS))
    still, column_variance = standardisation(rows, standardise)
    total = float((column_variance / still.scale.square()).sum())
    if not total > 0:
        raise NumericalError(
            f"all {rows.width} features are constant over {rows.n} rows; expected some that vary: look at the layer, or at"
            " whether the inputs differ"
        )
    unit = _unit(column_variance / still.scale.square())
    near_one = Standardisation(still.mean, still.scale * unit)  # products stay within the numbers' range
    if exact:
        directions, variance, error = (_by_gram if rows.n < rows.width else _by_covariance)(rows, near_one, wanted)
    else:
        directions, variance, error = _randomised(rows, near_one, wanted, seed)
    return PCA(
        still.mean, still.scale.contiguous(), _signed(directions), variance * unit**2, total, error,
        "exact" if exact else "randomised",
    )  # fmt: skip


def _unit(variance: Float64[Tensor, " p"]) -> float:
    """A power of two near the largest deviation; 1 for standardised columns."""
    return 2.0 ** round(math.log2(float(variance.max())) / 2)


def _row_bytes(rows: FeatureRows) -> int:
    """What the shortest block takes, one row in float64 with what is made of it."""
    return BLOCKS * 8 * rows.width


def _fits(held: int, rows: FeatureRows, budget: int) -> bool:
    return held + _row_bytes(rows) <= budget


def _carried(side: int, k: int) -> int:
    """How many directions are iterated for k components."""
    return min(side, k + max(OVERSAMPLED, k // 2))


def _by_covariance(rows: FeatureRows, still: Standardisation, k: int) -> tuple[Tensor, Tensor, float]:
    covariance = torch.zeros(rows.width, rows.width, dtype=torch.float64, device=rows.device)
    for _, block in rows.blocks():
        values = still(block)
        covariance.addmm_(values.T, values)
    covariance /= rows.n
    values, vectors, error = _decomposed(covariance, k)
    return vectors, values, error


def _by_gram(rows: FeatureRows, still: Standardisation, k: int) -> tuple[Tensor, Tensor, float]:
    """By `Y Yᵀ / n = U Λ Uᵀ`, then `V = Yᵀ U / √(n Λ)`."""
    gram = torch.zeros(rows.n, rows.n, dtype=torch.float64, device=rows.device)
    for at, block in rows.blocks():
        left = still(block)
        for other, right in rows.blocks():
            if other.start < at.start:
                continue
            part = left @ (left if other == at else still(right)).T
            gram[at, other] = part
            gram[other, at] = part.T
    gram /= rows.n
    values, vectors, error = _decomposed(gram, k)
    directions = torch.zeros(rows.width, len(values), dtype=torch.float64, device=rows.device)
    for at, block in rows.blocks():
        directions.addmm_(still(block).T, vectors[at])
    return directions / (rows.n * values).sqrt(), values, error


def _decomposed(matrix: Float64[Tensor, "s s"], k: int) -> tuple[Tensor, Tensor, float]:
    """The k largest eigenvalues above rounding, their vectors, and the measured error."""
    values, vectors = torch.linalg.eigh(matrix)
    values, vectors = values.flip(0)[:k], vectors.flip(1)[:, :k]
    kept = _above_rounding(values, len(matrix), torch.float64)
    values, vectors = values[:kept].clone(), vectors[:, :kept].contiguous()
    draws = torch.randn(kept, PROBES, dtype=torch.float64, generator=generator(0, "error of components"))
    draws = draws.to(matrix.device)
    missed = matrix @ (vectors @ draws) - vectors @ (values[:, None] * draws)  # E ‖R g‖² = ‖R‖²
    return values, vectors, float(missed.norm() / (math.sqrt(PROBES) * values.norm()))


def _above_rounding(values: Float64[Tensor, " k"], side: int, dtype: torch.dtype) -> int:
    """How many of these falling eigenvalues are more than rounding."""
    return max(1, int((values > side * torch.finfo(dtype).eps * values[0]).sum()))


def _randomised(rows: FeatureRows, still: Standardisation, k: int, seed: int) -> tuple[Tensor, Tensor, float]:
    """Subspace iteration with `C - α`, α half of the smallest eigenvalue seen so far of those carried.

    That shift brings all eigenvalues that are not carried, in [0, 2α], to at most α, while the wanted ones lose no more than α
    of theirs: about twice the convergence for the same passes (Feng, Yu & Xie 2022).
    """
    side = min(rows.n, rows.width)
    carried = _carried(side, k)
    start = torch.randn(rows.width, carried, dtype=torch.float64, generator=generator(seed, "principal components"))
    basis = torch.linalg.qr(start.to(rows.device))[0]
    captured: list[float] = []
    while True:
        image = _covariance_product(rows, still, basis)
        core = basis.T @ image
        values, rotation = torch.linalg.eigh((core + core.T) / 2)
        values, rotation = values.flip(0), rotation.flip(1)
        captured.append(float(values[:k].sum()))
        if len(captured) > LEAST and (len(captured) > MOST or _still_to_gain(captured) <= SETTLED * captured[-1]):
            break
        basis = torch.linalg.qr(image - values[-1] / 2 * basis)[0]  # no Ritz value exceeds its eigenvalue
    kept = min(k, _above_rounding(values, side, torch.promote_types(rows.dtype, torch.float32)))
    values, rotation = values[:kept], rotation[:, :kept].contiguous()
    directions = basis @ rotation
    missed = image @ rotation - directions * values
    return directions, values, float(missed.norm() / values.norm())


def _covariance_product(
    rows: FeatureRows, still: Standardisation, basis: Float64[Tensor, "p l"]
) -> Float64[Tensor, "p l"]:
    """`C Q` in one pass: products in the features' precision, sums in float64."""
    dtype = torch.promote_types(rows.dtype, torch.float32)
    quick, total = basis.to(dtype), torch.zeros_like(basis)
    with tensor_cores(False):
        for _, block in rows.blocks():
            values = still(block, dtype)
            total += values.T @ (values @ quick)
    return total / rows.n


def _still_to_gain(captured: list[float]) -> float:
    """What further iterations would add if the gains kept falling as the last two did."""
    before, last = captured[-2] - captured[-3], captured[-1] - captured[-2]
    if last <= 0:
        return 0.0
    return last**2 / (before - last) if before > last else math.inf


def _signed(directions: Float64[Tensor, "p k"]) -> Float64[Tensor, "p k"]:
    """Every direction with its largest entry positive, so that signs do not depend on the method."""
    at = directions.abs().argmax(0, keepdim=True)
    return directions * torch.where(directions.gather(0, at) < 0, -1.0, 1.0)
