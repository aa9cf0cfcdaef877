"""Two kernels of the same items, and their entries centred tile by tile."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from ntkscope.core import UsageError
from ntkscope.core.arguments import unit_of
from ntkscope.linalg import Gram, as_gram

Kernel = Gram | Tensor | np.ndarray


def kernel_pair(K1: Kernel, K2: Kernel, together: bool = False) -> tuple[Gram, Gram]:
    """Two kernels of the same items, each divided by its own unit, or both by the larger."""
    left, right = (as_gram(K) for K in (K1, K2)) if together else (square(K1), square(K2))
    if left.shape != right.shape:
        raise UsageError(f"got kernels of shapes {left.shape} and {right.shape}; expected both for the same items")
    if together and square(left) and square(right):
        unit = unit_of(left.diagonal(), right.diagonal())
        return divided(left, unit), divided(right, unit)
    return left, right


def row_means(gram: Gram) -> tuple[Tensor, Tensor, float]:
    """Means of rows, of columns, and of all."""
    ones = torch.ones(gram.shape[0], dtype=torch.float64, device=gram.device)
    rows, columns = (gram @ ones).double().cpu() / len(ones), (gram.T @ ones).double().cpu() / len(ones)
    return rows, columns, float(rows.mean())


def centred_tile(
    tile: Tensor, rows: slice, columns: slice, row_means: Tensor, column_means: Tensor, mean: float
) -> Tensor:
    """A copy of the tile in float64, less the means of its rows and columns."""
    centred = tile.detach().to("cpu", torch.float64, copy=True)
    return centred.sub_(row_means[rows, None]).sub_(column_means[None, columns] - mean)


def square(K: Kernel) -> Gram:
    """A square kernel; one so large or so small that squares of it leave the range of floats is divided by its unit."""
    gram = as_gram(K)
    if gram.shape[0] != gram.shape[1] or gram.shape[0] < 1:
        raise UsageError(f"got a kernel of shape {gram.shape}; expected a square one, between the same items")
    return divided(gram, unit_of(gram.diagonal()))


def divided(gram: Gram, unit: float) -> Gram:
    return gram if unit == 1 else gram.scaled(torch.full((len(gram),), unit**-0.5, dtype=torch.float64))
