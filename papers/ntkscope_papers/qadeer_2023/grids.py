"""Data on nested equispaced grids: functions of one variable, with trapezoid weights, and classes in a square of the plane."""

from __future__ import annotations

from collections.abc import Callable
from math import pi
from typing import Annotated

import torch
from jaxtyping import Float
from torch import Tensor

from ntkscope.core import Part, Split, UsageError
from ntkscope.core.arguments import Real, as_dtype
from ntkscope.core.checked import Count, checked

TARGETS: dict[str, Callable[[Tensor], Tensor]] = {
    "f1": lambda x: torch.exp(torch.sin(2 * pi * x)),
    "f2": lambda x: torch.exp(3 * x),
    "f3": lambda x: torch.cos(torch.exp(3 * x)),
}
BOUNDARIES: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "F1": lambda x1, x2: 4 * x1**2 - 3 * x1 + 5 * x2 - 1,
    "F2": lambda x1, x2: 2 * x1**3 - 0.6 * x1**2 - 1.94 * x1 + x2 + 0.2,
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


def _nodes(intervals: int) -> Float[Tensor, " nodes"]:
    """-1 + 2j / N."""
    return -1.0 + 2.0 * torch.arange(intervals + 1, dtype=torch.float64) / intervals


@checked
def target_function(
    name: Annotated[str, tuple(TARGETS)], *, intervals: Count = 200, refinement: Count = 3, dtype: str = "float32"
) -> Split:
    """y = f(x) at x_j = -1 + 2j / N for training and on the `refinement` times finer grid for testing.

    f1 = exp(sin 2πx), f2 = exp(3x), f3 = cos(exp(3x)). Inputs have shape (N + 1, 1), targets (N + 1,); `extras["weights"]` are
    the trapezoid weights. Every training node is a test node, bit for bit (number refinement · j).
    Reference: Qadeer et al., in the PNNL report (2023), equations 8, 31, 32 and 71.

    >>> split = target_function("f2", intervals=2)
    >>> split.train.x.flatten().tolist(), len(split.test), float(split.train.extras["weights"].sum())
    ([-1.0, 0.0, 1.0], 7, 2.0)
    """
    kind, fine = as_dtype(dtype), intervals * refinement
    nodes = _nodes(fine)
    values = TARGETS[name](nodes)

    def part(step: int) -> Part:
        weights = trapezoid_weights((-1.0, 1.0), fine // step)
        return Part(nodes[::step, None].to(kind), values[::step].to(kind), {"weights": weights.to(kind)})

    return Split(part(refinement), part(1), name="target-function")


@checked
def logistic_boundary(
    name: Annotated[str, tuple(BOUNDARIES)],
    *,
    intervals: tuple[Count, Count] = (11, 7),
    refinement: tuple[Count, Count] = (2, 3),
    dtype: str = "float32",
) -> Split:
    """Label (sign F(x1, x2) + 1) / 2 at the (N1 + 1)(N2 + 1) nodes of a grid; test on the finer grid that contains it.

    F1 = 4x1² - 3x1 + 5x2 - 1, F2 = 2x1³ - 0.6x1² - 1.94x1 + x2 + 0.2, on [-1, 1]². Node (i, j) is item i (N2 + 1) + j;
    `extras["boundary"]` is F there. A node with F = 0 has no label: an error. Reference: Qadeer et al., in the PNNL report
    (2023), section 5.1, equation 72 (its kernel matrix has (N1 + 1)(N2 + 1) = 96 rows, not N1 N2).

    >>> split = logistic_boundary("F1")
    >>> len(split.train), len(split.test), int(split.train.y.sum())
    (96, 506, 53)
    """
    kind, axes = as_dtype(dtype), [_nodes(n * t) for n, t in zip(intervals, refinement)]
    nodes = torch.stack(torch.meshgrid(*axes, indexing="ij"), dim=-1)
    values = BOUNDARIES[name](nodes[..., 0], nodes[..., 1])
    if (values == 0).any():
        i, j = (values == 0).nonzero()[0].tolist()
        raise UsageError(
            f"the boundary passes through the node {tuple(nodes[i, j].tolist())}, which then has no label;"
            " expected F != 0 at every node: change intervals or refinement"
        )

    def part(first: int, second: int) -> Part:
        x, f = nodes[::first, ::second].reshape(-1, 2), values[::first, ::second].flatten()
        return Part(x.to(kind), (f > 0).long(), {"boundary": f.to(kind)})

    return Split(part(*refinement), part(1, 1), classes=("negative", "positive"), name="logistic-boundary")
