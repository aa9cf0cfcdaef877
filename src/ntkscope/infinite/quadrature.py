"""Gaussian means of functions of one and of two numbers, with nodes that crowd where the function changes quickly.

On a line, panels of Gauss–Legendre nodes halve in size towards each steep place. For pairs z₁ = α + β, z₂ = ±(α − β) with α
and β independent; at a fixed β the integrand changes quickly where either argument meets a steep place, and the integral over
α does where two such lines cross. All these points are known, so every piece between two of them is smooth inside, and the
tanh–sinh rule integrates it whatever happens at its ends, on any scale. Its error is read off three step sizes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import torch
from torch import Tensor

REACH = 13.0  # standard deviations; e^{-13²/4} is 4e-19, and Hermite functions carry half of the Gaussian
PANEL, NODES = 0.5, 20  # standard deviations per panel, Gauss–Legendre nodes in each
HALVINGS = 48
PAIR_REACH = 9.0  # the same where the whole Gaussian stands: e^{-9²/2} is 3e-18
STEPS = (1 / 16, 1 / 24, 1 / 32, 1 / 48, 1 / 64)  # of the tanh–sinh rule: the next where one does not settle
LARGEST = 2**21  # numbers an array may hold
SAFETY = 10.0


def line(scale: Tensor, places: tuple[float, ...], smallest: float, nodes: int = NODES) -> tuple[Tensor, Tensor]:
    """Nodes z and weights φ(z) dz of a standard normal variable, for functions of scale · z steep at `places`.

    `scale` is (samples,), or (samples, scales) for products of functions at several. (1, k) where zero is the only place,
    (samples, k) otherwise. `smallest`: within this distance of a place nothing more happens, or 0 if something may.
    """
    x, w = _legendre(nodes)
    x, w = x.to(scale.device), w.to(scale.device)
    edges = torch.arange(-REACH, REACH + PANEL / 2, PANEL, dtype=torch.float64, device=scale.device)
    scales = scale.detach().reshape(len(scale), -1)
    widest = max(float(scales.abs().max()), 1e-300) if scales.numel() else 1.0
    halvings = HALVINGS if smallest == 0 else min(HALVINGS, max(0, math.ceil(math.log2(PANEL * widest / smallest))))
    steps = PANEL * 0.5 ** torch.arange(halvings + 1, dtype=torch.float64, device=scale.device)
    around = torch.cat([-steps, steps.new_zeros(1), steps.flip(0)])
    if places == (0.0,):
        edges = torch.cat([edges, around])[None]
    else:
        signed = torch.where(scales.abs() > 1e-300, scales, 1e-300)[..., None]
        at = [(place / signed + around).flatten(1) for place in places]
        edges = torch.cat([edges.expand(len(scale), -1), *at], dim=1)
    edges = edges.clamp(-REACH, REACH).sort(dim=1).values
    middle, half = (edges[:, 1:] + edges[:, :-1]) / 2, (edges[:, 1:] - edges[:, :-1]) / 2
    z = (middle[..., None] + half[..., None] * x).flatten(1)
    weights = (half[..., None] * w).flatten(1) * torch.exp(-(z**2) / 2) / math.sqrt(2 * math.pi)
    inside = weights.amax(0) > 0  # panels cut off at the ends have no width
    return z[:, inside], weights[:, inside]


def hermite_coefficients(values: Tensor, z: Tensor, weights: Tensor, terms: int) -> Tensor:
    """E[f Heₙ] / √n! for n < terms, (samples, terms), from values of f at the nodes of `line`.

    Hermite functions hₙ = Heₙ √φ / √n! stay bounded: h_{n+1} = (z hₙ − √n h_{n−1}) / √(n+1).
    """
    start = torch.exp(-(z**2) / 4) / (2 * math.pi) ** 0.25
    weighted = values * (weights / start)
    found: list[Tensor] = []
    rows: list[Tensor] = []
    before, now = torch.zeros_like(start), start
    for n in range(terms):
        if len(z) == 1:
            rows.append(now[0])
            if len(rows) == 256 or n == terms - 1:
                found.append(weighted @ torch.stack(rows, dim=1))
                rows = []
        else:
            found.append((weighted * now).sum(1, keepdim=True))
        before, now = now, (z * now - math.sqrt(n) * before) / math.sqrt(n + 1)
    return torch.cat(found, dim=1)


@dataclass(frozen=True)
class Pairs:
    """Pairs u = s₁ z₁, v = s₂ z₂ of correlation sign · (1 − apart), z₁ and z₂ standard normal."""

    s1: Tensor
    s2: Tensor
    apart: Tensor
    sign: Tensor

    def __len__(self) -> int:
        return len(self.s1)

    def __getitem__(self, chosen: Tensor) -> Pairs:
        return Pairs(self.s1[chosen], self.s2[chosen], self.apart[chosen], self.sign[chosen])


def pair_means(
    functions: list[Callable[[Tensor], Tensor]], pairs: Pairs, places: tuple[float, ...], allowed: Tensor
) -> tuple[Tensor, Tensor]:
    """E[f(u) f(v)] of each function and a bound of its error, (functions, pairs); steps shrink until it is `allowed`.

    About 10⁵ function values per pair for one place, four times as many for two.
    """
    values = torch.empty(len(functions), len(pairs), dtype=torch.float64, device=pairs.s1.device)
    errors = torch.full_like(values, math.inf)
    waiting = torch.arange(len(pairs), device=pairs.s1.device)
    for step in STEPS:
        for chosen in _chunks(waiting, places, step):
            values[:, chosen], errors[:, chosen] = _pair_means(functions, pairs[chosen], places, step)
        waiting = waiting[(errors[:, waiting] > allowed[:, waiting]).any(0)]
    return values, errors


def _chunks(pairs: Tensor, places: tuple[float, ...], step: float) -> Iterator[Tensor]:
    count = len(_tanh_sinh(step)[0])
    numbers = (len(places) ** 2 + 1) * (2 * len(places) + 1) * count**2
    yield from pairs.split(max(1, LARGEST // numbers)) if len(pairs) else ()


def _pair_means(
    functions: list[Callable[[Tensor], Tensor]], given: Pairs, places: tuple[float, ...], step: float
) -> tuple[Tensor, Tensor]:
    s1, s2, apart, sign = given.s1, given.s2, given.apart, given.sign
    at = torch.tensor(places, dtype=torch.float64, device=s1.device)
    one, two = at / s1[:, None], sign[:, None] * at / s2[:, None]  # where α + β and α − β meet a place
    spread, common = (apart / 2)[:, None], (1 - apart / 2)[:, None]  # variances of β and α
    crossings = ((one[:, :, None] - two[:, None, :]) / 2).flatten(1)
    beta, beta_weights = _pieces(crossings, PAIR_REACH * spread.sqrt(), step)
    beta_weights *= torch.exp(-(beta**2) / (2 * spread)) / (2 * math.pi * spread).sqrt()
    lines = torch.cat([one[:, None, :] - beta[..., None], two[:, None, :] + beta[..., None]], dim=2)
    pairs, count = beta.shape
    alpha, alpha_weights = _pieces(lines.flatten(0, 1), PAIR_REACH * common.sqrt().repeat_interleave(count, 0), step)
    alpha, alpha_weights = alpha.unflatten(0, (pairs, count)), alpha_weights.unflatten(0, (pairs, count))
    alpha_weights *= torch.exp(alpha**2 * (-0.5 / common[..., None])) / (2 * math.pi * common[..., None]).sqrt()
    u = s1[:, None, None] * (alpha + beta[..., None])
    v = (sign * s2)[:, None, None] * (alpha - beta[..., None])
    means, errors = [], []
    for function in functions:
        product = (function(u) * function(v)).mul_(alpha_weights)
        inner = [_total(product, step, by) for by in (1, 2, 4)]
        fine, half, quarter = (_total(each * beta_weights, step, by) for each, by in zip(inner, (1, 2, 4)))
        last, before = (fine - half).abs(), (half - quarter).abs()
        means.append(fine)
        # Where the rule converges, the next difference is as much smaller again as this one is.
        errors.append(SAFETY * last * (last / before.clamp(min=1e-300)).clamp(max=1))
    return torch.stack(means), torch.stack(errors)


def _pieces(cuts: Tensor, reach: Tensor, step: float) -> tuple[Tensor, Tensor]:
    """Nodes on the pieces of [−reach, reach] between `cuts`, and their weights: (rows, pieces · k)."""
    share, rest, weights = (part.to(cuts.device) for part in _tanh_sinh(step))
    edges = torch.cat([-reach, torch.minimum(torch.maximum(cuts, -reach), reach).sort(dim=1).values, reach], dim=1)
    left, length = edges[:, :-1, None], edges.diff(dim=1)[..., None]
    right = edges[:, 1:, None]
    nodes = torch.where(share < 0.5, left + length * share, right - length * rest)
    return nodes.flatten(1), (length * weights).flatten(1)


def _total(values: Tensor, step: float, by: int) -> Tensor:
    """The sum over pieces, of every node or of every second or fourth at a step as much larger."""
    return values.unflatten(-1, (-1, len(_tanh_sinh(step)[0])))[..., ::by].sum((-2, -1)) * by


@lru_cache(maxsize=4)
def _tanh_sinh(step: float) -> tuple[Tensor, Tensor, Tensor]:
    """Nodes on [0, 1], their distances from 1, and weights."""
    count = round(3.25 / step / 4) * 4
    k = np.arange(-count, count + 1)
    u = np.pi / 2 * np.sinh(k * step)
    share, rest = 1 / (1 + np.exp(-2 * u)), 1 / (1 + np.exp(2 * u))
    weight = np.pi * np.cosh(k * step) * share * rest * step
    return torch.from_numpy(share), torch.from_numpy(rest), torch.from_numpy(weight)


@lru_cache(maxsize=8)
def _legendre(nodes: int) -> tuple[Tensor, Tensor]:
    x, w = np.polynomial.legendre.leggauss(nodes)
    return torch.from_numpy(x), torch.from_numpy(w)
