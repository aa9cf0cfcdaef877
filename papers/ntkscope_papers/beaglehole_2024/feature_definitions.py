"""Definitions and identities of the feature-ansatz paper, section 2, each beside what is printed where that differs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from jaxtyping import Float64
from torch import Tensor, nn

from ntkscope import data
from ntkscope.core import generator
from ntkscope.data.chain_monomial import chain_form
from ntkscope.linalg import matrix_correlation
from ntkscope.measures.feature_ansatz import egop, nfa_correlation
from ntkscope.tangent import feature_matrices
from ntkscope_papers.beaglehole_2024.feature_path import LAYERS, ChainTask, tangents_of, weights_of
from ntkscope_papers.beaglehole_2024.matrices import relative

RANKS = (2, 3, 4, 5, 6, 7, 8, 12)
SMALL = ChainTask(items=7, dimension=6, width=9, test_items=2)


def gradient_outer_product(model: nn.Module, x: Tensor, layer: str) -> Float64[Tensor, "in in"]:
    """The AGOP by plain autograd: the mean over samples of the outer product of gradients by the input of `layer`."""
    names = [name for name, _ in model.named_children()]
    hidden = x.double()
    for name in names[: names.index(layer)]:
        hidden = model.get_submodule(name)(hidden)
    hidden = hidden.detach().requires_grad_()
    rest = hidden
    for name in names[names.index(layer) :]:
        rest = model.get_submodule(name)(rest)
    (gradients,) = torch.autograd.grad(rest.sum(), hidden)
    return gradients.T @ gradients / len(x)


def identities(seed: int) -> dict[str, Any]:
    """AGOP = WᵀKW, proposition 2 and the identity K, on a small network of random weights, in float64."""
    split = SMALL.split(seed)
    model = SMALL.network(1.0, seed).double().eval()
    x, weights = split.train.x.double(), weights_of(dict(model.named_parameters()))
    features = feature_matrices(model, x, dtype=torch.float64)
    tangents = tangents_of({name: W[None] for name, W in weights.items()}, x[None])
    found: dict[str, Any] = {"n": len(x), "layers": {}}
    for layer in LAYERS:
        W, b = weights[layer], tangents[layer][0]
        G = gradient_outer_product(model, x, layer)
        K = b.T @ b / len(x)
        F = W.T @ W
        found["layers"][layer] = {
            "gap": relative(W.T @ K @ W, G),
            "gap of feature_matrices": relative(features[layer].agop, G),
            "printed / AGOP": float((W.T @ (b.T @ b) @ W).norm() / G.norm()),
            "gap of proposition 2": abs(matrix_correlation(F, G) - nfa_correlation(W, K)),
            "off 1 with K = 3I": abs(nfa_correlation(W, 3 * torch.eye(len(W), dtype=torch.float64)) - 1),
            "asymmetry": max(relative(F.T, F), relative(G.T, G)),
            "least eigenvalue / largest": min(least(F), least(G)),
            "sizes": [list(F.shape), list(G.shape)],
        }
    found["shapes"] = {name: list(W.shape) for name, W in weights.items()}
    return found


def correlations(seed: int) -> dict[str, Any]:
    """The laws of ρ on random matrices."""
    draw = generator(seed, "laws of the correlation")
    low, scaled, least_psd, outside = 0.0, 0.0, 1.0, 0.0
    for _ in range(200):
        A, B = (torch.randn(6, 4, generator=draw, dtype=torch.float64) for _ in range(2))
        low = max(low, abs(matrix_correlation(A, 2.5 * A) - 1))
        scaled = max(scaled, abs(matrix_correlation(3 * A, 0.1 * B) - matrix_correlation(A, B)))
        least_psd = min(least_psd, matrix_correlation(A.T @ A, B.T @ B))
        outside = max(outside, abs(matrix_correlation(A, B)) - 1)
    return {"off 1 for A, cA": low, "change by scaling": scaled, "least of PSD pairs": least_psd, "beyond 1": outside}


def chain_targets(seed: int, samples: int) -> dict[str, Any]:
    """Variance, EGOP and its rank for several r, and the EGOP for r = 5 from samples."""
    variances, ranks, values = {}, {}, {}
    for r in RANKS:
        split = data.load(
            "chain-monomial", seed=seed, dimension=r, rank=r, train=samples, test=1, unit_labels=False, dtype="float64"
        )
        variances[str(r)] = float(split.train.y.var())
        eigenvalues = torch.linalg.eigvalsh(split.extras["egop"])
        ranks[str(r)] = int((eigenvalues > 1e-9).sum())
        values[str(r)] = float((eigenvalues - ring_eigenvalues(r)).abs().max())
        if r == 5:
            drawn = egop(chain_of_five, split.train.x)
            exact = split.extras["egop"]
            five = {
                "entries": [float(exact[0, 0]), float(exact[0, 2]), float(exact[0, 1])],
                "eigenvalues": eigenvalues.flip(0).tolist(),
                "off, of samples": relative(drawn, exact),
            }
    return {"variances": variances, "ranks": ranks, "off 4cos²(2πm/r)": values, "r = 5": five, "samples": samples}


def chain_of_five(x: Float64[Tensor, "n 5"]) -> Float64[Tensor, " n"]:
    """Eq. 1 for r = 5."""
    return ((x @ chain_form(5, 5)) * x).sum(1)


def ring_eigenvalues(r: int) -> Float64[Tensor, " r"]:
    """`4 cos²(2πm/r)`, in order; for r = 2, where both neighbours are one, 4 twice."""
    return (4 * torch.cos(2 * torch.pi * torch.arange(r, dtype=torch.float64) / r).square()).sort().values


def initial_variances(task: ChainTask, scale: float, seeds: Sequence[int]) -> dict[str, Any]:
    """Sample variance times fan-in of every layer over some networks, in standard errors off s; biases; the labels' spread."""
    drawn: dict[str, list[Tensor]] = {}
    biases = 0
    for seed in seeds:
        model = task.network(scale, seed)
        biases += sum(name.endswith("bias") for name, _ in model.named_parameters())
        for name, W in weights_of(dict(model.named_parameters())).items():
            drawn.setdefault(name, []).append(W.flatten() * W.shape[1] ** 0.5)
    variances, off = {}, {}
    for name, parts in drawn.items():
        entries, s = torch.cat(parts), scale if name == "layer1" else 1.0
        variances[name] = float(entries.square().mean())
        off[name] = (variances[name] / s - 1) / (2 / len(entries)) ** 0.5
    spreads = [float(task.split(seed).train.y.double().std(correction=0)) for seed in seeds]
    return {"variances": variances, "standard errors off": off, "biases": biases, "label spreads": spreads}


def least(matrix: Tensor) -> float:
    """The least eigenvalue over the largest."""
    values = torch.linalg.eigvalsh(matrix)
    return float(values[0] / values[-1])
