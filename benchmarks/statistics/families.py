"""Synthetic matrices whose class is known: what the rule of `measures.spectra.classify` was frozen on."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from ntkscope.core import generator
from ntkscope.linalg.random_matrices.spiked import spike_threshold

Shape = tuple[int, int]
SHAPES: tuple[Shape, ...] = (
    (50, 50),
    (50, 80),
    (200, 50),
    (75, 150),
    (100, 100),
    (100, 250),
    (300, 150),
    (200, 200),
    (300, 400),
    (500, 500),
)
NOISE = ("gaussian", "uniform", "sign", "t5")


def noise(law: str, shape: tuple[int, ...], random: torch.Generator) -> Tensor:
    """Independent entries of mean 0 and variance 1 where it exists, on the generator's device."""
    options: dict[str, Any] = {"generator": random, "device": random.device, "dtype": torch.float64}
    if law == "gaussian":
        return torch.randn(shape, **options)
    u = torch.rand(shape, **options)
    if law == "uniform":
        return (2 * u - 1) * 3**0.5
    if law == "sign":
        return 2 * (u < 0.5).double() - 1
    if law == "cauchy":
        return torch.tan(torch.pi * (u - 0.5))
    if law == "pareto":  # P(|x| > t) = t^(-2.5), either sign
        return torch.where(u < 0.5, -1.0, 1.0) * (1 - (2 * u) % 1).clamp_min(1e-16) ** (-1 / 2.5)
    if law in ("t3", "t5"):
        freedom = int(law[1])
        z = torch.randn((freedom + 1, *shape), **options)
        return z[0] / z[1:].square().mean(0).sqrt() / (freedom / (freedom - 2)) ** 0.5
    raise ValueError(f"got the law {law!r}; expected gaussian, uniform, sign, t5, t3, pareto or cauchy")


def directions(strengths: Tensor, shape: Shape, random: torch.Generator) -> Tensor:
    """`Σ θ_k u_k v_kᵀ` with random orthonormal directions."""
    sides = [torch.randn(side, len(strengths), generator=random, dtype=torch.float64) for side in shape]
    u, v = (torch.linalg.qr(side)[0] for side in sides)
    return (u * strengths) @ v.T


def spiked(count: int) -> Callable[[Shape, torch.Generator], Tensor]:
    """Gaussian noise and `count` directions of two to four times the threshold."""

    def make(shape: Shape, random: torch.Generator) -> Tensor:
        times = 2 + 2 * torch.rand(count, generator=random, dtype=torch.float64)
        return noise("gaussian", shape, random) + directions(spike_threshold(shape) * times, shape, random)

    return make


def power_law_spikes(shape: Shape, random: torch.Generator) -> Tensor:
    """Gaussian noise and directions of strengths `10 k^(-0.7)` thresholds, k up to half the smaller side: some 27 stand out."""
    ranks = torch.arange(1, min(shape) // 2 + 1, dtype=torch.float64)
    return noise("gaussian", shape, random) + directions(10 * spike_threshold(shape) * ranks**-0.7, shape, random)


def independent(law: str) -> Callable[[Shape, torch.Generator], Tensor]:
    return lambda shape, random: noise(law, shape, random)


FAMILIES: dict[str, tuple[str, Callable[[Shape, torch.Generator], Tensor]]] = {
    "Gaussian": ("invariant bulk", independent("gaussian")),
    "uniform": ("invariant bulk", independent("uniform")),
    "1 spike": ("bulk + spikes", spiked(1)),
    "5 spikes": ("bulk + spikes", spiked(5)),
    "power-law spikes": ("heavy tail", power_law_spikes),
    "Pareto": ("heavy tail", independent("pareto")),
    "Student t₃": ("heavy tail", independent("t3")),
    "Cauchy": ("heavy tail", independent("cauchy")),
}


def matrix(family: str, shape: Shape, seed: int) -> Tensor:
    """One matrix of a family, scaled as weights are."""
    random = generator(seed, "spectra", family, *shape)
    return FAMILIES[family][1](shape, random) * max(shape) ** -0.5
