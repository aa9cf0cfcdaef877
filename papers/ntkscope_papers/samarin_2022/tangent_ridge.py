"""Least squares of a linearised network with one output, exactly, by its Gram matrix or by its Jacobian.

One Gram matrix serves every ridge and every target: `u = Jᵀ (J Jᵀ + λ)⁻¹ (y - f₀)`, outputs `f₀ + K α`. With n items it is n²
numbers, one copy of which is held; a factorisation is n³/3 multiply-adds (7.2e13 for 60,000).
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float64, Int64
from torch import Tensor, nn

from ntkscope.core import NumericalError, Part, UsageError
from ntkscope.kernels import Tangent
from ntkscope.linalg import least_squares
from ntkscope.linalg.solvers import blocked
from ntkscope_papers.shared.networks import logits_of

BLOCK = 2048  # rows of a block of the factorisation
POWER = 40  # iterations for the largest eigenvalue
ROWS = 1024  # samples whose gradients are formed at a time
SINGLE = 2.0**-23  # of single precision: the cut-off of a least-squares solver that works in it


@dataclass(frozen=True, eq=False)
class System:
    """What is solved: the Gram matrix of training items and test items with them, the outputs at w₀, and the classes.

    `K` is written to while a factorisation is at work and is as it was afterwards.
    """

    K: Float64[Tensor, "n n"]
    K_test: Float64[Tensor, "m n"]
    start: Float64[Tensor, " n"]
    start_test: Float64[Tensor, " m"]
    labels: Int64[Tensor, " n"]
    labels_test: Int64[Tensor, " m"]
    parameters: int
    seconds: float


def make_system(model: nn.Module, train: Part, test: Part, *, device: torch.device, memory: str) -> System:
    """The system of a network with one output, in float64: one symmetric pass over training and test images together."""
    began = time.perf_counter()
    model = model.double().to(device)
    everything = torch.cat([train.x, test.x]).to(device, torch.float64)
    tangent = Tangent(model, dtype=torch.float64, device=device, memory=memory, certify="sampled")
    gram = tangent.kernel("entk", everything).dense()
    outputs = logits_of(model, everything, batch=1024).to(device)
    if outputs.shape[1] != 1:
        raise UsageError(f"got a network with {outputs.shape[1]} outputs; expected one")
    n = len(train)
    return System(
        gram[:n, :n],
        gram[n:, :n],
        outputs[:n, 0],
        outputs[n:, 0],
        train.y.to(device),
        test.y.to(device),
        sum(p.numel() for p in model.parameters()),
        time.perf_counter() - began,
    )


def signs(labels: Int64[Tensor, " n"], classes: int) -> Float64[Tensor, "n classes"]:
    """One column per class: +1 for its items, -1 for the others."""
    return 2 * torch.nn.functional.one_hot(labels, classes).double() - 1


def ridge_path(system: System, ridges: Sequence[float], classes: int) -> dict[str, Any]:
    """Accuracies of every class against the rest for every ridge, a multiple of the mean diagonal; 0 is interpolation.

    A ridge at which the matrix is not positive definite in float64 is reported as such. `rank`: the pivots of the
    factorisation that are not mere ridge, which is the number of items whose gradient is not a combination of those before it.
    """
    K = system.K
    unit = float(K.diagonal().mean())
    gaps = signs(system.labels, classes) - system.start[:, None]
    top = _largest_eigenvalue(K)
    found: dict[str, Any] = {}
    for ridge in ridges:
        began = time.perf_counter()
        solved = _solved(K, gaps, ridge * unit)
        name = f"{ridge:g}"
        if solved is None:
            found[name] = {"failed": "not positive definite in float64"}
            continue
        weights, pivots = solved
        residual = (K @ weights).add_(weights, alpha=ridge * unit).sub_(gaps)
        found[name] = {
            "train": percent_right(system.start[:, None] + K @ weights, system.labels, classes),
            "test": percent_right(system.start_test[:, None] + system.K_test @ weights, system.labels_test, classes),
            "residual": float(residual.norm() / gaps.norm()),
            "rank": int((pivots > 100 * (ridge * unit + torch.finfo(K.dtype).eps * top)).sum()),
            "seconds": round(time.perf_counter() - began, 2),
        }
    return {
        "rows": len(K),
        "parameters": system.parameters,
        "mean diagonal": unit,
        "largest eigenvalue": top,
        "single precision": SINGLE**2 * top / unit,
        "kernel_seconds": round(system.seconds, 2),
        "ridges": found,
    }


def _solved(K: Tensor, gaps: Tensor, ridge: float) -> tuple[Tensor, Tensor] | None:
    """`(K + ridge)⁻¹ gaps` and the pivots, or None; the factor is written below the diagonal of K, which is then restored."""
    diagonal = K.diagonal().clone()
    K.diagonal().add_(ridge)
    try:
        if not blocked.cholesky(K, BLOCK):
            return None
        pivots = K.diagonal().square()
        inner = blocked.solve_triangular(K, gaps, upper=False, block=BLOCK)
        return blocked.solve_triangular(K, inner, upper=False, transposed=True, block=BLOCK), pivots
    finally:
        blocked.mirror(K, diagonal, BLOCK)


def _largest_eigenvalue(K: Tensor) -> float:
    vector = K.sum(1)
    for _ in range(POWER):
        vector = K @ (vector / vector.norm())
    return float(vector.norm())


def percent_right(outputs: Float64[Tensor, "n classes"], labels: Int64[Tensor, " n"], classes: int) -> list[float]:
    """Of each class against the rest: how many items are on the right side of 0."""
    if not bool(torch.isfinite(outputs).all()):
        raise NumericalError("a solution is not finite; take a larger ridge")
    hits = (outputs > 0) == (signs(labels, classes) > 0)
    return [round(100 * value, 4) for value in hits.double().mean(0).tolist()]


def by_jacobian(
    model: nn.Module, train: Part, test: Part, ridges: Sequence[float], classes: int, *, device: torch.device
) -> dict[str, Any]:
    """The same from the Jacobian itself (SVD, on CUDA QR), whose condition number is not squared; `ridges` as above."""
    model = model.double().to(device)
    x, x_test = (part.x.to(device, torch.float64) for part in (train, test))
    start, start_test = (logits_of(model, inputs, batch=1024)[:, 0].to(device) for inputs in (x, x_test))
    labels, labels_test = train.y.to(device), test.y.to(device)
    gaps = signs(labels, classes) - start[:, None]
    J, J_test = jacobian(model, x), jacobian(model, x_test)
    unit = float(torch.linalg.vector_norm(J) ** 2 / len(J))
    found: dict[str, Any] = {}
    for ridge in ridges:
        began = time.perf_counter()
        try:
            solution = least_squares(J, gaps, ridge=ridge * unit, rtol=0.0 if ridge else None)
        except UsageError as error:
            found[f"{ridge:g}"] = {"failed": str(error)[:200]}
            continue
        found[f"{ridge:g}"] = {
            "train": percent_right(start[:, None] + J @ solution.solution, labels, classes),
            "test": percent_right(start_test[:, None] + J_test @ solution.solution, labels_test, classes),
            "rank": solution.rank,
            "method": solution.method,
            "seconds": round(time.perf_counter() - began, 2),
        }
    return {"rows": len(J), "parameters": J.shape[1], "mean diagonal": unit, "ridges": found}


def jacobian(model: nn.Module, x: Tensor) -> Float64[Tensor, "n p"]:
    """The gradients of a network with one output, row by row."""
    tangent = Tangent(model, dtype=torch.float64, device=x.device, certify="sampled")
    matrix: Tensor | None = None
    for i in range(0, len(x), ROWS):
        rows = torch.cat([part.flatten(1) for part in tangent.features(x[i : i + ROWS]).values()], dim=1)
        if matrix is None:
            matrix = rows.new_empty(len(x), rows.shape[1])
        matrix[i : i + ROWS] = rows
    assert matrix is not None
    return matrix


def interpolating(path: Mapping[str, Any]) -> tuple[str, Mapping[str, Any]]:
    """The smallest ridge whose system could be factorised, and what it gave: the reading of an unregularised solver."""
    solved = {name: one for name, one in path["ridges"].items() if "failed" not in one}
    if not solved:
        raise UsageError("no ridge of the path could be factorised; expected larger ones among ridges=")
    name = min(solved, key=float)
    return name, solved[name]
