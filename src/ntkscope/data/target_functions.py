"""Smooth functions of one variable on nested equispaced grids, with trapezoid weights."""

from __future__ import annotations

from collections.abc import Callable
from math import pi
from typing import Annotated

import torch
from jaxtyping import Float
from torch import Tensor

from ntkscope.core import Part, Split, UsageError
from ntkscope.core.arguments import Real, as_dtype
from ntkscope.core.checked import Count
from ntkscope.data.registry import DATASETS

TARGETS: dict[str, Callable[[Tensor], Tensor]] = {
    "f1": lambda x: torch.exp(torch.sin(2 * pi * x)),
    "f2": lambda x: torch.exp(3 * x),
    "f3": lambda x: torch.cos(torch.exp(3 * x)),
}


def trapezoid_weights(interval: tuple[Real, Real], intervals: int) -> Float[Tensor, " nodes"]:
    """w_j = h for inner nodes and h/2 for the two ends, h = (b - a) / N: Σ w_j g(x_j)² ≈ ∫ g², exact for linear g².

    >>> trapezoid_weights((0, 1), 2).tolist()
    [0.25, 0.5, 0.25]
    """
    step = (interval[1] - interval[0]) / intervals
    weights = torch.full((intervals + 1,), step, dtype=torch.float64)
    weights[0] = weights[-1] = step / 2
    return weights


@DATASETS.register("target-function")
def target_function(
    *,
    root: str | None = None,
    seed: int = 0,
    function: Annotated[str, tuple(TARGETS)] | Callable[[Tensor], Tensor] = "f1",
    intervals: Count = 200,
    refinement: Count = 3,
    interval: tuple[Real, Real] = (-1.0, 1.0),
    dtype: str | torch.dtype = "float32",
) -> Split:
    """y = f(x) at x_j = a + j (b - a) / N for training and on the `refinement` times finer grid for testing.

    f1 = exp(sin 2πx), f2 = exp(3x), f3 = cos(exp(3x)), or any function of a tensor. Inputs have shape (N + 1, 1),
    targets (N + 1,); `extras["weights"]` are the trapezoid weights. Every training node is a test node, bit for bit
    (number refinement · j). Nothing is random: `seed` changes nothing.
    Reference: Qadeer et al., in the PNNL report (2023), equations 8, 31, 32 and 71.

    >>> split = target_function(function="f2", intervals=2)
    >>> split.train.x.flatten().tolist(), len(split.test), float(split.train.extras["weights"].sum())
    ([-1.0, 0.0, 1.0], 7, 2.0)
    """
    low, high = interval
    if not low < high:
        raise UsageError(f"interval={interval}; expected (a, b) with a < b")
    kind, fine = as_dtype(dtype), intervals * refinement
    nodes = low + (high - low) * torch.arange(fine + 1, dtype=torch.float64) / fine
    values = (TARGETS[function] if isinstance(function, str) else function)(nodes)
    if values.shape != nodes.shape:
        raise UsageError(
            f"function returned shape {tuple(values.shape)} for {len(nodes)} points; expected a value each"
        )

    def part(step: int) -> Part:
        weights = trapezoid_weights(interval, fine // step)
        return Part(nodes[::step, None].to(kind), values[::step].to(kind), {"weights": weights.to(kind)})

    return Split(part(refinement), part(1), name="target-function")
