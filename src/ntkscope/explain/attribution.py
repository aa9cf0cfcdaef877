"""Attribution: how much each training point adds to each logit of a kernel surrogate."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import Float64

from ntkscope.core import UsageError
from ntkscope.explain._kernels import kernel_of
from ntkscope.explain.ranking import PerItem, Top, item_of, output_of, top_of
from ntkscope.linalg import Gram


@dataclass(frozen=True, eq=False, repr=False)
class Attribution(PerItem):
    """`A(x, x_i)_c = W_ci κ(x, x_i) + b_c / N` for each test item x, computed when an item is requested.

    Holds the test kernel and the surrogate's weights, never (n_test, n_train, c) unless `.values` is requested.
    """

    kernel: Gram
    coef: Float64[np.ndarray, "c n"]
    intercept: Float64[np.ndarray, " c"]

    @property
    def shape(self) -> tuple[int, int, int]:
        """(n_test, n_train, c)."""
        return (*self.kernel.shape, len(self.intercept))

    def item(self, index: int) -> Float64[np.ndarray, "n c"]:
        """The attributions of one test item, (n_train, c); O(n_train c) and one row of the kernel."""
        row = self.kernel[[item_of(index, len(self))]].dense()[0].detach().to("cpu", torch.float64).numpy()
        return self.coef.T * row[:, None] + self.intercept / len(row)

    def top(self, index: int, k: int = 10, output: int | None = None, *, opposing: bool = False) -> Top:
        """The k training points that add most to one output of a test item, by default the output of its largest logit.

        `opposing=True`: those that take most away from it. A large term says what the logit is made of, not what it would
        be without the point: that is `influence`.
        """
        values = self.item(index)
        chosen = output_of(output, values.sum(0))
        return top_of(values[:, chosen], k, chosen, opposing=opposing)

    def __iter__(self) -> Iterator[Float64[np.ndarray, "n c"]]:
        return (self.item(index) for index in range(len(self)))

    def sums(self) -> Float64[np.ndarray, "m c"]:
        """The sum over the training points, which is the surrogate's logits; O(n_test n_train c)."""
        return self._product(self.coef.T) + self.intercept

    def _product(self, columns: Float64[np.ndarray, "n c"]) -> Float64[np.ndarray, "m c"]:
        right = torch.from_numpy(np.ascontiguousarray(columns)).to(self.kernel.device)
        return (self.kernel @ right).detach().to("cpu", torch.float64).numpy()

    def __repr__(self) -> str:
        m, n, c = self.shape
        return f"Attribution({m} test items × {n} training points × {c} logits)"


def attribute(surrogate: Any, K_test: Any, *, rows: Any = None) -> Attribution:
    """What every training point adds to the surrogate's logits of the test items.

    `A(x, x_i)_c = W_ci κ(x, x_i) + b_c / N`, so `Σ_i A(x, x_i)_c` is the logit of class c. `surrogate`: any fitted
    estimator that is linear in the kernel (`coef_` (c, N), `intercept_` (c,)). `rows` picks test items. Nothing is
    computed before an item is requested. Engel et al. (2023), equation 3.

    Examples:
        >>> from types import SimpleNamespace
        >>> surrogate = SimpleNamespace(coef_=np.array([[1.0, -2.0]]), intercept_=np.array([4.0]))
        >>> found = attribute(surrogate, np.array([[3.0, 1.0]]))
        >>> found.item(0).tolist(), found.sums().tolist()
        ([[5.0], [0.0]], [[5.0]])
    """
    coef, intercept = getattr(surrogate, "coef_", None), getattr(surrogate, "intercept_", None)
    if coef is None or intercept is None:
        raise UsageError(
            f"got a {type(surrogate).__name__} without coef_ and intercept_; expected a fitted surrogate that is linear in"
            " the kernel, such as KernelGLM or KernelRidgeClassifier: fit it first"
        )
    weights = np.atleast_2d(np.asarray(coef, dtype=np.float64))
    gram = kernel_of(K_test)
    if gram.shape[1] != weights.shape[1]:
        raise UsageError(
            f"got a test kernel of shape {gram.shape} for a surrogate of {weights.shape[1]} training points; expected"
            f" (n_test, {weights.shape[1]}): rows are test items, columns training points"
        )
    bias = np.broadcast_to(np.asarray(intercept, dtype=np.float64), (len(weights),)).copy()
    return Attribution(gram if rows is None else gram[rows], weights, bias)
