"""Leave-one-out influence: a kernel ridge surrogate without a point, or a group of points, in closed form."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any, final

import numpy as np
import torch
from jaxtyping import Float64
from torch import Tensor

from ntkscope.core import UsageError
from ntkscope.explain.removal.influences import Directions, Influence, Rows, Scores
from ntkscope.explain.removal.ridge_inverse import Inverse, inverse_of, strength_of
from ntkscope.linalg import Gram


@final
@dataclass(frozen=True, eq=False, repr=False)
class RidgeInfluence(Influence):
    """`S(x, i)_c = [κ(x, X) G]_i · c_ic / G_ii`, `G = (K + α I)⁻¹`, `c = G Y`: exactly `f_c(x) - f_c^{-i}(x)`.

    `c_ic / G_ii = Y_ic - f_c^{-i}(x_i)`, the error at a point of the surrogate fitted without it. With sample weights all of
    this is said of `√v_i κ √v_j`. Holds the test kernel, G and c.
    """

    kernel: Gram
    inverse: Inverse
    coef: Float64[Tensor, "n c"]
    scale: Float64[Tensor, " n"]
    alpha: float
    given: Float64[np.ndarray, "m c"] | None = None
    method: str = "leave-one-out"

    @property
    def shape(self) -> tuple[int, int, int]:
        return (*self.kernel.shape, self.coef.shape[1])

    @cached_property
    def logits(self) -> Float64[np.ndarray, "m c"]:
        return self.surrogate_logits if self.given is None else self.given

    @cached_property
    def surrogate_logits(self) -> Float64[np.ndarray, "m c"]:
        """The ridge surrogate's own outputs at the test items."""
        return _array(self.kernel @ (self.scale[:, None] * self.coef))

    @property
    def errors(self) -> Float64[np.ndarray, "n c"]:
        """`Y_i - f^{-i}(x_i)` of each training point, (n_train, c); 0 for a point of weight 0, which no fit contains."""
        return _array(self._pull / torch.where(self.scale > 0, self.scale, torch.inf)[:, None])

    @property
    def diagonal_error(self) -> float:
        """The largest standard error of `G_ii`, relative to it; 0 where it is exact (kernels that can be formed)."""
        return self.inverse.diagonal_error

    def along(self, rows: Rows, directions: Directions) -> Scores:
        """O(n²) per test item where G is formed."""
        hat = self._hat(self.kernel[rows.tolist()])  # (b, n)
        wanted = torch.from_numpy(directions).to(hat.device)
        return _array(torch.einsum("bkc,nc->bkn", wanted, self._pull) * hat[:, None])

    def without(self, points: Any) -> Float64[np.ndarray, "m c"]:
        """`f^{-S}(x) - f(x) = -[κ(x, X) G]_S (G_SS)⁻¹ c_S`: exactly what a fit without the group gives; O(n |S| + |S|³)."""
        group = torch.from_numpy(self._points(points)).to(self.coef.device)
        if not len(group):
            return np.zeros((len(self), self.shape[2]))
        pull = torch.linalg.solve(self.inverse.block(group), self.coef[group])
        spread = torch.zeros_like(self.coef)
        spread[group] = pull
        return -_array(self.kernel @ (self.scale[:, None] * self.inverse.solve(spread)))

    @cached_property
    def _pull(self) -> Float64[Tensor, "n c"]:
        return self.coef / self.inverse.diagonal[:, None]

    def _hat(self, rows: Gram) -> Float64[Tensor, "b n"]:
        """`κ(x, X) G` of some test items."""
        return self.inverse.solve((rows.dense().detach().to(torch.float64) * self.scale).T.contiguous()).T


def ridge_influence(
    K_train: Gram,
    K_test: Gram,
    targets: Float64[np.ndarray, "n c"],
    alpha: float | int | None,
    weights: Float64[np.ndarray, " n"] | None,
    logits: Float64[np.ndarray, "m c"] | None,
) -> RidgeInfluence:
    """The influence of every training point on ridge regression of the targets; `alpha=None`: the mean of the diagonal."""
    n = K_train.shape[0]
    strength = strength_of(alpha, float(K_train.diagonal().to(torch.float64).mean()))
    device = K_train.device
    scale = torch.ones(n, dtype=torch.float64, device=device)
    system = K_train
    if weights is not None:
        if weights.shape != (n,) or not np.isfinite(weights).all() or (weights < 0).any():
            raise UsageError(f"got sample_weight of shape {weights.shape}; expected ({n},), finite, none negative")
        scale = torch.from_numpy(weights).to(device, torch.float64).sqrt()
        system = K_train.scaled(scale)
    inverse = inverse_of(system, strength)
    coef = inverse.solve(scale[:, None] * torch.from_numpy(targets).to(device))
    return RidgeInfluence(K_test.to(device=device), inverse, coef, scale, strength, logits)


def _array(values: Tensor) -> np.ndarray:
    return values.detach().to("cpu", torch.float64).numpy()
