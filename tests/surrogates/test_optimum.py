"""Fits at their optimum, whatever the scale of the kernel, or said not to be: against a naive Newton method in float64."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest
from scipy.optimize import minimize
from sklearn.exceptions import ConvergenceWarning

from ntkscope.core import NumericalError
from ntkscope.linalg import NumericalWarning
from ntkscope.surrogates import KernelGLM, KernelLogistic, KernelRidge, KernelSVM
from oracles.optimum import glm_minimum, glm_objective, logistic_minimum, logistic_objective

WITHIN = 1e-6
SCALES = [10.0**k for k in range(-8, 9, 2)]
CONDITIONS = [1.0, 1e2, 1e5, 1e10, np.inf]


def kernel(n: int, condition: float, seed: int = 1) -> np.ndarray:
    """Mean diagonal 1; eigenvalues spread evenly in their logarithm, or half of them zero."""
    basis = np.linalg.qr(np.random.default_rng(seed).normal(size=(n, n)))[0]
    half = np.r_[np.ones(n // 2), np.zeros(n - n // 2)]
    values = half if np.isinf(condition) else np.logspace(0, -np.log10(condition), n)
    matrix = (basis * (values * n / values.sum())) @ basis.T
    return (matrix + matrix.T) / 2


def labels(n: int, classes: int, seed: int = 2) -> np.ndarray:
    return np.r_[np.arange(classes), np.random.default_rng(seed).integers(0, classes, n - classes)]


def fitted(model: Any, K: Any, y: np.ndarray) -> tuple[Any, bool]:
    """The fit, and whether a warning said that it fell short."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        model.fit(K, y)
    return model, any(issubclass(w.category, ConvergenceWarning | NumericalWarning) for w in caught)


def right_or_said(found: float, minimum: float, model: Any, said: bool) -> None:
    if not model.converged_:
        assert said, "a fit that fell short must warn"
        return
    assert found <= minimum * (1 + WITHIN), f"{found:.9g} above {minimum:.9g} and called converged"


def check_glm(K: np.ndarray, y: np.ndarray, alpha: float = 1e-4, dtype: type = np.float64, **options: Any) -> Any:
    try:
        model, said = fitted(KernelGLM(alpha, **options), K.astype(dtype), y)
    except NumericalError:  # refused, with the remedy
        return None
    wide = K.astype(dtype).astype(np.float64)
    wide = (wide + wide.T) / 2
    value = glm_objective(wide, y, model.coef_, model.intercept_, alpha)
    right_or_said(value, glm_minimum(wide, y, alpha, intercept=options.get("fit_intercept", True)), model, said)
    assert model.loss_ == pytest.approx(value, rel=1e-6)
    return model


def check_logistic(K: np.ndarray, y: np.ndarray, alpha: float = 1e-3) -> Any:
    model, said = fitted(KernelLogistic(alpha), K, y)
    lifted = K + model.jitter_ * np.eye(len(K))
    value = logistic_objective(lifted, y, model.coef_, model.intercept_, alpha)
    right_or_said(value, logistic_minimum(lifted, y, alpha), model, said)
    return model


def check_ridge(K: np.ndarray, y: np.ndarray, alpha: float, **options: Any) -> None:
    targets = np.where(y == 0, 1.0, -1.0)
    model, said = fitted(KernelRidge(alpha, **options), K, targets)
    values, vectors = np.linalg.eigh((K + K.T) / 2)
    values = np.maximum(values, 0)
    minimum = alpha * float(((vectors.T @ targets) ** 2 / (values + alpha)).sum())
    along = vectors.T @ model.coef_[0]
    value = float(((vectors.T @ targets - values * along) ** 2).sum() + alpha * (values * along**2).sum())
    right_or_said(value, minimum, model, said)


