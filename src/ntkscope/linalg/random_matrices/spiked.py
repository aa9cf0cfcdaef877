"""A direction in noise: what its singular value is, and back from the value to strength and overlaps (BBP)."""

from __future__ import annotations

import math

from jaxtyping import Float
from torch import Tensor

from ntkscope.core import UsageError
from ntkscope.core.checked import Count, NonNegative, Positive


def spike_threshold(shape: tuple[Count, Count], scale: Positive = 1.0) -> float:
    """`scale (m n)^¼`: below this strength a direction leaves no mark on the singular values of large noise.

    Examples:
        >>> spike_threshold((100, 100))
        10.0
    """
    return scale * (shape[0] * shape[1]) ** 0.25


def spiked_value(strength: NonNegative, shape: tuple[Count, Count], scale: Positive = 1.0) -> float:
    """The largest singular value of `θ u vᵀ + noise`: `√((θ² + m s²)(θ² + n s²)) / θ`, or the edge below the threshold.

    Baik, Ben Arous & Péché (2005); Benaych-Georges & Nadakuditi (2012), section 3.1.

    Examples:
        >>> round(spiked_value(4356**0.5, (1500, 1000)) ** 2 / 1000, 1)
        7.2
    """
    rows, columns = shape
    square = max(strength, spike_threshold(shape, scale)) ** 2
    return math.sqrt((square + rows * scale**2) * (square + columns * scale**2) / square)


def spike_strength(value: NonNegative, shape: tuple[Count, Count], scale: Positive = 1.0) -> float:
    """The strength θ whose singular value is `value`; the threshold where the value does not leave the bulk.

    Examples:
        >>> round(spike_strength(spiked_value(30.0, (50, 80)), (50, 80)), 9)
        30.0
    """
    rows, columns = shape
    least = spike_threshold(shape, scale)
    square = (value / scale) ** 2
    middle = square - rows - columns
    inner = middle**2 - 4 * rows * columns
    if middle <= 0 or inner <= 0:
        return least
    return scale * math.sqrt((middle + math.sqrt(inner)) / 2)


def spike_overlaps(strength: NonNegative, shape: tuple[Count, Count], scale: Positive = 1.0) -> tuple[float, float]:
    """`|⟨u, û⟩|` and `|⟨v, v̂⟩|` of a direction and the singular vectors found for it, left and right; 0 at the threshold.

    With `t = θ / s`: `√((t⁴ - mn) / (t² (t² + m)))` and the same with n. Benaych-Georges & Nadakuditi (2012).

    Examples:
        >>> [round(overlap, 2) for overlap in spike_overlaps(4356**0.5, (1500, 1000))]
        [0.83, 0.87]
    """
    rows, columns = shape
    square = (max(strength, spike_threshold(shape, scale)) / scale) ** 2
    gap = max(0.0, square**2 - rows * columns)
    return math.sqrt(gap / (square * (square + rows))), math.sqrt(gap / (square * (square + columns)))


def participation(vectors: Float[Tensor, "n k"]) -> Float[Tensor, " k"]:
    """`1 / (n Σ v⁴)` of each unit column: the share of entries that carry it, 1/3 if they are Gaussian, 1/n if one does.

    Examples:
        >>> import torch
        >>> participation(torch.tensor([[0.5, 1.0], [0.5, 0.0], [0.5, 0.0], [0.5, 0.0]])).tolist()
        [1.0, 0.25]
    """
    if not bool((((vectors * vectors).sum(0) - 1).abs() < 1e-3).all()):
        raise UsageError(
            "got columns whose squares do not add up to 1; expected unit vectors: divide them by their norms"
        )
    return 1 / (len(vectors) * vectors.pow(4).sum(0))
