"""What holds of the data whatever is trained on them: range, roots, covariances, and what a straight line explains."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from ntkscope_papers.balakrishnan_2023.polynomials.data import BOUND, choose_roots, hidden_polynomial, polynomial

DIMENSION, ITEMS = 100, 10_000
DEGREES = range(3, 21)
LINES = range(3, 10)
DRAWS = 100_000
SEEDS = 10


def identities_of(roots: str, seed: int) -> dict[str, Any]:
    """At the published sizes, at every scale of the experiment."""
    drawn = [_scalars(seed + s) for s in range(SEEDS)]
    lines = {
        str(degree): [
            float(f"{_line(v, polynomial(v, choose_roots(roots, degree, seed + s))):.4g}")
            for s, (v, _) in enumerate(drawn)
        ]
        for degree in LINES
    }
    return {
        "dimension": DIMENSION,
        "largest |v|": max(float(v.abs().max()) for v, _ in drawn),
        "std of v": [round(float(v.std()), 4) for v, _ in drawn],
        "scale": [float(f"{scale:.6g}") for _, scale in drawn],
        "max |v| before": [float(f"{BOUND / scale:.6g}") for _, scale in drawn],
        "roots in range": {str(degree): _count_roots(roots, degree, seed) for degree in DEGREES},
        "slope at 0": {str(degree): _slope(roots, degree, seed) for degree in DEGREES if degree % 2 == 0},
        "share of variance of the best line": lines,
        **_covariances(seed),
    }


def _scalars(seed: int) -> tuple[torch.Tensor, float]:
    """v of all items, and the number that inputs were multiplied by."""
    split = hidden_polynomial(seed=seed, dimension=DIMENSION, dtype="float64")
    assert split.validation is not None
    v = torch.cat([part.extras["v"] for part in (split.train, split.validation, split.test)])
    return v, float(split.extras["scale"])


def _count_roots(roots: str, degree: int, seed: int) -> int:
    """Distinct roots in [-2, 2]: zeros of the polynomial between which its sign changes. More than the degree there are not."""
    chosen = choose_roots(roots, degree, seed)
    between = (chosen[1:] + chosen[:-1]) / 2
    signs = polynomial(between, chosen).sign()
    alternates = bool((signs[1:] * signs[:-1] == -1).all() and (signs != 0).all())
    inside = bool((chosen.abs() <= BOUND).all() and (polynomial(chosen, chosen) == 0).all())
    return len(chosen) if alternates and inside else int(torch.unique(chosen).numel()) - 1


def _slope(roots: str, degree: int, seed: int) -> float:
    """p'(0) = Σ_k Π_{j≠k} (-root_j)."""
    chosen = choose_roots(roots, degree, seed).numpy()
    return float(sum(np.prod(-np.delete(chosen, k)) for k in range(degree)))


def _line(v: torch.Tensor, y: torch.Tensor) -> float:
    return float(torch.corrcoef(torch.stack([v, y]))[0, 1] ** 2)


def _covariances(seed: int) -> dict[str, Any]:
    """Of 100,000 draws with correlation, before they are rescaled, and of v without."""
    found: dict[str, Any] = {}
    for kind in ("isotropic", "correlated"):
        options: dict[str, Any] = {"train": DRAWS, "validation": 0, "test": 1, "dtype": "float64"}
        split = hidden_polynomial(seed=seed, correlated=kind == "correlated", **options)
        x = split.train.x / float(split.extras["scale"])
        found[f"variance of v, {kind}"] = round(float(x.sum(1).var()), 2)
        if kind == "correlated":
            sample = x.T @ x / len(x)
            exact = torch.eye(x.shape[1], dtype=torch.float64) + 1
            values, vectors = torch.linalg.eigh(sample)
            found["covariance, relative error"] = round(float((sample - exact).norm() / exact.norm()), 5)
            found["largest eigenvalue"] = round(float(values[-1]), 3)
            found["|cos| of its vector with 1"] = round(float(vectors[:, -1].sum().abs()) / x.shape[1] ** 0.5, 6)
    return found
