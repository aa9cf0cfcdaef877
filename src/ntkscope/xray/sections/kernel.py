"""Kernel: what the trace-NTK looks like, how many directions it has, how much of it points along the labels."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
import torch
from jaxtyping import Float64, Int64
from scipy.sparse.linalg import eigsh
from torch import Tensor

from ntkscope.data.subsets import stratified
from ntkscope.linalg import Gram, entropy_rank
from ntkscope.machines.rating import other_measures
from ntkscope.measures.alignment import centred_alignment, kernel_distance, kernel_target_alignment
from ntkscope.xray.context import Context
from ntkscope.xray.plan import EXACT, MAIN
from ntkscope.xray.registry import Finding, Section, register
from ntkscope.xray.result import Result
from ntkscope.xray.task import CLASSIFICATION
from ntkscope.xray.workload import Workload

SHOWN = 200  # rows of the heat map
DIRECTIONS = 6  # leading eigenvectors that are kept
DECOMPOSED = 2000  # rows up to which all eigenvalues are computed


@dataclass(frozen=True)
class Initial(Result):
    """The initial network's kernel, and the trained one on the same items (`now_…`)."""

    items: int
    distance: float
    centred_distance: float
    alignment: float
    centred_alignment: float
    effective_rank: float
    now_alignment: float
    now_centred_alignment: float
    now_effective_rank: float


@dataclass(frozen=True)
class Kernel(Result):
    """One kernel in figures; `more` are registered measures of a kernel and labels that have no field here."""

    name: str
    rows: int
    effective_rank: float
    alignment: float
    centred_alignment: float
    condition_number: float
    smallest_eigenvalue: float
    initial: Initial | None
    more: Mapping[str, float] = field(default_factory=dict, metadata={"optional": True})


def run(context: Context) -> Finding[Kernel]:
    y, strata = context.aim_train, context.train.strata
    K = context.pair(MAIN).train
    _heatmap(context, K)
    rows = stratified(strata, max(DECOMPOSED, len(context.classes)), context.seed, "xray", "spectrum")
    values = _spectrum(K if len(rows) == len(y) else K[rows, rows])
    context.keep("kernel.eigenvalues", values)
    _directions(context, K, rows)
    kept = values[values > len(values) * torch.finfo(torch.float32).eps * values[0]]  # the rest is rounding
    found = Kernel(
        name=MAIN,
        rows=len(rows),
        effective_rank=entropy_rank(values.clamp_min(0)),
        alignment=kernel_target_alignment(K, y),
        centred_alignment=kernel_target_alignment(K, y, centred=True),
        condition_number=float(kept[0] / kept[-1]),
        smallest_eigenvalue=float(values[-1]),
        initial=None if context.initial is None else _initial(context),
        more=other_measures(["kernel-target-alignment"], {"kernel and labels": (K, y)}),
    )
    confidence = (
        f"Exact up to rounding on {len(rows):,} training items"
        + ("." if len(rows) == len(y) else f", a stratified part of the {len(y):,} in use.")
        + " The effective rank grows with the number of items; compare it at equal numbers only."
    )
    return Finding(found, confidence)


def _spectrum(K: Gram) -> Float64[Tensor, " n"]:
    """The eigenvalues, the largest first."""
    return K.eigvalsh().cpu().flip(0)


def _directions(context: Context, K: Gram, rows: Int64[np.ndarray, " r"]) -> None:
    """The leading eigenvectors of the centred kernel (kernel PCA) on `rows`, each scaled by the root of its eigenvalue."""
    part = (K if len(rows) == len(K) else K[rows, rows]).numpy().astype(np.float64)
    part = (part + part.T) / 2
    mean = part.mean(0)
    centred = part - mean - mean[:, None] + mean.mean()
    values, vectors = leading(centred, DIRECTIONS)
    context.keep("kernel.direction_rows", rows)
    context.keep("kernel.direction_values", values)
    context.keep("kernel.directions", vectors * np.sqrt(np.maximum(values, 0)))
    context.keep("kernel.direction_total", np.array([max(float(np.trace(centred)), 0.0)]))


