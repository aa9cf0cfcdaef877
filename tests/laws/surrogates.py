"""Surrogates: each is fitted on a kernel (or inputs) and labels, and asked about test items."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch

import ntkscope as ns
from laws.table import (
    Argument,
    Case,
    choice,
    count,
    cross_kernel,
    given,
    kernel,
    labels,
    matrix,
    nonnegative,
    other,
    positive,
    seed,
    share,
    switch,
    vector,
)

S = ns.surrogates
LISTS = (None, "x", 3, (), ("x",), (-1.0,), (float("nan"),), object())


def fitted(make: Callable[..., Any]) -> Callable[..., Any]:
    """Fit and ask: the decision function, or what it predicts where there is none."""

    def function(K: Any, y: Any, K_test: Any, **options: Any) -> Any:
        estimator = make(**options).fit(K, y)
        asked = getattr(estimator, "decision_function", estimator.predict)
        return np.asarray(asked(K_test), dtype=float)

    return function


def surrogate(make: Any, y: Argument, name: str = "", **options: Argument) -> Case:
    inputs = make in set(S.INPUT_SURROGATES.values())
    arguments = {
        "K": matrix("n", "p") if inputs else kernel(),
        "y": y,
        "K_test": matrix("m", "p") if inputs else cross_kernel(),
        **options,
    }
    return Case(
        fitted(make),
        arguments,
        name=name or f"surrogates.{make.__name__}",
        items=None if inputs else {"": ("m", None)},
        rtol=1e-4,
        estimator=True,
    )


def _model(random: np.random.Generator, sizes: Any) -> torch.nn.Module:
    return ns.models.build("mlp", in_features=4, classes=2, widths=5, seed=int(random.integers(100)))


CLASSES, TARGETS = labels(), vector()
# fmt: off
CASES: list[Case] = [
    surrogate(S.ConjugateLeastSquares, TARGETS, alpha=nonnegative(0.1), tol=nonnegative(1e-10).may_be(None)),
    surrogate(S.KernelGLM, CLASSES, alpha=positive(1e-2), solver=choice("newton-cg"), multi_class=choice("multinomial"),
        tol=positive(1e-6), max_iter=count(100), fit_intercept=switch(True), rank=count(8), seed=seed()),
    surrogate(S.KernelLogistic, CLASSES, alpha=positive(1e-2), multi_class=choice("multinomial"), tol=positive(1e-8),
        max_iter=count(100), fit_intercept=switch(True)),
    surrogate(S.KernelNeighbors, CLASSES, k=count(3)),
    surrogate(S.KernelRidge, TARGETS, alpha=nonnegative(0.5), solver=choice("auto"), tol=positive(1e-8),
        max_iter=count(100), rank=count(8)),
    surrogate(S.KernelRidgeClassifier, CLASSES, alpha=nonnegative(0.5), solver=choice("auto"), tol=positive(1e-8),
        max_iter=count(100), rank=count(8)),
    surrogate(S.KernelRidgeLOO, TARGETS, alphas=given((1e-3, 1e-1, 1.0), bad=LISTS), rows=count(100), seed=seed()),
    surrogate(S.KernelSVM, CLASSES, C=positive(1.0), loss=choice("hinge"), intercept=choice("free"),
        solver=choice("auto"), tol=positive(1e-6)),
    surrogate(S.KernelSVR, TARGETS, C=positive(1.0), epsilon=nonnegative(0.1), loss=choice("epsilon_insensitive"),
        intercept=choice("free"), solver=choice("auto"), tol=positive(1e-6)),
    surrogate(S.MinimumNorm, TARGETS, tol=share(1e-10).may_be(None)),
    surrogate(S.MinimumNormClassifier, CLASSES, tol=share(1e-10).may_be(None)),
    surrogate(S.NearestClassCentre, CLASSES, variance=positive(1.0)),
    surrogate(S.RecursiveFeatureMachine, TARGETS, kernel=choice("laplace"), bandwidth=positive(3.0).may_be(None),
        alpha=nonnegative(1e-2).may_be(None), iterations=count(1, least=0).may_be(None), diagonal=switch(),
        rows=count(100), seed=seed()),
    surrogate(S.RecursiveFeatureClassifier, CLASSES, kernel=choice("laplace"), bandwidth=positive(3.0).may_be(None),
        alpha=nonnegative(1e-2).may_be(None), iterations=count(1, least=0).may_be(None), diagonal=switch(),
        rows=count(100), seed=seed()),
    Case(S.linearize, {"model": other(_model, bad=(None, "x", 3, object(), torch.nn.Linear)),
        "coordinates": choice("u"), "offset": switch(True)}, name="surrogates.linearize"),
]
# fmt: on
