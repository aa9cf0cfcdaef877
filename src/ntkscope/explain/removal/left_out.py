"""Self-influence: how much a training point's own logit depends on the point itself."""

from __future__ import annotations

from typing import Any

import numpy as np
from jaxtyping import Float64

from ntkscope.core import UsageError
from ntkscope.core.arguments import plain_array
from ntkscope.explain._kernels import columns_of, kernel_of


def leave_one_out(surrogate: Any, K: Any) -> Float64[np.ndarray, "n c"]:
    """`surrogate.leave_one_out(K)`, or an error that names the surrogates that have it."""
    if not hasattr(surrogate, "leave_one_out"):
        raise UsageError(
            f"got a {type(surrogate).__name__}, which has no leave_one_out; expected a surrogate with one: KernelRidge or"
            " KernelRidgeClassifier (exact), KernelGLM or KernelLogistic (one Newton step)"
        )
    found = np.asarray(surrogate.leave_one_out(K), dtype=np.float64)
    return found[:, None] if found.ndim == 1 else found


def self_influence(surrogate: Any, K: Any, y: Any) -> Float64[np.ndarray, " n"]:
    """`f_y(x_i) - f_y^{-i}(x_i)`: how much the score of a training point's label drops when the point is left out.

    f is the fitted surrogate, `f^{-i}` the one fitted without point i (exact for ridge, one Newton step for a GLM). Large
    where the surrogate memorises the point instead of learning it from others: outliers and wrong labels. It is a change
    in the point's own logit, not in its loss.

    >>> from ntkscope.surrogates import KernelRidgeClassifier
    >>> K = np.array([[1.0, 0.9, 0.0], [0.9, 1.0, 0.0], [0.0, 0.0, 1.0]])
    >>> influence = self_influence(KernelRidgeClassifier(alpha=0.1).fit(K, [0, 0, 1]), K, [0, 0, 1])
    >>> int(influence.argmax())
    2
    """
    gram = kernel_of(K)
    without = leave_one_out(surrogate, gram)
    if plain_array(y, "labels").shape != (len(without),):
        raise UsageError(
            f"got labels of shape {plain_array(y).shape} for {len(without)} training points; expected one each"
        )
    own = np.arange(len(without)), columns_of(surrogate, y, without.shape[1])
    return np.asarray(surrogate.logits(gram))[own] - without[own]
