"""Change: how far training moved a kernel, and how far the outputs left the tangent plane."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch

from ntkscope.core import NumericalError, UsageError
from ntkscope.core.arguments import finite, unit_of
from ntkscope.measures._kernel_pairs import Kernel, centred_tile, kernel_pair, row_means
from ntkscope.measures.registry import measure


@measure("relative-change", of="two kernels", low=0, best=0)
def relative_change(K0: Kernel, K1: Kernel, *, centred: bool = False) -> float:
    """`‖K₁ - K₀‖_F / ‖K₀‖_F`, or of `H K H`: how far a kernel moved, in units of itself; O(n²).

    `centred=True` leaves out the kernel's constant part. Rounded to twelve decimals. Chizat, Oyallon & Bach (2019): training is
    lazy where this is small.

    Examples:
        >>> relative_change(np.eye(3), 3 * np.eye(3) + 100, centred=True)
        2.0
    """
    before, after = kernel_pair(K0, K1, together=True)
    means = [row_means(gram) for gram in (before, after)] if centred else []
    sums = torch.zeros(2, dtype=torch.float64)
    for rows, columns, tile in before.tiles():
        a, b = tile.detach().double().cpu(), after[rows, columns].dense().detach().double().cpu()
        if centred:
            a, b = (centred_tile(one, rows, columns, *mean) for one, mean in zip((a, b), means))
        sums += torch.stack([(b - a).square().sum(), a.square().sum()])
    moved, size = sums.sqrt().tolist()
    if not math.isfinite(moved + size):
        raise NumericalError("got a kernel that holds NaN or infinity; its change is undefined")
    if size == 0 < moved:
        raise NumericalError("got a zero (or, centred, constant) kernel K0: a change relative to it is undefined")
    return round(moved / size, 12) if moved else 0.0


@measure("linearisation-error", of="two changes", low=0, best=0)
def linearisation_error(change: Any, predicted: Any) -> float:
    """`‖Δ - Δ̂‖ / ‖Δ‖` of the change of the outputs, (n, c), and what the linearised network predicts, `Δ̂ = J₀ (w₁ - w₀)`.

    NaN where nothing changed. Chizat, Oyallon & Bach (2019), section 1: lazy training is training along which the linearised
    model stays near.

    Examples:
        >>> linearisation_error([[3.0], [4.0]], [[3.0], [0.0]])
        0.8
    """
    moved, linear = finite(change, "the change of the outputs", 2), finite(predicted, "the predicted change", 2)
    if moved.shape != linear.shape:
        raise UsageError(f"got changes of shapes {moved.shape} and {linear.shape}; expected the same items and outputs")
    unit = unit_of(moved, linear)
    size = float(np.linalg.norm(moved / unit))
    return float(np.linalg.norm((moved - linear) / unit)) / size if size > 0 else math.nan
