"""Kernel: what the trace-NTK looks like, how many directions it has, how much of it points along the labels."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from ntkscope.data.subsets import stratified
from ntkscope.linalg import entropy_rank
from ntkscope.measures.alignment import centred_alignment, kernel_distance, kernel_target_alignment
from ntkscope.xray.context import Array, Context, lengths
from ntkscope.xray.rates import Workload
from ntkscope.xray.registry import Finding, Section, register

SHOWN = 200  # rows of the heat map
DECOMPOSED = 2000  # rows of which all eigenvalues are computed


def run(context: Context) -> Finding:
    y = context.y_train
    K = context.pair("trntk").train
    _heatmap(context, K)
    rows = stratified(y, max(DECOMPOSED, len(context.classes)), context.seed, "xray", "spectrum")
    part = np.asarray(K if len(rows) == len(y) else K[np.ix_(rows, rows)], dtype=np.float64)
    values = torch.linalg.eigvalsh(torch.from_numpy((part + part.T) / 2)).flip(0)
    context.keep("kernel.eigenvalues", values)
    kept = values[values > len(values) * torch.finfo(torch.float32).eps * values[0]]  # the rest is rounding
    data: dict[str, Any] = {
        "name": "trntk",
        "rows": len(rows),
        "effective_rank": entropy_rank(values.clamp_min(0)),
        "alignment": kernel_target_alignment(K, y),
        "centred_alignment": kernel_target_alignment(K, y, centred=True),
        "condition_number": float(kept[0] / kept[-1]),
        "smallest_eigenvalue": float(values[-1]),
        "initial": None if context.initial is None else _initial(context),
    }
    confidence = (
        f"Exact up to rounding on {len(rows):,} training items"
        + ("." if len(rows) == len(y) else f", a stratified part of the {len(y):,} in use.")
        + " The effective rank grows with the number of items; compare it at equal numbers only."
    )
    return Finding(data, confidence)


def _heatmap(context: Context, K: Array) -> None:
    rows = stratified(context.y_train, max(SHOWN, len(context.classes)), context.seed, "xray", "heatmap")
    rows = rows[np.argsort(context.y_train[rows], kind="stable")]
    context.keep("kernel.heatmap", np.asarray(K[np.ix_(rows, rows)], dtype=np.float32))
    context.keep("kernel.heatmap_labels", context.y_train[rows])


def _initial(context: Context) -> dict[str, Any]:
    """The same of the initial network, and the distance between both, on the items both kernels have."""
    rows = context.initial_rows[0]
    before = np.asarray(context.initial_pair("trntk0").train, dtype=np.float64)
    now = np.asarray(context.pair("trntk0").train[np.ix_(rows, rows)], dtype=np.float64)
    root = lengths(np.diagonal(before))
    unit = before / root[:, None] / root
    values = torch.linalg.eigvalsh(torch.from_numpy((unit + unit.T) / 2)).flip(0)
    context.keep("kernel.initial_eigenvalues", values)
    y = context.y_train[rows]
    own = lengths(np.diagonal(now))
    current = now / own[:, None] / own
    current_values = torch.linalg.eigvalsh(torch.from_numpy((current + current.T) / 2)).flip(0)
    context.keep("kernel.current_eigenvalues", current_values)  # of the same items as the initial ones
    return {
        "items": len(rows),
        "distance": kernel_distance(before, now),
        "centred_distance": 1 - centred_alignment(before, now),
        "alignment": kernel_target_alignment(unit, y),
        "centred_alignment": kernel_target_alignment(unit, y, centred=True),
        "effective_rank": entropy_rank(values.clamp_min(0)),
        "now_alignment": kernel_target_alignment(current, y),
        "now_centred_alignment": kernel_target_alignment(current, y, centred=True),
        "now_effective_rank": entropy_rank(current_values.clamp_min(0)),
    }


def cost(work: Workload) -> float:
    return work.decomposition(DECOMPOSED) + 4 * work.train**2 * 100 * work.rates.double


register(
    Section(
        name="kernel",
        place=5,
        title="Kernel",
        meaning=(
            "Two inputs are near each other for this kernel when a training step on one moves the network's outputs on the"
            " other. Blocks along the classes show what the network holds together; a high alignment with the labels says"
            " that its features already sort the classes."
        ),
        formula=(
            "κ(x, x′) = Σ_k ⟨∇f_k(x), ∇f_k(x′)⟩ / √(κ₀(x, x) κ₀(x′, x′)). Alignment: ⟨K, YYᵀ⟩ / (‖K‖ ‖YYᵀ‖), Y the one-hot"
            " labels; centred: with HKH in place of K. Effective rank: exp of the entropy of the eigenvalues' shares."
            " Distance: 1 - ⟨K₀, K₁⟩ / (‖K₀‖ ‖K₁‖)."
        ),
        run=run,
        cost=cost,
    )
)
