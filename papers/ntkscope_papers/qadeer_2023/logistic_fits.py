"""Logistic fits without a ridge: whether a minimum exists, and where Newton's method stops if it does not."""

from __future__ import annotations

import numpy as np
import torch
from scipy.optimize import linprog
from scipy.special import expit
from torch import Tensor

PLAIN_STEPS, PLAIN_SLOPE = 50, 1e-6


def margin(features: Tensor, labels: np.ndarray) -> float:
    """`max_β min_i ±β·u_i` over |β_k| ≤ 1, u the features' left singular vectors: positive where they separate the classes.

    A linear programme; the result is computed again from its solution.
    """
    left, values, _ = torch.linalg.svd(features, full_matrices=False)
    kept = values > max(features.shape) * torch.finfo(torch.float64).eps * values[0]
    signed = (2 * labels - 1)[:, None] * left[:, kept].numpy()
    count = signed.shape[1]
    found = linprog(
        np.append(np.zeros(count), -1.0),
        A_ub=np.hstack([-signed, np.ones((len(signed), 1))]),
        b_ub=np.zeros(len(signed)),
        bounds=[(-1, 1)] * count + [(None, None)],
        method="highs",
    )
    if not found.success:
        return float("nan")
    return float((signed @ found.x[:count]).min())


def plain_newton(kernel: np.ndarray, labels: np.ndarray) -> tuple[np.ndarray, int, float]:
    """Coefficients α, steps taken and the norm of the gradient: ∇_α of Eq. 15 by full Newton steps of least squares.

    Stopped once the gradient is below 1e-6, or after 50 steps: where the classes are separable the loss has no minimum, and
    the coefficients where it stops are those of the stopping rule.
    """
    own = (kernel + kernel.T) / 2
    alpha = np.zeros(len(own))
    for step in range(PLAIN_STEPS + 1):
        p = expit(own @ alpha)
        slope = own @ (p - labels)
        size = float(np.linalg.norm(slope))
        if size < PLAIN_SLOPE or step == PLAIN_STEPS:
            break
        alpha = alpha - np.linalg.lstsq(own @ ((p * (1 - p))[:, None] * own), slope, rcond=None)[0]
    return alpha, step, size
