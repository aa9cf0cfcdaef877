"""Test errors of two nested kernel machines on nested equispaced grids: the published bounds.

Values are given at the M + 1 test nodes of an interval [a, b]; every `refinement`-th of them (τ) is a training node, M = τ
N. Qadeer et al., in the PNNL report (2023), section 4. Where the report's proof or statement errs, the corrected form
decides and the printed one stands beside it:

- Lemma 4.1 (`‖g‖₁ ≤ √2 ‖g‖₀`): its proof has `Δy/2` where `Δy` is due; the result stands, and the sharp constant is
  `√(2 - 1/τ)`.
- Lemma 4.2 prints `‖g‖₁² ≤ 4 (‖g‖₀² + 2 (b-a)² L²/N²)`; summing its proof gives `4 (‖g‖₀² + (b-a)³ L²/N²)`. They agree where
  b - a = 2, and the printed one is false on intervals longer than about 96. Theorem 4.2 inherits it.
- Lemma 4.4 prints `1/(1-β)`; its own Eq. 42 gives the smaller `1/√(1-β²)`.
- The step before Eq. 33 (`‖g‖₀ ≤ √τ ‖g‖₁`) is printed as an equality and is an inequality.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, fields
from typing import Any, ClassVar

import numpy as np

from ntkscope.core import UsageError
from ntkscope.core.arguments import Vector, vector


def trapezoid_norm(values: Any, length: float = 2.0) -> float:
    """`‖g‖ = (h/2 Σ_j g_j² + g_{j+1}²)^½` of values at equispaced nodes of an interval of this length; O(n). Eq. 32.

    >>> round(trapezoid_norm([1.0, 1.0, 1.0], length=2.0), 6)  # √2
    1.414214
    """
    g = _nodes(values, 1)
    return math.sqrt(length / (len(g) - 1) * float((np.square(g[:-1]) + np.square(g[1:])).sum()) / 2)


def monotone_between(values: Any, refinement: int) -> bool:
    """Whether g is monotone, seen at the test nodes, on every interval between neighbouring training nodes.

    >>> monotone_between([0.0, 1.0, 2.0, 1.0, 0.0], 2), monotone_between([0.0, 3.0, 2.0, 1.0, 0.0], 2)
    (True, False)
    """
    steps = np.diff(_nodes(values, refinement)).reshape(-1, refinement)
    return bool(((steps >= 0).all(1) | (steps <= 0).all(1)).all())


def lipschitz_constant(values: Any, length: float = 2.0) -> float:
    """The largest difference quotient of neighbouring nodes: the Lipschitz constant of g as far as the grid shows it.

    >>> lipschitz_constant([0.0, 1.0, 3.0], length=2.0)
    2.0
    """
    g = _nodes(values, 1)
    return float(np.abs(np.diff(g)).max()) * (len(g) - 1) / length


def projection_share(target: Any, fitted: Any, refinement: int, length: float = 2.0) -> float:
    """`β = ‖P f‖₀ / ‖f‖₀` on the training nodes: how much of the target the kernel's span holds. Eq. 39.

    >>> projection_share([2.0, 0.0, 2.0], [1.0, 9.0, 1.0], 2)
    0.5
    """
    f, p = _nodes(target, refinement)[::refinement], _nodes(fitted, refinement)[::refinement]
    return trapezoid_norm(p, length) / trapezoid_norm(f, length)


@dataclass(frozen=True)
class Bounds:
    """Errors of the conjugate kernel's machine (ck) and the tangent kernel's (ntk), and the constants of two theorems."""

    train_ck: float
    train_ntk: float
    test_ck: float
    test_ntk: float
    c1: float
    c2: float
    d1: float
    d2: float
    lipschitz_ck: float
    lipschitz_ntk: float
    ordered: bool
    """The NTK's training error is not above the CK's (Eq. 38, 52), which all theorems use."""
    aside: ClassVar[tuple[str, ...]] = ("train_ck", "train_ntk", "test_ck", "test_ntk", "c1", "c2", "d1", "d2")

    def told(self) -> dict[str, Any]:
        """What a record keeps: all but the errors, which it has, and the constants, which follow."""
        return {name: value for name, value in asdict(self).items() if name not in self.aside}


COMMON = tuple(field.name for field in fields(Bounds))


@dataclass(frozen=True)
class RegressionBounds(Bounds):
    """What Theorems 4.1 (c1 = `√(2τ)`, c2 = `√(2τ)/(1-β)`) and 4.2 (d1 = `4τ`, d2 = `4τ/(1-β)²`) say of two fits.

    A theorem is None where its hypotheses do not hold on this grid, else whether both its inequalities do.
    """

    beta: float
    projection_error: float
    """`|‖f‖₀² - ‖f_NTK‖₀² - ‖f - f_NTK‖₀²| / ‖f‖₀²` (Eq. 41): 0 for an orthogonal projection."""
    monotone_ck: bool
    monotone_ntk: bool
    theorem_4_1: bool | None
    theorem_4_2: bool | None
    theorem_4_2_printed: bool | None
    slack: tuple[float, float]
    """What Theorem 4.2 adds for CK and NTK, corrected: `4 (b-a)³ L²/N²`."""
    slack_printed: tuple[float, float]
    """As printed: `8 (b-a)² L²/N²`."""
    aside: ClassVar[tuple[str, ...]] = (*Bounds.aside, "slack", "slack_printed")


def regression_bounds(target: Any, ck: Any, ntk: Any, *, refinement: int, length: float = 2.0) -> RegressionBounds:
    """Norms, flags and constants of Theorems 4.1 and 4.2 from the target and two fits at the test nodes; O(n).

    `length`: b - a. Lipschitz constants are those of the test grid.

    >>> f = np.array([0.0, 0.5, 1.0, 0.5, 0.0])
    >>> found = regression_bounds(f, 0 * f, f / 2, refinement=2)
    >>> found.beta, found.theorem_4_1, round(found.c1, 4), round(found.c2, 4)
    (0.5, True, 2.0, 4.0)
    """
    f, from_ck, from_ntk = (_nodes(values, refinement) for values in (target, ck, ntk))
    gaps = (f - from_ck, f - from_ntk)
    train = [trapezoid_norm(gap[::refinement], length) for gap in gaps]
    test = [trapezoid_norm(gap, length) for gap in gaps]
    steepest = [lipschitz_constant(gap, length) for gap in gaps]
    beta = projection_share(f, from_ntk, refinement, length)
    size = trapezoid_norm(f[::refinement], length)
    projected = trapezoid_norm(from_ntk[::refinement], length)
    rest = max(0.0, 1 - beta)
    tau, cells = refinement, (len(f) - 1) // refinement
    slack = (4 * length**3 * steepest[0] ** 2 / cells**2, 4 * length**3 * steepest[1] ** 2 / cells**2)
    printed = (8 * length**2 * steepest[0] ** 2 / cells**2, 8 * length**2 * steepest[1] ** 2 / cells**2)
    monotone = [monotone_between(gap, refinement) for gap in gaps]
    ordered = train[1] <= train[0]
    c1, c2 = math.sqrt(2 * tau), _over(math.sqrt(2 * tau), rest)
    d1, d2 = 4.0 * tau, _over(4.0 * tau, rest**2)

    def second(added: tuple[float, float]) -> bool:
        below = test[1] ** 2 <= d1 * test[0] ** 2 + added[1]
        return below and test[0] ** 2 <= times(d2, test[1] ** 2) + added[0]

    shared: dict[str, Any] = dict(zip(COMMON, (*train, *test, c1, c2, d1, d2, *steepest, ordered)))
    return RegressionBounds(
        **shared,
        beta=beta,
        projection_error=abs(size**2 - projected**2 - train[1] ** 2) / size**2,
        monotone_ck=monotone[0],
        monotone_ntk=monotone[1],
        theorem_4_1=(test[1] <= c1 * test[0] and test[0] <= times(c2, test[1])) if ordered and all(monotone) else None,
        theorem_4_2=second(slack) if ordered else None,
        theorem_4_2_printed=second(printed) if ordered else None,
        slack=slack,
        slack_printed=printed,
    )


def _nodes(values: Any, refinement: int) -> Vector:
    """Values at M + 1 nodes, M a multiple of the refinement, which is at least 1."""
    g = vector(values, "values at the nodes")
    if refinement < 1 or len(g) < 2 or (len(g) - 1) % refinement:
        raise UsageError(
            f"got {len(g)} nodes with refinement={refinement}; expected τN + 1 of them for some N ≥ 1 and refinement τ ≥ 1"
        )
    return g


def _over(a: float, b: float) -> float:
    return a / b if b > 0 else math.inf


def times(a: float, b: float) -> float:
    """The product; an infinite constant bounds everything, zero included."""
    return math.inf if math.isinf(a) else a * b
