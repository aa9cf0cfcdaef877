"""Spectra of a two-layer student: eigenvalues of WᵀW/d, CK and NTK, what they align with, and how they moved."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from ntkscope.core import Split
from ntkscope.kernels import Tangent
from ntkscope.linalg import as_gram, eigenpairs, principal_angles
from ntkscope.measures.alignment import kernel_target_alignment
from ntkscope.measures.spectra import classify, compare
from ntkscope_papers.wang_2023.teacher import LAYER

KERNELS = {"ck": "ck", "ntk": "trntk0"}
KINDS = ("weights", *KERNELS)
TOP = 10  # largest eigenvalues in a record
TAIL = 0.05  # of the eigenvalues, from which Hill's exponent is taken
QUANTILES = 81  # of a spectrum in a record


@dataclass(frozen=True, eq=False)
class Spectrum:
    """Of one matrix: itself, its eigenvalues, descending, and the vector of the largest."""

    matrix: Tensor
    values: Tensor
    first: Tensor


def spectra_of(
    model: nn.Module, split: Split, device: torch.device, kinds: Sequence[str] = KINDS
) -> dict[str, Spectrum]:
    """WᵀW/d of the first layer (`matrix` is W), CK and NTK on the training inputs, in double precision."""
    found: dict[str, Spectrum] = {}
    model = model.to(device).double().eval()
    if "weights" in kinds:
        found["weights"] = weight_spectrum(model.get_parameter(LAYER).detach())
    tangent, x = Tangent(model, memory="8GiB"), split.train.x.to(device).double()
    for kind in KERNELS:
        if kind in kinds:
            K = tangent.kernel(KERNELS[kind], x).dense().detach()
            values, vectors = eigenpairs(K)
            found[kind] = Spectrum(K, values.flip(0), vectors[:, -1])
    return found


def weight_spectrum(W: Tensor) -> Spectrum:
    """Of WᵀW/d, with the first right singular vector."""
    W = W.detach().double()
    values, vectors = eigenpairs(W.T @ W / W.shape[1])
    return Spectrum(W, values.flip(0), vectors[:, -1])


def alignments(spectra: Mapping[str, Spectrum], split: Split) -> dict[str, float]:
    """|β·u₁| of the weights, largest over the teacher's directions; |y·v₁|/‖y‖ of the kernels; KTA of the CK (Eq. 87)."""
    found: dict[str, float] = {}
    y = split.train.y.double().cpu()
    for kind, spectrum in spectra.items():
        first = spectrum.first.cpu()
        if kind == "weights":
            found[kind] = float((split.extras["directions"].double() @ first).abs().max())
        else:
            found[kind] = float((y @ first).abs() / y.norm())
    if "ck" in spectra:
        found["kta"] = kernel_target_alignment(spectra["ck"].matrix.cpu(), y)
    return found


def outlier_overlap(W: Tensor, directions: Tensor, top: int) -> list[float]:
    """cos² of the principal angles between the teacher's directions (k, d) and the `top` first right singular vectors of W."""
    W = W.detach().double()
    _, vectors = eigenpairs(W.T @ W)
    angles = principal_angles(vectors[:, -top:], directions.double().to(W.device).T)
    return [float(c) for c in angles.cos().square()]


def hill(values: Tensor, share: float = TAIL) -> float:
    """Hill's exponent of the largest `share` of positive values: `1 / mean log(v_i / v_k)`; small means a heavy tail.

    >>> round(hill(torch.tensor([math.e**2, math.e, 1.0, 1.0]), 0.75), 6)  # logs 2 and 1 above the third
    0.666667
    """
    values = values.sort(descending=True).values
    count = max(2, math.ceil(share * len(values)))
    mean = float((values[: count - 1] / values[count - 1]).log().mean())
    return 1 / mean if mean > 0 else math.inf


def beyond(values: Tensor, edge: float, margin: float = 0.0) -> int:
    """How many values lie more than `margin` (relative) above `edge`."""
    return int((values > edge * (1 + margin)).sum())


def moved(before: Spectrum, after: Spectrum, *, curve: bool) -> dict[str, Any]:
    """How a spectrum changed since the start, in a few numbers; with its quantiles if `curve`."""
    change = compare(before.values.cpu(), after.values.cpu())
    edge = float(before.values[0])
    told: dict[str, Any] = {
        "top": rounded(after.values[:TOP].tolist()),
        "ks": float(change.ks),
        "wasserstein": float(change.wasserstein),
        "top_ratio": float(after.values[0]) / edge,
        "gap": float(after.values[0] / after.values[1]),
        "above": beyond(after.values, edge),
        "above_tenth": beyond(after.values, edge, 0.1),
        "hill": hill(after.values),
    }
    if curve:
        told["quantiles"] = quantiles(after.values)
    return told


def class_of(kind: str, before: Spectrum, after: Spectrum, seed: int) -> dict[str, Any]:
    """The class of the trained matrix with the one at the start as its null, by the rule of `measures.spectra`."""
    pair = [one.matrix if kind == "weights" else as_gram(one.matrix, symmetric=True) for one in (after, before)]
    found = classify(*pair, seed=seed)
    told: dict[str, Any] = {"label": found.label, "reason": found.evidence["reason"]}
    if found.spikes is not None:
        told["spikes"] = int(found.spikes.count)
    if found.tail is not None:
        told["alpha"] = float(found.tail.alpha)
    return told


def quantiles(values: Tensor, count: int = QUANTILES) -> list[float]:
    """Evenly spaced quantiles, ascending, the ends included."""
    levels = np.linspace(0, 1, count)
    return rounded(np.quantile(values.cpu().numpy(), levels).tolist())


def rounded(values: Sequence[float], digits: int = 5) -> list[float]:
    """To some significant digits: enough for figures, little in a record."""
    return [float(f"{value:.{digits}g}") for value in values]
