"""A kernel's surrogate and how faithful it is: one row of the paper's tables."""

from __future__ import annotations

import time
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import torch
from jaxtyping import Float64, Int64
from sklearn.exceptions import ConvergenceWarning

from ntkscope.experiments._kernel_pairs import Pair
from ntkscope.measures.faithfulness import correct_class_log_odds, faithfulness
from ntkscope.surrogates import KernelGLM

SENSITIVITY = (1e-6, 1e-5, 1e-3, 1e-2)  # ridge strengths beside the default of 1e-4
TOLERANCE = 1e-9  # of the gradient: where classes separate, τ still moves with the bias at looser ones


@dataclass(frozen=True, eq=False)
class Surrogate:
    """The kernel GLM of one kernel, fitted when it is first asked for."""

    pair: Pair
    y: Int64[np.ndarray, " n"]
    alpha: float
    seed: int = 0
    solver: str = "newton-cg"  # "sgd" is scikit-learn's SGDClassifier, which the paper used: short of the optimum

    @cached_property
    def glm(self) -> KernelGLM:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)  # `converged` and the gradient's norm are in the record
            glm = KernelGLM(alpha=self.alpha, solver=self.solver, tol=TOLERANCE, max_iter=500, seed=self.seed)
            return glm.fit(self.pair.train, self.y)

    @cached_property
    def logits(self) -> Float64[np.ndarray, "m c"]:
        """Of the test points."""
        return np.asarray(self.glm.logits(self.pair.test), dtype=np.float64)

    def restricted(self, places: Int64[np.ndarray, " k"]) -> Surrogate:
        """The surrogate on some of the training points alone; itself when these are all."""
        if len(places) == len(self.y):
            return self
        at = torch.from_numpy(places).to(self.pair.train.device)
        few = replace(self.pair, train=self.pair.train[at][:, at], test=self.pair.test[:, at])
        return replace(self, pair=few, y=self.y[places])

    def said(self) -> dict[str, Any]:
        """What kernel and fit say of themselves."""
        began = time.perf_counter()
        glm = self.glm
        return {
            "alpha": self.alpha,
            "fit_seconds": round(time.perf_counter() - began, 3),
            "iterations": int(glm.n_iter_),
            "gradient_norm": float(getattr(glm, "gradient_norm_", float("nan"))),
            "converged": bool(glm.converged_),
            "kernel_seconds": round(self.pair.seconds, 3),
            "kernel_scale": self.pair.scale,
            "kernel": dict(self.pair.how),
            "train_items": len(self.y),
        }

    def row(self, network: Float64[np.ndarray, "m c"], y_test: Int64[np.ndarray, " m"]) -> dict[str, Any]:
        """Faithfulness on the test points, and what kernel and fit say of themselves."""
        said = self.said()
        return {**faithful(self.logits, network, y_test, seed=self.seed), **said}


def faithful(
    logits: Float64[np.ndarray, "n c"],
    network: Float64[np.ndarray, "n c"],
    y: Int64[np.ndarray, " n"],
    *,
    bootstrap: int = 200,
    seed: int = 0,
) -> Mapping[str, Any]:
    """Every measure of faithfulness as plain numbers."""
    return dict(faithfulness(logits, network, y, bootstrap=bootstrap, seed=seed).to_json())


def log_odds_pair(
    logits: Float64[np.ndarray, "n c"], network: Float64[np.ndarray, "n c"], y: Int64[np.ndarray, " n"]
) -> Float64[np.ndarray, "2 n"]:
    """Correct-class log-odds of surrogate and network, what the scatter plots show."""
    return np.stack([correct_class_log_odds(logits, y), correct_class_log_odds(network, y)])
