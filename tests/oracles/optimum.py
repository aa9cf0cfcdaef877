"""Optima of penalised cross-entropies by a dense Newton method in float64, with no cleverness."""

from __future__ import annotations

import numpy as np


def cross_entropy(scores: np.ndarray, y: np.ndarray) -> float:
    """The mean; the largest logit is never subtracted from itself, so that losses of 1e-20 have digits."""
    rows = np.arange(len(y))
    top = scores.argmax(1)
    behind = scores[rows, top] - scores[rows, y]
    odds = np.exp(scores - scores[rows, top][:, None])
    odds[rows, top] = 0
    return float(np.mean(np.log1p(odds.sum(1)) + behind))


def glm_objective(K: np.ndarray, y: np.ndarray, coef: np.ndarray, bias: np.ndarray, alpha: float) -> float:
    return cross_entropy(K @ coef.T + bias, y) + alpha / 2 * float((coef**2).sum())


def logistic_objective(K: np.ndarray, y: np.ndarray, coef: np.ndarray, bias: np.ndarray, alpha: float) -> float:
    return cross_entropy(K @ coef.T + bias, y) + alpha / 2 * float((coef * (coef @ K)).sum())


def glm_minimum(K: np.ndarray, y: np.ndarray, alpha: float, *, intercept: bool = True, steps: int = 500) -> float:
    """`min cross_entropy(K W + b) + α/2 ‖W‖²`: the whole Hessian, decomposed, in the eigenvectors of K, which is scaled to 1.

    Damped Newton steps from zero until the decrement is 1e-13 of the value.
    """
    n, c = len(y), int(y.max()) + 1
    values, vectors = np.linalg.eigh((K + K.T) / 2)
    scale = np.abs(values).max() or 1.0
    features = np.c_[vectors * (values / scale), np.ones(n)] if intercept else vectors * (values / scale)
    d = features.shape[1]
    penalty = np.full(d, alpha / scale**2)
    if intercept:
        penalty[-1] = 0
    theta, rows = np.zeros((d, c)), np.arange(n)

    def objective(theta: np.ndarray) -> float:
        return cross_entropy(features @ theta, y) + float((penalty[:, None] * theta**2).sum()) / 2

    value = objective(theta)
    for _ in range(steps):
        scores = features @ theta
        p = np.exp(scores - scores.max(1, keepdims=True))
        p /= p.sum(1, keepdims=True)
        top = p.argmax(1)
        others = p.copy()
        others[rows, top] = 0
        rest = 1 - p
        rest[rows, top] = others.sum(1)
        residual = p.copy()
        residual[rows, y] = -rest[rows, y]
        gradient = (features.T @ residual / n + penalty[:, None] * theta).T.ravel()
        hessian = np.zeros((c, d, c, d))
        for k in range(c):
            for m in range(c):
                bend = (p[:, k] * rest[:, k] if k == m else -p[:, k] * p[:, m]) / n
                hessian[k, :, m] = features.T @ (features * bend[:, None])
            hessian[k, range(d), k, range(d)] += penalty
        flat = hessian.reshape(c * d, c * d)
        size = np.sqrt(np.maximum(flat.diagonal(), 1e-300))
        bends, basis = np.linalg.eigh(flat / size[:, None] / size)
        kept = bends > 1e-15 * bends[-1]
        step = -(basis[:, kept] @ ((basis[:, kept].T @ (gradient / size)) / bends[kept])) / size
        decrement, step, length = -float(gradient @ step), step.reshape(c, d).T, 1.0
        while length > 1e-12 and not objective(theta + length * step) < value - 1e-4 * length * decrement:
            length /= 2
        if length <= 1e-12:
            break
        theta = theta + length * step
        value = objective(theta)
        if decrement < 1e-13 * value:
            break
    return value


def logistic_minimum(K: np.ndarray, y: np.ndarray, alpha: float) -> float:
    """`min cross_entropy(K c + b) + α/2 cᵀKc`: the GLM's on the root of K; eigenvalues within rounding of zero are zero.

    A weak ridge would fit the labels to them: a rounding of 1e-13 is a feature of 3e-7.
    """
    values, vectors = np.linalg.eigh((K + K.T) / 2)
    values = np.where(values > len(K) * np.finfo(float).eps * np.abs(values).max(), values, 0)
    return glm_minimum((vectors * np.sqrt(values)) @ vectors.T, y, alpha)
