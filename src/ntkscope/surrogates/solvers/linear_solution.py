"""The roads to the minimum of a linearised network's squared error, and what they report."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Annotated

import torch
from torch import Tensor

from ntkscope.core import Params, UsageError
from ntkscope.core.checked import Count, Fraction, NonNegative, Tolerance, checked
from ntkscope.core.progress import counter
from ntkscope.core.sizes import over_budget
from ntkscope.linalg import cholesky_solve, conjugate_gradient, least_squares, lsmr, minimum_norm_solve
from ntkscope.linalg.solvers.system import EIGENVECTORS, FLOAT64_BELOW
from ntkscope.surrogates.solvers.tangent_system import Problem, TangentSystem

METHODS = ("auto", "dense", "kernel", "lsmr", "cg")
DENSE_FLOPS = 1e13  # what "auto" spends on a decomposition of the Jacobian: minutes on two cores
NUMBER = 8  # bytes: solvers work in float64


@dataclass(frozen=True, eq=False)
class LinearSolution:
    """What `Linearized.solve` found, and how far to trust it. Residuals are computed from the solution itself."""

    method: str
    """The road taken: "dense", "kernel", "lsmr" or "cg"."""
    shape: tuple[int, int]
    """Rows (items × outputs) and parameters."""
    loss: float
    """The mean of `w_i (f_lin(x_i) - y_i)²` over items and outputs."""
    relative_residual: float
    """`‖√W (y - f_lin)‖ / ‖√W (y - f_lin at the start)‖`, the start being u = 0 (w = 0 in coordinates "w")."""
    optimality: float
    """`‖∇‖` of the objective at the solution relative to that at the start: 0 at a minimum."""
    norm: float
    """`‖u‖`, in coordinates "w" `‖w‖`."""
    rank: int | None
    """Singular values kept; None on roads that do not see them."""
    cutoff: float | None
    """Singular values up to this part of the largest counted as zero; None likewise."""
    iterations: int | None
    converged: bool
    """Iterative roads: `tol` was reached. Direct ones: the system was solved without jitter."""
    seconds: float
    warnings: tuple[str, ...]


@dataclass(frozen=True, eq=False)
class _Found:
    """The unknown, (p,), and what its solver said."""

    vector: Tensor
    rank: int | None = None
    cutoff: float | None = None
    iterations: int | None = None
    converged: bool = True
    warnings: tuple[str, ...] = ()


@checked
@dataclass(frozen=True)
class Settings:
    """How a problem is solved; `Linearized.solve` says what each of them does."""

    method: Annotated[str, METHODS] = "auto"
    alpha: NonNegative = 0.0
    cutoff: Fraction | None = None
    tol: Tolerance = 1e-8
    max_iter: Count = 1000
    memory: int = 2 * 2**30
    store: str | os.PathLike[str] | None = None
    progress: bool = False


def solve(problem: Problem, settings: Settings) -> tuple[Params, LinearSolution]:
    """The parameters that minimise a problem, by the names of the network's, and the report."""
    started = time.perf_counter()
    method, cutoff, store = settings.method, settings.cutoff, settings.store
    system = TangentSystem(problem)
    taken = _fitting(system.shape, settings) if method == "auto" else method
    if cutoff is not None and taken in ("lsmr", "cg"):
        raise UsageError(
            f"got cutoff={cutoff} for method {taken!r}, which sees no singular values; expected method='dense' or 'kernel', or"
            " a ridge"
        )
    if store is not None and taken not in ("kernel", "cg"):
        raise UsageError(f"got store= for method {taken!r}, which needs no kernel; expected method='kernel' or 'cg'")
    needed = BYTES[taken](*system.shape) if not (taken == "cg" and store is not None) else 0
    if needed > settings.memory:
        raise over_budget(
            settings.memory,
            needed,
            f"for method {taken!r} on {system.shape[0]:,} rows and {system.shape[1]:,} parameters",
            "raise memory=, or take method='lsmr', which holds a few vectors",
        )
    found = ROADS[taken](system, settings)
    own = dict(problem.model.named_parameters())
    stored = {name: value.to(own[name].dtype) for name, value in system.unflat(found.vector).items()}
    found = replace(found, vector=system.flat(stored))  # what is reported is what the module will hold
    return stored, _report(system, taken, found, settings, time.perf_counter() - started)


def _report(system: TangentSystem, method: str, found: _Found, settings: Settings, seconds: float) -> LinearSolution:
    residual = system.b - system.matvec(found.vector[:, None])[:, 0]
    gradient = system.rmatvec(residual[:, None])[:, 0] - settings.alpha * found.vector
    first = system.rmatvec(system.b[:, None])[:, 0]
    return LinearSolution(
        method=method,
        shape=system.shape,
        loss=float(residual.square().mean()),
        relative_residual=_share(residual, system.b),
        optimality=_share(gradient, first),
        norm=float(torch.linalg.vector_norm(found.vector)),
        rank=found.rank,
        cutoff=found.cutoff,
        iterations=found.iterations,
        converged=found.converged,
        seconds=seconds,
        warnings=found.warnings,
    )


