"""Leave-one-out influence: a kernel ridge surrogate without a point, or a group of points, in closed form."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any, final

import numpy as np
import torch
from jaxtyping import Float64
from torch import Tensor

from ntkscope.explain.removal.influences import Directions, Influence, Rows, Scores
from ntkscope.explain.removal.ridge_inverse import Inverse, inverse_of, strength_of
from ntkscope.linalg import Gram


@final
@dataclass(frozen=True, eq=False, repr=False)
class RidgeInfluence(Influence):
    """`S(x, i)_c = [κ(x, X) G]_i · c_ic / G_ii`, `G = (K + α I)⁻¹`, `c = G Y`: exactly `f_c(x) - f_c^{-i}(x)`.

    `c_ic / G_ii = Y_ic - f_c^{-i}(x_i)`, the error at a point of the surrogate fitted without it. Holds the test kernel,
    G and c.
    """

    kernel: Gram
    inverse: Inverse
    coef: Float64[Tensor, "n c"]
    alpha: float
    given: Float64[np.ndarray, "m c"] | None = None
    method: str = "leave-one-out"

    @property
    def shape(self) -> tuple[int, int, int]:
        return (*self.kernel.shape, self.coef.shape[1])

    @cached_property
    def logits(self) -> Float64[np.ndarray, "m c"]:
        return _array(self.kernel @ self.coef) if self.given is None else self.given

    @property
    def errors(self) -> Float64[np.ndarray, "n c"]:
        """`Y_i - f^{-i}(x_i)` of each training point, (n_train, c)."""
        return _array(self._pull)

    @property
    def diagonal_error(self) -> float:
        """The largest standard error of `G_ii`, relative to it; 0 where it is exact (kernels that can be formed)."""
        return self.inverse.diagonal_error

    def along(self, rows: Rows, directions: Directions) -> Scores:
        """O(n²) per test item where G is formed."""
        values = self.kernel[rows.tolist()].dense().detach().to(torch.float64)
        hat = self.inverse.solve(values.T.contiguous()).T  # (b, n): κ(x, X) G
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
        return -_array(self.kernel @ self.inverse.solve(spread))

    @cached_property
    def _pull(self) -> Float64[Tensor, "n c"]:
        return self.coef / self.inverse.diagonal[:, None]


def ridge_influence(
    K_train: Gram,
    K_test: Gram,
    targets: Float64[np.ndarray, "n c"],
    alpha: float | int | None,
    logits: Float64[np.ndarray, "m c"] | None,
) -> RidgeInfluence:
    """The influence of every training point on ridge regression of the targets; `alpha=None`: the mean of the diagonal."""
    strength = strength_of(alpha, float(K_train.diagonal().to(torch.float64).mean()))
    inverse = inverse_of(K_train, strength)
    coef = inverse.solve(torch.from_numpy(targets).to(K_train.device))
    return RidgeInfluence(K_test.to(device=K_train.device), inverse, coef, strength, logits)


def _array(values: Tensor) -> np.ndarray:
    return values.detach().to("cpu", torch.float64).numpy()
