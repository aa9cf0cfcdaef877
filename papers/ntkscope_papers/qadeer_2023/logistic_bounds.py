"""Test losses of two nested logistic kernel machines on nested grids of a rectangle: the published bounds.

Scores are given at the (M₁ + 1)(M₂ + 1) test nodes as a matrix; every τ₁-th row and τ₂-th column of it is on the training
grid. Losses are sums of `ln(1 + exp ψ̂)`, with the signed score `ψ̂ = (1 - 2η) ψ` of the label η: Eq. 57, 58. Qadeer et
al., in the PNNL report (2023), section 5. Where the report errs, the corrected form decides and the printed one stands
beside it:

- Eq. 11, 12 print the minus sign of the cross-entropy before its first term alone; it covers both.
- Lemma 5.1 prints `l₁ ≤ τ₁τ₂ l₀`. A corner can dominate all test nodes of its four cells, so the safe constant is their number,
  `(2τ₁+1)(2τ₂+1)`; with a peak around one node the printed one fails. Lemma 5.2 has the same fault, and Theorem 5.1
  inherits it.
- Theorem 5.2 drops that factor altogether: `D₁ = exp(h L_NTK)`, `D₂ = ω exp(h L_CK)`; here both carry it.
- Section 5.3 cites Eq. 43 where Eq. 62 is used; ω below 1 counts as 1, as the maximum in its derivation says.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import product
from typing import Any, ClassVar

import numpy as np

from ntkscope.core import UsageError
from ntkscope.core.arguments import Matrix, finite
from ntkscope_papers.qadeer_2023.regression_bounds import COMMON, Bounds, times

Refinement = tuple[int, int]


def signed_scores(scores: Any, labels: Any) -> Matrix:
    """`ψ̂ = (1 - 2η) ψ`: positive where the score is on the wrong side. Eq. 56.

    >>> signed_scores([[2.0, 2.0]], [[0, 1]]).tolist()
    [[2.0, -2.0]]
    """
    psi, eta = finite(scores, "scores", 2), finite(labels, "labels", 2)
    return (1 - 2 * eta) * psi


def summed_cross_entropy(signed: Any) -> float:
    """`Σ ln(1 + exp ψ̂)` over the nodes. Eq. 57, 58.

    >>> round(summed_cross_entropy([[0.0, 0.0]]), 6)  # 2 ln 2
    1.386294
    """
    return float(np.logaddexp(0.0, finite(signed, "signed scores", 2)).sum())


def corner_maximum(signed: Any, refinement: Refinement) -> bool:
    """Whether on every training cell the signed score, seen at the test nodes, is largest at a corner.

    >>> corner_maximum([[1.0, 0.0, 2.0], [0.0, 1.5, 0.0], [1.0, 0.0, 1.0]], (2, 2))
    True
    >>> corner_maximum([[1.0, 0.0, 2.0], [0.0, 2.5, 0.0], [1.0, 0.0, 1.0]], (2, 2))
    False
    """
    cells = _cells(_grid(signed, refinement), refinement)
    return bool((cells.max((2, 3)) <= _corners(cells).max(2)).all())


def labels_match(labels: Any, refinement: Refinement) -> bool:
    """The matching property: every test node lies in some training cell with a corner of its label. Section 5.2.

    >>> labels_match([[0, 0, 1], [0, 1, 1], [0, 0, 0]], (2, 2)), labels_match([[0, 0, 0], [0, 1, 0], [0, 0, 0]], (2, 2))
    (True, False)
    """
    eta = _grid(labels, refinement)
    cells = _cells(eta, refinement)
    found = (_corners(cells)[:, :, :, None, None] == cells[:, :, None]).any(2)  # (cells, cells, nodes, nodes)
    matched = np.zeros(eta.shape, dtype=bool)
    for i, j in product(range(cells.shape[2]), range(cells.shape[3])):  # a node on an edge lies in several cells
        t1, t2 = refinement
        matched[i : i + t1 * len(cells) : t1, j : j + t2 * cells.shape[1] : t2] |= found[:, :, i, j]
    return bool(matched.all())


def corner_lipschitz(scores: Any, refinement: Refinement) -> float:
    """The largest difference quotient between a test node and a corner of its training cell: the L that Lemma 5.2 uses.

    >>> corner_lipschitz([[0.0, 1.0], [0.0, 1.0]], (1, 1))
    0.5
    """
    cells = _cells(_grid(scores, refinement), refinement)
    (t1, t2), (n1, n2) = refinement, cells.shape[:2]
    steps = 2.0 / (n1 * t1), 2.0 / (n2 * t2)
    largest = 0.0
    for (a, b), corner in zip(product((0, t1), (0, t2)), np.moveaxis(_corners(cells), 2, 0)):
        rows, columns = np.arange(t1 + 1) - a, np.arange(t2 + 1) - b
        distance = np.hypot(steps[0] * rows[:, None], steps[1] * columns)
        quotient = np.abs(cells - corner[:, :, None, None]) / np.where(distance > 0, distance, np.inf)
        largest = max(largest, float(quotient.max()))
    return largest


@dataclass(frozen=True)
class LogisticBounds(Bounds):
    """What Theorems 5.1 and 5.2 say of the losses of two machines, with the corrected constants and (`_printed`) as printed.

    Corrected, c1 = `safe`, c2 = `safe·ω`, d1 = `safe·exp(h L_NTK)` and d2 = `safe·ω exp(h L_CK)`. A theorem is None where its
    hypotheses do not hold on this grid, else whether both its inequalities do.
    """

    omega: float
    """`max exp(ψ̂_CK - ψ̂_NTK)` over the training nodes. Eq. 63."""
    corner_ck: bool
    corner_ntk: bool
    matching: bool
    theorem_5_1: bool | None
    theorem_5_1_printed: bool | None
    theorem_5_2: bool | None
    theorem_5_2_printed: bool | None
    h: float
    """The diagonal of a training cell."""
    printed: float
    safe: float
    """`τ₁τ₂`, and `(2τ₁+1)(2τ₂+1)`."""
    aside: ClassVar[tuple[str, ...]] = (*Bounds.aside, "h", "printed", "safe")


def logistic_bounds(
    ck: Any,
    ntk: Any,
    labels: Any,
    *,
    refinement: Refinement,
) -> LogisticBounds:
    """Losses, flags and constants of Theorems 5.1 and 5.2 from scores (M₁+1, M₂+1) and labels at the test nodes; O(n τ₁τ₂).

    The rectangle is [-1, 1]². Lipschitz constants are those of `corner_lipschitz`.

    >>> labels = np.array([[0, 0, 1], [0, 0, 1], [0, 0, 1]])
    >>> found = logistic_bounds(labels - 0.5, 2 * labels - 1.0, labels, refinement=(2, 2))
    >>> found.matching, round(found.omega, 4), found.safe, found.theorem_5_2
    (True, 1.6487, 25.0, True)
    """
    scores = [_grid(values, refinement) for values in (ck, ntk)]
    signed = [signed_scores(values, labels) for values in scores]
    (t1, t2), (rows, columns) = refinement, scores[0].shape
    train = [summed_cross_entropy(values[::t1, ::t2]) for values in signed]
    test = [summed_cross_entropy(values) for values in signed]
    h = math.hypot(2.0 * t1 / (rows - 1), 2.0 * t2 / (columns - 1))
    steepest = [corner_lipschitz(values, refinement) for values in scores]
    corner = [corner_maximum(values, refinement) for values in signed]
    matching, ordered = labels_match(labels, refinement), train[1] <= train[0]
    omega = _exp(float((signed[0] - signed[1])[::t1, ::t2].max()))
    grown, (e_ck, e_ntk) = max(1.0, omega), (_exp(h * steep) for steep in steepest)
    printed, safe = float(t1 * t2), float((2 * t1 + 1) * (2 * t2 + 1))

    def both(first: float, second: float) -> bool:
        return test[1] <= times(first, test[0]) and test[0] <= times(second, test[1])

    by_corner, by_slope = ordered and all(corner), ordered and matching
    constants = (safe, safe * grown, safe * e_ntk, safe * grown * e_ck)
    shared: dict[str, Any] = dict(zip(COMMON, (*train, *test, *constants, *steepest, ordered)))
    return LogisticBounds(
        **shared,
        omega=omega,
        corner_ck=corner[0],
        corner_ntk=corner[1],
        matching=matching,
        theorem_5_1=both(safe, safe * grown) if by_corner else None,
        theorem_5_1_printed=both(printed, printed * grown) if by_corner else None,
        theorem_5_2=both(safe * e_ntk, safe * grown * e_ck) if by_slope else None,
        theorem_5_2_printed=both(e_ntk, grown * e_ck) if by_slope else None,
        h=h,
        printed=printed,
        safe=safe,
    )


def _grid(values: Any, refinement: Refinement) -> Matrix:
    """Values at (τ₁N₁ + 1, τ₂N₂ + 1) nodes."""
    g: Matrix = finite(values, "values at the nodes", 2)
    if min(refinement) < 1 or min(g.shape) < 2 or any((size - 1) % tau for size, tau in zip(g.shape, refinement)):
        raise UsageError(
            f"got a grid of shape {g.shape} with refinement={refinement}; expected (τ₁N₁ + 1, τ₂N₂ + 1) for some N ≥ 1, τ ≥ 1"
        )
    return g


def _cells(g: Matrix, refinement: Refinement) -> np.ndarray:
    """The closed training cells, (N₁, N₂, τ₁ + 1, τ₂ + 1): neighbours share their edges."""
    t1, t2 = refinement
    return np.lib.stride_tricks.sliding_window_view(g, (t1 + 1, t2 + 1))[::t1, ::t2]


def _corners(cells: np.ndarray) -> np.ndarray:
    """(N₁, N₂, 4), in the order of `product((0, τ₁), (0, τ₂))`."""
    return cells[:, :, [0, 0, -1, -1], [0, -1, 0, -1]]


def _exp(x: float) -> float:
    return math.exp(x) if x < 700 else math.inf
