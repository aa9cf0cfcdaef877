"""Least squares by LSMR: the matrix is used only through its products with vectors, `A V` and `Aᵀ U`."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ntkscope.core import NumericalError, UsageError
from ntkscope.core.arguments import number, tensor_of, unit_of
from ntkscope.core.checked import Count, NonNegative, Tolerance
from ntkscope.linalg.grams.gram import Gram
from ntkscope.linalg.grams.linear_map import LinearMap
from ntkscope.linalg.grams.mixed import product, transposed_product
from ntkscope.linalg.solvers.system import column_units, in_units, right_hand_sides, warn

SLACK = 10  # what rounding may add to a test of the recurrence when it is repeated with computed residuals


@dataclass(frozen=True, eq=False)
class LSMRSolution:
    """What `lsmr` found, `solution` (p,) or (p, k) as `Y`, and how far it got.

    Of each column, (k,), computed from the solution: `residual_norm`, `‖Y - A X‖`; `relative_residual`, the same over `‖Y‖`, 0
    where both vanish; `optimality`, `‖Aᵀ(Y - A X) - ridge X‖ / (‖A‖ ‖(Y - A X, √ridge X)‖)`, 0 at a least-squares solution;
    `columns_converged`, whether these passed one of the tests. `history`, (iterations + 1, k), from the recurrence: the norm of
    `(Y - A X, √ridge X)` over `‖Y‖`; a column that has stopped keeps its last value. `iterations`: products with `A`, and as
    many with its transpose. `norm`: the estimate of `‖A‖` that the tests used, at most the Frobenius norm.
    """

    solution: Tensor
    iterations: int
    residual_norm: Tensor
    relative_residual: Tensor
    optimality: Tensor
    history: Tensor
    norm: float
    columns_converged: Tensor
    converged: bool
    warnings: tuple[str, ...]


def lsmr(
    A: LinearMap | Gram | Tensor | np.ndarray,
    Y: Tensor | np.ndarray,
    *,
    ridge: NonNegative = 0.0,
    rtol: Tolerance = 1e-8,
    max_iter: Count = 1000,
    callback: Callable[[int, float], None] | None = None,
) -> LSMRSolution:
    """`X` that minimises `‖A X - Y‖² + ridge ‖X‖²`, of minimum norm where there are many.

    One product `A V` and one `Aᵀ U` per iteration. A column stops when `‖R‖ ≤ rtol (‖Y‖ + ‖A‖ ‖X‖)` (the system is solved)
    or `‖Aᵀ R - ridge X‖ ≤ rtol ‖A‖ ‖R‖` (its best approximation is), with R the residual that includes `√ridge X`; `‖A‖` is
    estimated on the way. Columns share the products, have their own scalars, and leave as they stop. A column stops too
    when the condition number of what it has seen reaches the inverse of the rounding unit, after which iterations would
    follow rounding errors into the null space. Memory: four vectors of length p and one of length n per column. Both tests
    are repeated at the end with computed residuals: a column that fails them tenfold has not converged, which is a
    `NumericalWarning`. `callback(iteration, worst test)` follows the value that is compared with `rtol`, over the columns
    still running.

    `A` is a matrix, a Gram, or any object with `shape`, `matvec(V)` and `rmatvec(U)` (`LinearMap`). The arithmetic is
    float64, or the dtype of `Y` where `A` is such an object and `Y` is a floating-point tensor. Fong & Saunders (2011),
    Algorithm 1.

    Examples:
        >>> found = lsmr(torch.tensor([[1.0, 1.0], [1.0, 1.0], [0.0, 0.0]]), torch.tensor([2.0, 2.0, 5.0]))
        >>> found.solution.round(decimals=9).tolist(), found.converged
        ([1.0, 1.0], True)
    """
    operator, targets = _checked(A, Y)
    unit = column_units(targets)
    targets = targets / unit  # columns of any size: their squares neither vanish nor overflow
    size = torch.linalg.vector_norm(targets, dim=0)

    X = targets.new_zeros(operator.shape[1], targets.shape[1])
    history = [torch.where(size > 0, 1.0, 0.0).to(size)]
    norms = torch.zeros_like(size)
    scale, state = _start(operator, targets)
    if scale != 1:
        operator = _divided(operator, scale)
        ridge = number(
            ridge / scale / scale, "ridge", expected=f"one beside which A, of size {scale:.0e}, is not nothing"
        )
    norms[state.column] = state.norm2.sqrt()
    state = state.only(state.ar > 0)  # the others have Aᵀ Y = 0: their solution is 0
    iterations = 0
    while len(state.column) and iterations < max_iter:
        iterations += 1
        tests, finished = _step(operator, state, math.sqrt(ridge), size[state.column], rtol)
        relative = history[-1].clone()
        relative[state.column] = state.r / size[state.column]
        history.append(relative)
        norms[state.column] = state.norm2.sqrt()
        if callback is not None:
            callback(iterations, float(tests.max()))
        if bool(finished.any()):
            X[:, state.column[finished]] = state.x[:, finished]
            state = state.only(~finished)
    X[:, state.column] = state.x

    residual = targets - operator.matvec(X)
    normal = operator.rmatvec(residual) - ridge * X
    if not bool(torch.isfinite(normal).all()):
        raise NumericalError("a product with A gave NaN or infinity; check the inputs it was computed from")
    gap, gradient, length = (torch.linalg.vector_norm(part, dim=0) for part in (residual, normal, X))
    whole = torch.hypot(gap, math.sqrt(ridge) * length)
    optimality = torch.where(gradient == 0, gradient, gradient / (norms * whole))
    solved = whole <= SLACK * rtol * (size + norms * length)
    passed = solved | ~(optimality > SLACK * rtol)
    missed = int((~passed).sum())
    messages = []
    if missed:
        messages.append(
            f"LSMR on a matrix of shape {tuple(operator.shape)}: {missed} of {len(size)} columns did not reach rtol {rtol:.1g}"
            f" in {iterations} of at most {max_iter} iterations (worst optimality {float(optimality[~passed].max()):.2g});"
            " use a larger ridge, more iterations or a larger rtol"
        )
    return LSMRSolution(
        solution=in_units(X, unit, scale).reshape(operator.shape[1], *targets.shape[1:][: np.ndim(Y) - 1]),
        iterations=iterations,
        residual_norm=gap * unit[0],
        relative_residual=torch.where(gap == 0, gap, gap / size),
        optimality=optimality,
        history=torch.stack(history),
        norm=float(norms.max()) * scale if len(norms) else 0.0,
        columns_converged=passed,
        converged=not missed,
        warnings=warn(messages),
    )


class _State(SimpleNamespace):
    """The columns still running: vectors (·, k) and scalars (k,), in the letters of the paper."""

    def only(self, kept: Tensor) -> _State:
        return self if bool(kept.all()) else _State(**{name: value[..., kept] for name, value in vars(self).items()})


def _start(operator: LinearMap, targets: Tensor) -> tuple[float, _State]:
    """What A is divided by (1, unless it is very large or small), and the first vectors of the bidiagonalisation."""
    beta = torch.linalg.vector_norm(targets, dim=0)
    u = targets / _nonzero(beta)
    v = operator.rmatvec(u)
    scale = unit_of(v)
    v = v if scale == 1 else v / scale
    alpha = torch.linalg.vector_norm(v, dim=0)
    v = v / _nonzero(alpha)
    one, zero = torch.ones_like(beta), torch.zeros_like(beta)
    return scale, _State(
        column=torch.arange(len(beta), device=beta.device),
        u=u,
        v=v,
        h=v.clone(),
        **dict.fromkeys(("alpha", "alphabar"), alpha),
        **dict.fromkeys(("beta", "betadd", "r"), beta),
        **dict.fromkeys(("rho", "rhobar", "cbar", "rhodold"), one),
        **dict.fromkeys(("sbar", "zeta", "betad", "tautildeold", "thetatilde", "d", "largest"), zero),
        **dict.fromkeys(("zetabar", "ar"), alpha * beta),
        hbar=torch.zeros_like(v),
        x=torch.zeros_like(v),
        norm2=alpha.square(),
        smallest=torch.full_like(beta, math.inf),
    )


def _step(operator: LinearMap, s: _State, damp: float, size: Tensor, rtol: float) -> tuple[Tensor, Tensor]:
    """One iteration in place: the value of the nearer test of each column, and which columns are finished."""
    s.u = operator.matvec(s.v).sub_(s.alpha * s.u)  # the bidiagonalisation of Golub and Kahan
    s.beta = torch.linalg.vector_norm(s.u, dim=0)
    s.u /= _nonzero(s.beta)
    s.v = operator.rmatvec(s.u).sub_(s.beta * s.v)
    alpha = torch.linalg.vector_norm(s.v, dim=0)
    s.v /= _nonzero(alpha)
    if not bool(torch.isfinite(alpha + s.beta).all()):
        raise NumericalError("a product with A gave NaN or infinity; check the inputs it was computed from")

    chat, shat, alphahat = _rotation(s.alphabar, torch.full_like(alpha, damp))
    rhoold, rhobarold, zetaold = s.rho, s.rhobar, s.zeta
    c, sine, s.rho = _rotation(alphahat, s.beta)
    thetanew = sine * alpha
    s.alphabar = c * alpha
    thetabar, rhotemp = s.sbar * s.rho, s.cbar * s.rho
    s.cbar, s.sbar, s.rhobar = _rotation(rhotemp, thetanew)
    s.zeta, s.zetabar = s.cbar * s.zetabar, -s.sbar * s.zetabar

    s.hbar.mul_(-thetabar * s.rho / _nonzero(rhoold * rhobarold)).add_(s.h)
    s.x.add_(s.zeta / _nonzero(s.rho * s.rhobar) * s.hbar)
    s.h.mul_(-thetanew / _nonzero(s.rho)).add_(s.v)

    betaacute, betacheck = chat * s.betadd, -shat * s.betadd  # the norm of the residual
    betahat, s.betadd = c * betaacute, -sine * betaacute
    thetatildeold = s.thetatilde
    ctildeold, stildeold, rhotildeold = _rotation(s.rhodold, thetabar)
    s.thetatilde, s.rhodold = stildeold * s.rhobar, ctildeold * s.rhobar
    s.betad = -stildeold * s.betad + ctildeold * betahat
    s.tautildeold = (zetaold - thetatildeold * s.tautildeold) / _nonzero(rhotildeold)
    taud = (s.zeta - s.thetatilde * s.tautildeold) / _nonzero(s.rhodold)
    s.d = s.d + betacheck.square()
    s.r = (s.d + (s.betad - taud).square() + s.betadd.square()).sqrt()

    s.norm2 = s.norm2 + s.beta.square()
    norm = s.norm2.sqrt()
    s.norm2 = s.norm2 + alpha.square()
    s.alpha, s.ar = alpha, s.zetabar.abs()
    s.largest = torch.maximum(s.largest, s.rhobar)
    s.smallest = torch.minimum(s.smallest, s.rhobar)

    length = torch.linalg.vector_norm(s.x, dim=0)
    solved = s.r / (size + norm * length)
    stationary = torch.where(s.ar == 0, s.ar, s.ar / _nonzero(norm * s.r))
    tests = torch.minimum(solved, stationary)
    eps = torch.finfo(alpha.dtype).eps
    exhausted = torch.minimum(alpha, s.beta) <= eps * norm  # the Krylov space is complete: what follows is rounding
    ill = torch.minimum(s.smallest, rhotemp.abs()) <= eps * torch.maximum(s.largest, rhotemp.abs())
    return tests, (tests <= rtol) | exhausted | ill


def _rotation(a: Tensor, b: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """`(c, s, r)` of the plane rotation that turns (a, b) into (r, 0)."""
    r = torch.hypot(a, b)
    return torch.where(r > 0, a / _nonzero(r), 1.0), b / _nonzero(r), r


def _nonzero(x: Tensor) -> Tensor:
    return torch.where(x == 0, 1.0, x)


@dataclass(frozen=True, eq=False)
class _Products:
    """A `LinearMap` by its two functions."""

    shape: Any
    matvec: Callable[[Tensor], Tensor]
    rmatvec: Callable[[Tensor], Tensor]


def _divided(inner: LinearMap, scale: float) -> LinearMap:
    """Another `LinearMap` divided by a number."""
    return _Products(inner.shape, lambda V: inner.matvec(V) / scale, lambda U: inner.rmatvec(U) / scale)


def _held_to_shape(inner: LinearMap) -> LinearMap:
    """A caller's `LinearMap`, whose products must have the shape and dtype that they should."""

    def checked(name: str, rows: int) -> Callable[[Tensor], Tensor]:
        def multiply(vectors: Tensor) -> Tensor:
            result = getattr(inner, name)(vectors)
            if result.shape != (rows, vectors.shape[1]) or result.dtype != vectors.dtype:
                raise UsageError(
                    f"{name} of {type(inner).__name__} with shape {tuple(inner.shape)} gave {result.dtype} of shape"
                    f" {tuple(result.shape)} for {vectors.dtype} of shape {tuple(vectors.shape)}; expected {vectors.dtype} of"
                    f" shape {(rows, vectors.shape[1])}"
                )
            return result.detach().clone()  # the iteration works in place

        return multiply

    return _Products(inner.shape, checked("matvec", inner.shape[0]), checked("rmatvec", inner.shape[1]))


def _checked(A: Any, Y: Tensor | np.ndarray) -> tuple[LinearMap, Tensor]:
    """The matrix by its products and right-hand sides (n, k), or an error that says what is wrong."""
    if isinstance(A, LinearMap):
        return _held_to_shape(A), right_hand_sides(Y, tuple(A.shape))
    if isinstance(A, Gram):
        operator = _Products(A.shape, lambda V: A @ V, lambda U: A.T @ U)
    elif isinstance(A, Tensor | np.ndarray | list | tuple):
        A = tensor_of(A, "A", 2, keep=True, empty=True)
        operator = _Products(A.shape, lambda V: product(A, V), lambda U: transposed_product(A, U))
    else:
        raise UsageError(
            f"got A of type {type(A).__name__}; expected a matrix, a Gram, or an object with shape, matvec(V) and rmatvec(U)"
        )
    return operator, right_hand_sides(Y, tuple(operator.shape)).to(A.device, torch.float64)