def check_svm(K: np.ndarray, y: np.ndarray, C: float = 1.0) -> None:
    """Below the optimum of the dual, which SciPy's SLSQP bounds from below, by no more than is allowed."""
    model, said = fitted(KernelSVM(C, max_iter=20_000), K, (y > 0).astype(int))
    signs, scale = np.where(y > 0, 1.0, -1.0), float(np.diag(K).mean())
    Q, most = signs[:, None] * K * signs / scale, C * scale
    found = minimize(
        lambda a: (a @ Q @ a / 2 - a.sum(), Q @ a - 1),
        np.full(len(y), min(most, 1) / 2),
        jac=True,
        bounds=[(0, most)] * len(y),
        constraints=[{"type": "eq", "fun": lambda a: a @ signs, "jac": lambda a: signs}],
        method="SLSQP",
        options={"maxiter": 500, "ftol": 1e-15},
    )
    coef, bias = model.coef_[1] - model.coef_[0], model.intercept_[1] - model.intercept_[0]
    scores = K @ coef
    value = coef @ scores / 2 + C * np.maximum(0, 1 - signs * (scores + bias)).sum()
    if found.success:
        right_or_said(value, -found.fun / scale * (1 + 1e-9), model, said)
    assert model.converged_ or said


@pytest.mark.parametrize("scale", [1e-8, 1.0, 1e4, 1e8])
def test_the_scale_of_the_kernel_does_not_decide_what_is_converged(scale: float) -> None:
    K, y = scale * kernel(24, 1e2), labels(24, 3)
    assert check_glm(K, y).converged_
    assert check_logistic(K, y).converged_
    check_ridge(K, y, 1.0)
    check_svm(K, y)


def test_the_gap_is_a_bound_on_the_way() -> None:
    """Stopped anywhere, the objective is above the minimum by no more than `gap_`."""
    K, y = 1e4 * kernel(24, 1e5), labels(24, 3)
    minimum = glm_minimum(K, y, 1e-4)
    for steps in (1, 2, 4):
        glm, _ = fitted(KernelGLM(max_iter=steps, rank=2), K, y)
        assert minimum * (1 - 1e-9) <= glm.loss_ <= minimum + glm.gap_ * (1 + 1e-9)
    own = logistic_minimum(K, y, 1e-3)
    for steps in (1, 3, 6):
        logistic, _ = fitted(KernelLogistic(1e-3, max_iter=steps), K, y)
        assert own * (1 - 1e-9) <= logistic.loss_ <= own + logistic.gap_ * (1 + 1e-9)


def test_stochastic_steps_say_how_far_they_came() -> None:
    K, y = kernel(40, 1e2), labels(40, 3)
    with pytest.warns(ConvergenceWarning, match="above its minimum"):
        glm = KernelGLM(solver="sgd").fit(K, y)
    assert not glm.converged_
    assert glm.gap_ > 0


@pytest.mark.guard
@pytest.mark.parametrize("classes", [2, 3, 7])
@pytest.mark.parametrize("condition", CONDITIONS)
def test_every_scale_and_conditioning(condition: float, classes: int) -> None:
    n = 24
    for scale in SCALES:
        K, y = scale * kernel(n, condition), labels(n, classes)
        check_glm(K, y)
        check_logistic(K, y)
        check_ridge(K, y, 1.0)
        check_ridge(K, y, 1.0, solver="cg", max_iter=200)
        if classes == 2:
            check_svm(K, y)


@pytest.mark.guard
@pytest.mark.parametrize("seed", range(100))
def test_odd_problems(seed: int) -> None:
    """Scales, ranks, duplicated rows, indefinite by rounding, rare classes, separable labels, any ridge, single precision."""
    random = np.random.default_rng(seed)
    n, classes = int(random.integers(6, 26)), int(random.choice([2, 2, 3, 5]))
    x = random.normal(size=(n, int(random.choice([1, 2, 5, 30]))))
    if random.random() < 0.3:
        x[n // 2 :] = x[: n - n // 2]
    y = labels(n, classes, seed)
    if random.random() < 0.3:
        y = np.r_[np.arange(classes), np.zeros(n - classes, dtype=int)]
    if random.random() < 0.3:
        x = x + 10 * np.eye(classes, x.shape[1])[y]
    K = x @ x.T if random.random() < 0.5 else np.exp(-np.square(x[:, None] - x).sum(-1))
    K = K * 10.0 ** random.uniform(-8, 8) + 1e-15 * random.normal(size=(n, n))
    K = (K + K.T) / 2
    alpha = 10.0 ** random.uniform(-10, 4)
    dtype = np.float32 if random.random() < 0.3 else np.float64
    K = K.astype(dtype).astype(np.float64)
    check_glm(K, y, alpha, dtype, fit_intercept=bool(random.random() < 0.8))
    check_logistic(K, y, alpha)
    check_ridge(K, y, alpha)
    check_svm(K, y, min(1e6, 1 / alpha))
