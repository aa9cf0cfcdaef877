"""Wrong labels: training points whose label the surrogate contradicts when it is fitted without them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import Float64, Int64
from sklearn.base import clone

from ntkscope.core import UsageError
from ntkscope.core.arguments import finite, plain_array
from ntkscope.explain._kernels import columns_of, kernel_of
from ntkscope.linalg import Gram, as_gram
from ntkscope.linalg.spectra.band import lapack_is_safe
from ntkscope.surrogates import KernelRidge, KernelRidgeClassifier

STRENGTH = 0.2  # of the default ridge, whose kernel has a unit diagonal
MARGIN = 0.05  # by which another class has to win under the default: the largest that finds 98 % (`mislabel_flags`)


@dataclass(frozen=True, eq=False)
class Ranking:
    """Training points ranked by how doubtful their labels are: `order` has the most doubtful first.

    `scores[i]` is the largest left-out score of another class minus that of the point's own label (and 0.05 under the default
    surrogate): above 0 the label is contradicted. `suggested[i]` is the class with the largest score.
    """

    order: Int64[np.ndarray, " n"]
    scores: Float64[np.ndarray, " n"]
    suggested: np.ndarray

    def top(self, k: int) -> Int64[np.ndarray, " k"]:
        """The k most doubtful points."""
        return self.order[:k]


def mislabelled(K: Any, y: Any, surrogate: Any = None) -> Ranking:
    """Rank training points by how much the surrogate fitted without them disagrees with their label.

    `s_i = max_{k≠y_i} f_k^{-i}(x_i) - f_{y_i}^{-i}(x_i)`, with `f^{-i}` the surrogate fitted on all points but i. The
    default surrogate is kernel ridge on one-hot labels with strength 0.2, whose `f^{-i}` is exact in closed form, on the
    Gaussian kernel `exp(-‖u_i - u_j‖²)` of unit feature vectors (κ = ⟨u_i, u_j⟩ after scaling to a unit diagonal): near items
    count more than many distant ones. It is fitted twice, the second time without the points that the first contradicts, so
    that wrong labels do not mislead their neighbours; 0.05 is taken from s. O(n³) twice.
    `surrogate`: an estimator with `leave_one_out`, fitted once on (K, y) here, K as it is.

    Examples:
        >>> K = np.kron(np.eye(2), np.full((3, 3), 0.9)) + 0.1 * np.eye(6)
        >>> found = mislabelled(K, [0, 0, 1, 1, 1, 1])
        >>> int(found.order[0]), int(found.suggested[2]), bool(found.scores[2] > 0)
        (2, 0, True)
    """
    gram = kernel_of(K)
    labels = plain_array(y, "labels")
    labels = labels if labels.dtype.kind in "US" else finite(labels, "labels", 1).astype(labels.dtype)
    if labels.shape != (gram.shape[0],) or gram.shape[0] != gram.shape[1]:
        raise UsageError(
            f"got a kernel of shape {gram.shape} with labels of shape {labels.shape}; expected the square kernel of the"
            " training points with themselves and one label each"
        )
    if surrogate is None:
        gram = _gaussian(gram)
        fitted = KernelRidgeClassifier(alpha=STRENGTH).fit(gram, labels)
    else:
        fitted = clone(surrogate).fit(gram, labels)
    without = _leave_one_out(fitted, gram)
    columns = columns_of(fitted, labels, without.shape[1])
    if surrogate is None:
        without = _refitted(gram, columns, _margins(without, columns) > MARGIN, without)
    scores = _margins(without, columns) - (MARGIN if surrogate is None else 0.0)
    classes = np.asarray(getattr(fitted, "classes_", np.arange(without.shape[1])))
    return Ranking(np.argsort(-scores, kind="stable"), scores, classes[without.argmax(1)])


def _gaussian(gram: Gram) -> Gram:
    """`exp(-‖u_i - u_j‖²) = exp(2 (κ_ij - 1))`, κ the kernel scaled to a unit diagonal; formed, O(n²) memory."""
    if not lapack_is_safe(len(gram), gram.device):
        raise UsageError(
            f"got {gram!r}, too large for leave_one_out of ridge regression, which forms and inverts it: pass"
            " surrogate=KernelGLM(), which needs products only"
        )
    unit = gram if bool((gram.diagonal() == 1).all()) else gram.normalized()
    return as_gram(unit.dense().to(torch.float64, copy=True).sub_(1).mul_(2).exp_())


def _margins(without: Float64[np.ndarray, "n c"], columns: Int64[np.ndarray, " n"]) -> Float64[np.ndarray, " n"]:
    """The largest score of another class minus that of the own one."""
    rows, others = np.arange(len(columns)), without.copy()
    others[rows, columns] = -np.inf
    return np.asarray(others.max(1) - without[rows, columns])


def _refitted(
    gram: Gram, columns: Int64[np.ndarray, " n"], suspect: Any, before: Float64[np.ndarray, "n c"]
) -> Float64[np.ndarray, "n c"]:
    """Scores of every point by the ridge fitted without it and without all suspects; as `before` where that changes nothing."""
    if not suspect.any() or suspect.all():
        return before
    kept, K, after = np.flatnonzero(~suspect), gram.dense(), before.copy()
    inside = K[kept][:, kept]
    ridge = KernelRidge(alpha=STRENGTH).fit(inside, np.eye(before.shape[1])[columns[kept]])
    after[kept], after[suspect] = ridge.leave_one_out(inside), ridge.logits(K[suspect][:, kept])
    return after


def _leave_one_out(surrogate: Any, K: Any) -> Float64[np.ndarray, "n c"]:
    """`surrogate.leave_one_out(K)`, or an error that names the surrogates that have it."""
    if not hasattr(surrogate, "leave_one_out"):
        raise UsageError(
            f"got a {type(surrogate).__name__}, which has no leave_one_out; expected a surrogate with one: KernelRidge or"
            " KernelRidgeClassifier (exact), KernelGLM (one Newton step)"
        )
    found = np.asarray(surrogate.leave_one_out(K), dtype=np.float64)
    return found[:, None] if found.ndim == 1 else found
