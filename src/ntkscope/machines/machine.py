"""A kernel machine: a surrogate fitted on one kernel, linear in it, and its outputs for other inputs."""

from __future__ import annotations

import math
import time
import warnings
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Float64
from sklearn.exceptions import ConvergenceWarning

from ntkscope.core import UsageError
from ntkscope.linalg import Gram
from ntkscope.machines.pair import KernelPair
from ntkscope.surrogates import SURROGATES

ABSENT = -50.0  # the logit of a class without a training input: a probability of practically zero


@dataclass(frozen=True, eq=False)
class KernelMachine:
    """`logits(x) = W κ(x, X) + b` on the kernel `name`; `coef_` is W, `intercept_` is b, as `explain.attribute` reads them."""

    name: str
    coef_: Float64[np.ndarray, "c n"]
    intercept_: Float64[np.ndarray, " c"]
    seconds: float
    converged: bool
    iterations: int
    gradient_norm: float = math.nan

    def logits(self, K: Gram) -> Float64[np.ndarray, "m c"]:
        """One score per class for every row of `K`, in float64; O(m n c)."""
        scores: np.ndarray = K @ np.ascontiguousarray(self.coef_.T)
        return scores + self.intercept_


def fit_machine(
    pair: KernelPair, y: Any, surrogate: str = "glm", *, classes: int | None = None, **options: Any
) -> KernelMachine:
    """The surrogate of that name in `SURROGATES`, made with `options`, fitted on the training kernel and labels `y`.

    `classes`: how many classes the network has; one without a training input gets a logit of -50 for every input. By default
    the classes are those in `y`. A fit that stops early says so in `converged`, not in a warning.

    >>> import torch
    >>> from ntkscope.linalg import DenseGram
    >>> pair = KernelPair("linear", DenseGram(torch.eye(2), symmetric=True), DenseGram(torch.eye(2)))
    >>> machine = fit_machine(pair, np.array([0, 2]), classes=3, alpha=1e-3)
    >>> machine.logits(pair.test).argmax(1).tolist()
    [0, 2]
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        began = time.perf_counter()
        fitted: Any = SURROGATES[surrogate](**options).fit(pair.train, y)
        seconds = time.perf_counter() - began
    if not (hasattr(fitted, "coef_") and hasattr(fitted, "classes_")):
        raise UsageError(
            f"got the surrogate {surrogate!r} for a kernel machine; expected a classifier that is linear in the kernel, such as"
            " 'glm' or 'ridge-classifier'"
        )
    coef, intercept = fitted.coef_, fitted.intercept_
    if classes is not None:
        coef, intercept = np.zeros((classes, fitted.coef_.shape[1])), np.full(classes, ABSENT)
        coef[fitted.classes_], intercept[fitted.classes_] = fitted.coef_, fitted.intercept_
    return KernelMachine(
        pair.name,
        coef,
        intercept,
        seconds,
        bool(getattr(fitted, "converged_", True)),
        int(getattr(fitted, "n_iter_", 1)),
        float(getattr(fitted, "gradient_norm_", math.nan)),
    )
