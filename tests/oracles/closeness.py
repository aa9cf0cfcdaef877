"""How far two kernels are apart: largest difference over the largest entry of the expected one."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


def relative_error(actual: Any, expected: Tensor) -> float:
    """max|actual - expected| / max|expected|; infinite when the shapes differ or a value is not finite.

    >>> relative_error(torch.tensor([[2.0, 1.0]]), torch.tensor([[2.0, 0.0]]))
    0.5
    >>> relative_error(torch.zeros(2, 1), torch.zeros(1, 2))
    inf
    """
    actual = torch.as_tensor(actual)
    if actual.shape != expected.shape or not bool(actual.isfinite().all()):
        return float("inf")
    if expected.numel() == 0:
        return 0.0
    scale = float(expected.double().abs().max())
    difference = float((actual.double() - expected.double()).abs().max())
    return difference / scale if scale > 0 else (0.0 if difference == 0 else float("inf"))


def assert_kernel_close(actual: Any, expected: Tensor, tolerance: float = 1e-10) -> None:
    """Fail unless the relative error is within `tolerance` (default: what float64 leaves after a deep network)."""
    error = relative_error(actual, expected)
    if not error <= tolerance:
        found = torch.as_tensor(actual)
        raise AssertionError(
            f"kernels differ by {error:.3e} of the largest entry, tolerance {tolerance:.0e}\n"
            f"shapes: {tuple(found.shape)} and {tuple(expected.shape)}\nactual:\n{found}\nexpected:\n{expected}"
        )
