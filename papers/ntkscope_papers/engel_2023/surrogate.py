"""A kernel's surrogate and how faithful it is: one row of the paper's tables."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
from jaxtyping import Float64, Int64

from ntkscope.core import Record
from ntkscope.machines import KernelMachine, KernelPair, fit_machine, rate
from ntkscope.measures.faithfulness import correct_class_log_odds
from ntkscope_papers.framework import drawing

Logits = Float64[np.ndarray, "n c"]
Labels = Int64[np.ndarray, " n"]
SENSITIVITY = (1e-6, 1e-5, 1e-3, 1e-2)  # ridge strengths in addition to the default of 1e-4
TOLERANCE = 1e-9  # of the gradient: for separable classes, τ still changes with the bias at looser tolerances


@dataclass(frozen=True, eq=False)
class Surrogate:
    """The kernel GLM of one kernel, fitted on first use."""

    pair: KernelPair
    y: Labels
    alpha: float
    seed: int = 0
    solver: str = "newton-cg"  # "sgd" is scikit-learn's SGDClassifier, which the paper used: short of the optimum

    @cached_property
    def machine(self) -> KernelMachine:
        """`converged` and the gradient's norm say whether the fit reached its optimum."""
        options: dict[str, Any] = {"tol": TOLERANCE, "max_iter": 500, "seed": self.seed}
        return fit_machine(self.pair, self.y, alpha=self.alpha, solver=self.solver, **options)

    @cached_property
    def logits(self) -> Logits:
        """Logits of the test points."""
        return self.machine.logits(self.pair.test)

    def restricted(self, places: Int64[np.ndarray, " k"]) -> Surrogate:
        """The surrogate on some of the training points alone; itself when these are all."""
        if len(places) == len(self.y):
            return self
        return replace(self, pair=self.pair.take(places), y=self.y[places])

    def said(self) -> dict[str, Any]:
        """Diagnostics of kernel and fit."""
        machine = self.machine
        return {
            "alpha": self.alpha,
            "fit_seconds": round(machine.seconds, 3),
            "iterations": machine.iterations,
            "gradient_norm": machine.gradient_norm,
            "converged": machine.converged,
            "kernel_seconds": round(self.pair.seconds, 3),
            "kernel_scale": self.pair.scale,
            "kernel": dict(self.pair.how),
            "train_items": len(self.y),
        }

    def row(self, network: Logits, y_test: Labels) -> dict[str, Any]:
        """Faithfulness on the test points, and diagnostics of kernel and fit."""
        return {**faithful(self.logits, network, y_test, seed=self.seed), **self.said()}

    def ridges(self, network: Logits, y_test: Labels, *names: str) -> dict[str, dict[str, float]]:
        """Faithfulness with other ridge strengths: how much it depends on the ridge."""
        rows = {f"{alpha:g}": replace(self, alpha=alpha).row(network, y_test) for alpha in SENSITIVITY}
        return {alpha: {name: row[name] for name in names} for alpha, row in rows.items()}


def faithful(logits: Logits, network: Logits, y: Labels, *, bootstrap: int = 200, seed: int = 0) -> Mapping[str, Any]:
    """Every measure of faithfulness as plain numbers."""
    return rate(logits, network, y, bootstrap=bootstrap, seed=seed).to_json()


def log_odds_pair(logits: Logits, network: Logits, y: Labels) -> Float64[np.ndarray, "2 n"]:
    """Correct-class log-odds of surrogate and network, what the scatter plots show."""
    return np.stack([correct_class_log_odds(logits, y), correct_class_log_odds(network, y)])


def log_odds_figure(name: str, record: Record, titles: Mapping[str, str], columns: int | None = None) -> dict[str, Any]:
    """Log-odds of surrogate against network, a panel for each of the keys in `titles` that the record has; or no figure."""
    shown = {key: title for key, title in titles.items() if f"log-odds-{key}" in record.arrays}
    if not shown:
        return {}
    columns = columns or len(shown)
    figure, axes = drawing.canvas(-(-len(shown) // columns), columns, width=3.4, height=3.2)
    for axis in axes[len(shown) :]:
        axis.set_axis_off()
    for axis, (key, title) in zip(axes, shown.items()):
        surrogate, network = record.arrays[f"log-odds-{key}"]
        drawing.scatter_log_odds(axis, surrogate, network, title)
    return {name: figure}
