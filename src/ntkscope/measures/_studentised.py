"""Intervals of R² and of Pearson's correlation over items, by the studentised bootstrap."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float64
from torch import Tensor

from ntkscope.core.arguments import Vector

FLOOR = 0.1  # of the standard error: below it, that of a resample tells that some item is missing there


@dataclass(frozen=True, eq=False)
class Studentised:
    """A function of means of `values` (n, f) that is about normal, and the figure it stands for.

    The interval reaches as many standard errors either way as 95 % of the resamples lie away in standard errors of their own,
    by the infinitesimal jackknife. Percentiles of the figure hardly see that skewed and heavy-tailed values make its
    standard error itself uncertain, and cover 85 to 93 % of the time where this covers 92 to 96. Hall (1992), section 3.6.
    """

    values: Float64[np.ndarray, "n f"]
    function: Callable[[Tensor], Tensor]
    figure: Callable[[float], float]

    @property
    def products(self) -> Float64[np.ndarray, "n g"]:
        """What is to be resampled: the values and, for their covariances, their products."""
        return np.concatenate(
            [self.values, np.einsum("ni,nj->nij", self.values, self.values).reshape(len(self.values), -1)], 1
        )

    def interval(self, means: Float64[np.ndarray, "r g"]) -> tuple[float, float]:
        """From means of `products` over resamples. Without limits where more than 5 % of these have no figure."""
        middle, error = (float(found[0]) for found in self._with_error(self.products.mean(0, keepdims=True)))
        if not math.isfinite(middle):  # R² of 1, a correlation of ±1; of two values, that says nothing
            low, high = sorted(map(self.figure, (middle, middle) if len(self.values) > 2 else (-math.inf, math.inf)))
            return low, high
        found, errors = self._with_error(means)
        away = np.abs(found - middle) / np.maximum(errors, FLOOR * error) if error else np.zeros(1)
        reach = error * float(np.sort(np.nan_to_num(away, nan=math.inf))[math.ceil(0.95 * len(away)) - 1])
        if not math.isfinite(reach):
            middle, reach = 0.0, math.inf
        low, high = sorted((self.figure(middle - reach), self.figure(middle + reach)))
        return low, high

    def _with_error(self, means: Float64[np.ndarray, "r g"]) -> tuple[Vector, Vector]:
        n, f = self.values.shape
        first = torch.from_numpy(means[:, :f]).requires_grad_()
        found = self.function(first)
        (slopes,) = torch.autograd.grad(found.sum(), first)
        second = means[:, f:].reshape(-1, f, f) - means[:, :f, None] * means[:, None, :f]
        with np.errstate(invalid="ignore"):
            variance = np.einsum("ri,rij,rj->r", slopes.numpy(), second, slopes.numpy()) / max(1, n - 1)
            return found.detach().numpy(), np.sqrt(np.maximum(variance, 0))


def of_r2(missed: Vector, true: Vector) -> Studentised:
    """R² from the squared errors of all items and the true values, which vary: by `log(1 - R²)`."""
    scale, y = missed.mean() or 1.0, (true - true.mean()) / true.std()
    offset = math.log(scale) - 2 * math.log(true.std())

    def log_missed(means: Tensor) -> Tensor:
        return means[:, 0].log() - (means[:, 2] - means[:, 1].square()).log() + offset

    return Studentised(
        np.stack([missed / scale, y, y * y], 1), log_missed, lambda z: -math.expm1(z) if z < 700 else -math.inf
    )


def of_pearson(a: Vector, b: Vector) -> Studentised:
    """The correlation r of two scores that vary: by Fisher's z, written with what b is besides r times a, so that nothing
    cancels near ±1."""
    a, b = ((x - x.mean()) / x.std() for x in (a, b))
    r = float(np.clip((a * b).mean(), -1, 1))
    rest = b - r * a
    size = float(rest.std())
    rest = rest / (size or 1.0)

    def fisher(means: Tensor) -> Tensor:
        x, e, xx, ee, xe = means.T
        spread, left, common = xx - x * x, ee - e * e, xe - x * e
        return torch.asinh((r * spread + size * common) / (size * (spread * left - common * common).sqrt()))

    return Studentised(np.stack([a, rest, a * a, rest * rest, a * rest], 1), fisher, math.tanh)
