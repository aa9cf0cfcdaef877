"""Differences of products of doubles without cancellation."""

from __future__ import annotations

import torch
from torch import Tensor

from ntkscope.core import NumericalError

HUGE = 1e9  # variances from which rounding of a covariance is as large as what functions of scale one tell apart
SAME, DISTINCT = 64 * 2.0**-52, 1e-9  # relative differences: equal up to rounding; known to a millionth of themselves
SPLIT = 134217729.0  # 2²⁷ + 1: cuts a double into two halves of 26 bits


def gap(cov: Tensor, q1: Tensor, q2: Tensor, matters_from: float = 0.0) -> Tensor:
    """q₁q₂ − Σ², at least 0: both products are formed with what rounding takes from them (Dekker 1971).

    Formed plainly where no variance is above `matters_from` (a hundredth of it in float32): what is added to it there is far
    above its rounding.

    Of nearly equal inputs it is a small difference of large numbers: formed plainly, its error would be 1e-16 q₁q₂, and
    that of 1 − ρ² 1e-16. float32 is computed in float64, where its products are exact.

    >>> one = torch.tensor([1.0 + 2.0**-52], dtype=torch.float64)
    >>> gap(torch.ones(1, dtype=torch.float64), one, one).item() == 2.0**-51 + 2.0**-104
    True
    """
    plain = matters_from if cov.dtype == torch.float64 else matters_from / 100
    if plain and all(not q.numel() or float(q.detach().max()) <= plain for q in (q1, q2)):
        return (q1 * q2 - cov * cov).clamp(min=0)
    if cov.dtype != torch.float64:
        wide = cov.double(), q1.double(), q2.double()
        return (wide[1] * wide[2] - wide[0] ** 2).clamp(min=0).to(cov.dtype)
    product, square = q1 * q2, cov * cov
    lost = _lost(q1, q2, product) - _lost(cov, cov, square)
    difference = ((product - square) + lost).clamp(min=0)
    if any(q.numel() and float(q.detach().max()) > HUGE for q in (q1, q2)):
        return difference * distinct(
            difference.detach(), product.detach(), max(float(q.detach().max()) for q in (q1, q2))
        )
    return difference


def distinct(difference: Tensor, size: Tensor, largest: float) -> Tensor:
    """0 where inputs are equal up to rounding, 1 where they clearly are not, and an error where rounding decides.

    A covariance is known to some 1e-16 of it. From variances of 1e9 on that is more than what a function of scale one can
    tell apart.
    """
    ratio = difference / size.clamp(min=torch.finfo(size.dtype).tiny)
    if bool(((ratio > SAME) & (ratio < DISTINCT)).any()):
        raise NumericalError(
            f"two inputs of variance {largest:.3g} are equal up to {float(ratio[ratio > SAME].min()):.1g}, where rounding of"
            " their covariance decides the kernel; expected inputs that are equal, or differ by more than 1e-4 of their norm:"
            " scale the inputs, or leave one of the two out"
        )
    return (ratio > SAME).to(difference.dtype)


def _lost(a: Tensor, b: Tensor, product: Tensor) -> Tensor:
    """a·b − fl(a·b), exactly."""
    a_high, b_high = (SPLIT * v - (SPLIT * v - v) for v in (a, b))
    a_low, b_low = a - a_high, b - b_high
    return ((a_high * b_high - product) + a_high * b_low + a_low * b_high) + a_low * b_low
