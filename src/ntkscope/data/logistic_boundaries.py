"""Two classes in a box of the plane, told apart by the sign of a polynomial, on nested grids."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated

import torch
from jaxtyping import Float
from torch import Tensor

from ntkscope.core import Part, Split, UsageError
from ntkscope.core.arguments import Real, as_dtype, tensor_of
from ntkscope.core.checked import Count
from ntkscope.data.registry import DATASETS

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


@DATASETS.register("logistic-boundary")
def logistic_boundary(
    *,
    root: str | None = None,
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