def _share(part: Tensor, whole: Tensor) -> float:
    size, of = float(torch.linalg.vector_norm(part)), float(torch.linalg.vector_norm(whole))
    return 0.0 if size == 0 else size / of if of else math.inf


# -- what each road holds, in bytes -----------------------------------------------------------------------------------


def dense_bytes(rows: int, parameters: int) -> int:
    """J, its weighted copy, both sides of singular vectors and LAPACK's workspace."""
    short = min(rows, parameters)
    return NUMBER * (2 * rows * parameters + (rows + parameters) * short + 4 * short**2)


def kernel_bytes(rows: int, parameters: int) -> int:
    """The kernel, its symmetric part, its factor or eigenvectors with their workspace."""
    return NUMBER * (6 * rows**2 + parameters)


def vectors_bytes(rows: int, parameters: int) -> int:
    return NUMBER * 8 * (rows + parameters)


BYTES: dict[str, Callable[[int, int], int]] = {
    "dense": dense_bytes,
    "kernel": kernel_bytes,
    "lsmr": vectors_bytes,
    "cg": vectors_bytes,
}


def _fitting(shape: tuple[int, int], settings: Settings) -> str:
    """The first direct road that fits memory and time, else LSMR."""
    rows, parameters = shape
    if settings.store is not None:
        return "kernel" if kernel_bytes(*shape) <= settings.memory and rows <= EIGENVECTORS else "cg"
    flops = float(rows) * parameters * min(shape)
    if dense_bytes(*shape) <= settings.memory and flops <= DENSE_FLOPS:
        return "dense"
    if kernel_bytes(*shape) <= settings.memory and rows <= (EIGENVECTORS if settings.alpha else FLOAT64_BELOW):
        return "kernel"
    if settings.cutoff is not None:
        raise UsageError(
            f"got cutoff={settings.cutoff} for a system of {rows:,} rows and {parameters:,} parameters, which is too large"
            " to be decomposed within memory=; raise memory=, or use a ridge in its place"
        )
    return "lsmr"


# -- the roads --------------------------------------------------------------------------------------------------------


def _dense(system: TangentSystem, settings: Settings) -> _Found:
    weights = system.weights.repeat_interleave(system.outputs)
    # b carries √w already, and a row of weight 0 has no say
    targets = torch.where(system.roots > 0, system.b / system.roots, 0.0)
    found = least_squares(system.dense(), targets, ridge=settings.alpha, weights=weights, rtol=settings.cutoff)
    return _Found(found.solution.to(torch.float64), found.rank, found.cutoff)


def _kernel(system: TangentSystem, settings: Settings) -> _Found:
    gram = system.gram(settings.memory, settings.store, settings.progress)
    if settings.alpha > 0 and settings.cutoff is None:
        solved = cholesky_solve(gram, system.b, settings.alpha)
        return _Found(
            system.rmatvec(solved.solution.to(system.b)[:, None])[:, 0],
            converged=solved.jitter == 0,
            warnings=solved.warnings,
        )
    if settings.alpha > 0:
        raise UsageError(
            f"got alpha={settings.alpha} and cutoff={settings.cutoff} for method 'kernel'; expected one of them: leave cutoff="
            " out, or take method='dense'"
        )
    squared = None if settings.cutoff is None else settings.cutoff**2  # eigenvalues are squares of singular values
    found = minimum_norm_solve(gram, system.b, squared)
    vector = system.rmatvec(found.solution.to(system.b)[:, None])[:, 0]
    return _Found(vector, found.rank, math.sqrt(found.cutoff), warnings=found.warnings)


def _lsmr(system: TangentSystem, settings: Settings) -> _Found:
    with counter(settings.max_iter, "LSMR", settings.progress) as bar:
        found = lsmr(
            system,
            system.b[:, None],
            ridge=settings.alpha,
            rtol=settings.tol,
            max_iter=settings.max_iter,
            callback=lambda step, test: bar.advance(),
        )
    return _Found(found.solution[:, 0], None, None, found.iterations, found.converged, found.warnings)


def _cg(system: TangentSystem, settings: Settings) -> _Found:
    stored = settings.store is not None
    gram = system.gram(settings.memory, settings.store, settings.progress) if stored else system.operator()
    with counter(settings.max_iter, "conjugate gradients", settings.progress) as bar:
        found = conjugate_gradient(
            gram,
            system.b,
            settings.alpha,
            rtol=settings.tol,
            max_iter=settings.max_iter,
            callback=lambda step, residual: bar.advance(),
        )
    vector = system.rmatvec(found.solution[:, None])[:, 0]
    return _Found(vector, None, None, found.iterations, found.converged, found.warnings)


ROADS: dict[str, Callable[[TangentSystem, Settings], _Found]] = {
    "dense": _dense,
    "kernel": _kernel,
    "lsmr": _lsmr,
    "cg": _cg,
}