def leading(matrix: Float64[np.ndarray, "n n"], k: int) -> tuple[Float64[np.ndarray, " k"], Float64[np.ndarray, "n k"]]:
    """The largest eigenvalues and their eigenvectors, the sign of each such that its largest entry is positive; O(n² k).

    >>> values, vectors = leading(np.diag([1.0, 3.0, 2.0]), 2)
    >>> values.round(6).tolist(), np.abs(vectors[:, 0]).round(6).tolist()
    ([3.0, 2.0], [0.0, 1.0, 0.0])
    """
    n = len(matrix)
    if n <= 4 * k:
        values, vectors = np.linalg.eigh(matrix)
    else:  # a start that is not an eigenvector of anything regular, and the same each time
        values, vectors = eigsh(matrix, k=k, which="LA", v0=np.cos(np.arange(n, dtype=np.float64)))
    order = np.argsort(-values, kind="stable")[:k]
    values, vectors = values[order], vectors[:, order]
    largest = vectors[np.abs(vectors).argmax(0), np.arange(vectors.shape[1])]
    return values, vectors * np.where(largest < 0, -1.0, 1.0)


def _heatmap(context: Context, K: Gram) -> None:
    strata = context.train.strata
    rows = stratified(strata, max(SHOWN, len(context.classes)), context.seed, "xray", "heatmap")
    order = strata[rows] if context.task is CLASSIFICATION else context.labels_train[rows, 0]
    rows = rows[np.argsort(order, kind="stable")]
    context.keep("kernel.heatmap", K[rows, rows].numpy().astype(np.float32, copy=False))
    if context.task is CLASSIFICATION:
        context.keep("kernel.heatmap_labels", context.y_train[rows])


def _initial(context: Context) -> Initial:
    """The same for the initial network, and the distance between the two, on the items both kernels share."""
    rows, columns = context.initial_rows
    y = context.aim_train[rows]
    before = context.initial_pair(EXACT).to(torch.float64)
    now = context.pair(EXACT).take(rows, columns).to(torch.float64)
    unit, current = (pair.normalized(MAIN, zeros=True).train for pair in (before, now))
    values, current_values = _spectrum(unit), _spectrum(current)
    context.keep("kernel.initial_eigenvalues", values)
    context.keep("kernel.current_eigenvalues", current_values)  # of the same items as the initial ones
    return Initial(
        items=len(rows),
        distance=kernel_distance(before.train, now.train),
        centred_distance=1 - centred_alignment(before.train, now.train),
        alignment=kernel_target_alignment(unit, y),
        centred_alignment=kernel_target_alignment(unit, y, centred=True),
        effective_rank=entropy_rank(values.clamp_min(0)),
        now_alignment=kernel_target_alignment(current, y),
        now_centred_alignment=kernel_target_alignment(current, y, centred=True),
        now_effective_rank=entropy_rank(current_values.clamp_min(0)),
    )


def cost(work: Workload) -> float:
    return 0.2 + work.decomposition(DECOMPOSED) + 4 * work.train**2 * 100 * work.rates.double


SECTION = register(
    Section(
        name="kernel",
        place=5,
        title="Kernel",
        meaning=(
            "Two inputs are similar under this kernel if a training step on one changes the network's outputs on the"
            " other. Blocks along the classes (or along the values of a real target) show which items the network groups"
            " together; a high alignment with the labels means that its features already separate the classes, or vary with the"
            " target."
        ),
        formula=(
            "κ(x, x′) = Σ_k ⟨∇f_k(x), ∇f_k(x′)⟩ / √(κ₀(x, x) κ₀(x′, x′)). Alignment: ⟨K, YYᵀ⟩ / (‖K‖ ‖YYᵀ‖), Y the one-hot"
            " labels, or the standardised targets; centred: with HKH in place of K. Effective rank: exp of the entropy of the"
            " eigenvalues' shares. Distance: 1 - ⟨K₀, K₁⟩ / (‖K₀‖ ‖K₁‖)."
        ),
        run=run,
        result=Kernel,
        essential=True,
        cost=cost,
    )
)
