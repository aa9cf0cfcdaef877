"""The definitions behind Table 8 on small instances: formulas beside autograd or quadrature, errata beside the print."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn

from ntkscope.core import generator
from ntkscope.data.index_teacher import gaussian_moments as link_moments
from ntkscope.kernels import kernel
from ntkscope.measures.alignment import kernel_target_alignment
from ntkscope.measures.lazy import lazy_prediction, lipschitz_constant, slope_moments
from ntkscope.models._activations import activation, gaussian_moments
from ntkscope_papers.shared.theory import jacobian
from ntkscope_papers.wang_2023.teacher import Student, label_moments
from ntkscope_papers.wang_2023.two_layer import conjugate_kernel, first_layer_kernel

SMALL = Student(items=7, width=5, dimension=4, test_items=3)


def formulas(seed: int) -> dict[str, Any]:
    """Eq. 74 to 78 on a network of 25 parameters, in double precision."""
    model = SMALL.network(seed).double().eval()
    x, z = (torch.randn(n, SMALL.dimension, dtype=torch.float64, generator=generator(seed, "x", n)) for n in (7, 3))
    y = torch.randn(7, dtype=torch.float64, generator=generator(seed, "y"))
    W, v = (p.detach() for p in model.parameters())
    v = v[0]
    J, J_test = jacobian(model, x), jacobian(model, z)
    K = J @ J.T
    ck, without = conjugate_kernel(W, x), conjugate_kernel(W, x, divided=False)
    by_hand = first_layer_kernel(W, v, x) + ck
    readout = J[:, W.numel() :] @ J[:, W.numel() :].T
    with torch.no_grad():
        start, start_test = model(x)[:, 0], model(z)[:, 0]
    moved = start_test + J_test @ (torch.linalg.pinv(J) @ (y - start))
    lazy = torch.from_numpy(lazy_prediction(K, J_test @ J.T, y, start, start_test))
    return {
        "gradient": _gradient_gap(model, x, y, J),
        "ck": _gap(readout, ck),
        "ck_engine": _gap(kernel("ck", model, x).dense(), ck),
        "ck_printed_in_section_4_1": _gap(readout, without),
        "ntk": _gap(K, by_hand),
        "ntk_engine": _gap(kernel("trntk0", model, x).dense(), by_hand),
        "lazy": _gap(moved, lazy),
    }


def constants() -> dict[str, float]:
    """Of the normalised tanh and the normalised softplus, by quadrature."""
    _, second = gaussian_moments(nn.Tanh())
    slope = slope_moments(activation("normalised-tanh"))
    mean, std = link_moments(nn.functional.softplus)
    odd = label_moments(SMALL)["odd"]
    z = torch.linspace(-12, 12, 240_001, dtype=torch.float64)
    density = torch.exp(-z.square() / 2)
    density /= density.sum()
    quadratic = float((density * (nn.functional.softplus(z) - mean) / std * (z.square() - 1)).sum()) / math.sqrt(2)
    return {
        "E_tanh2": second,
        "scale": 1 / math.sqrt(second),
        "a_sigma": slope.second,
        **{f"eta{k}_sq": eta**2 for k, eta in enumerate(slope.coefficients)},
        "sup_abs_sigma_prime": lipschitz_constant(activation("normalised-tanh")),
        "softplus_mean": mean,
        "softplus_var": std**2,
        "softplus_linear_share": odd,
        "softplus_quadratic_share": quadratic**2,
    }


def target_alignment(n: int = 7) -> dict[str, float]:
    """Eq. 87 of yyᵀ, of the identity, and the least and largest of 200 random positive semi-definite matrices."""
    draw = generator(0, "kta")
    y = torch.randn(n, dtype=torch.float64, generator=draw)
    factors = torch.randn(200, n, 3, dtype=torch.float64, generator=draw)
    values = [kernel_target_alignment(f @ f.T, y) for f in factors]
    identity = kernel_target_alignment(torch.eye(n, dtype=torch.float64), y)
    return {
        "labels": abs(kernel_target_alignment(torch.outer(y, y), y) - 1),
        "identity": abs(identity - 1 / math.sqrt(n)),
        "least": min(values),
        "largest": max(values),
    }


def _gradient_gap(model: nn.Module, x: Tensor, y: Tensor, J: Tensor) -> float:
    """Of Eq. 74's loss: -Jᵀ(y - f)/n beside autograd's."""
    residual = y - model(x)[:, 0]
    own = torch.autograd.grad(residual.square().sum() / (2 * len(y)), list(model.parameters()))
    return _gap(torch.cat([g.flatten() for g in own]), -J.T @ residual.detach() / len(y))


def _gap(a: Tensor, b: Tensor) -> float:
    return float((a - b).abs().max())
