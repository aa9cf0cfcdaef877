"""Data on nested equispaced grids: functions of one variable, with trapezoid weights, and classes in a box of the plane."""

from __future__ import annotations

from collections.abc import Callable
from math import pi
from typing import Annotated

import torch
from jaxtyping import Float
from torch import Tensor

from ntkscope.core import Part, Split, UsageError
from ntkscope.core.arguments import Real, as_dtype, tensor_of
from ntkscope.core.checked import Count, checked

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


@checked
def target_function(
    *,
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


BOUNDARIES: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "F1": lambda x1, x2: 4 * x1**2 - 3 * x1 + 5 * x2 - 1,
    "F2": lambda x1, x2: 2 * x1**3 - 0.6 * x1**2 - 1.94 * x1 + x2 + 0.2,
}


def grid(
    box: tuple[tuple[Real, Real], tuple[Real, Real]], intervals: tuple[int, int]
) -> Float[Tensor, "first second 2"]:
    """The (N1 + 1) x (N2 + 1) nodes (a1 + i h1, a2 + j h2) of a box.

    >>> grid(((0, 1), (0, 1)), (1, 2))[1].tolist()
    [[1.0, 0.0], [1.0, 0.5], [1.0, 1.0]]
    """
    axes = [low + (high - low) * torch.arange(n + 1, dtype=torch.float64) / n for (low, high), n in zip(box, intervals)]
    return torch.stack(torch.meshgrid(*axes, indexing="ij"), dim=-1)


@checked
def logistic_boundary(
    *,
    seed: int = 0,
    boundary: Annotated[str, tuple(BOUNDARIES)] | Callable[[Tensor, Tensor], Tensor] = "F1",
    intervals: tuple[Count, Count] = (11, 7),
    refinement: tuple[Count, Count] = (2, 3),
    box: tuple[tuple[Real, Real], tuple[Real, Real]] = ((-1.0, 1.0), (-1.0, 1.0)),
    dtype: str | torch.dtype = "float32",
) -> Split:
    """Label (sign F(x1, x2) + 1) / 2 at the (N1 + 1)(N2 + 1) nodes of a grid; test on the finer grid that contains it.

    F1 = 4x1² - 3x1 + 5x2 - 1, F2 = 2x1³ - 0.6x1² - 1.94x1 + x2 + 0.2, or any function of two tensors. Node (i, j) is
    item i (N2 + 1) + j; `extras["boundary"]` is F there. A node with F = 0 has no label and is an error. Nothing is
    random: `seed` changes nothing. Reference: Qadeer et al., in the PNNL report (2023), section 5.1, equation 72 (its
    kernel matrix has (N1 + 1)(N2 + 1) = 96 rows, not N1 N2).

    >>> split = logistic_boundary()
    >>> len(split.train), len(split.test), int(split.train.y.sum())
    (96, 506, 53)
    """
    if any(not low < high for low, high in box):
        raise UsageError(f"box={box}; expected ((a1, b1), (a2, b2)) with a < b")
    function, kind = BOUNDARIES[boundary] if isinstance(boundary, str) else boundary, as_dtype(dtype)
    nodes = grid(box, (intervals[0] * refinement[0], intervals[1] * refinement[1]))
    values = tensor_of(function(nodes[..., 0], nodes[..., 1]), "values of the boundary", keep=True)
    if values.shape != nodes.shape[:2]:
        raise UsageError(f"the boundary gave values of shape {tuple(values.shape)}; expected {tuple(nodes.shape[:2])}")
    if (values == 0).any():
        i, j = (values == 0).nonzero()[0].tolist()
        raise UsageError(
            f"the boundary passes through the node {tuple(nodes[i, j].tolist())}, which then has no label;"
            " expected F != 0 at every node: change intervals, refinement or box"
        )

    def part(first: int, second: int) -> Part:
        x, f = nodes[::first, ::second].reshape(-1, 2), values[::first, ::second].flatten()
        return Part(x.to(kind), (f > 0).long(), {"boundary": f.to(kind)})

    return Split(part(*refinement), part(1, 1), classes=("negative", "positive"), name="logistic-boundary")
