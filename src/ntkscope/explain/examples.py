"""The training examples a kernel finds most similar to a test item."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import Float64, Int64

from ntkscope.core import NumericalError, UsageError
from ntkscope.core.arguments import whole
from ntkscope.explain._kernels import kernel_of

BLOCK = 2**23  # kernel values held at a time


@dataclass(frozen=True, eq=False)
class Nearest:
    """The k most similar training points of each test item, most similar first, and their similarities."""

    indices: Int64[np.ndarray, "m k"]
    values: Float64[np.ndarray, "m k"]

    def __len__(self) -> int:
        return len(self.indices)


def nearest(K_test: Any, k: int = 5, *, skip_self: bool = False) -> Nearest:
    """The k training points (columns) of largest kernel value for each test item (row); O(n_test n_train).

    Similarity is signed: a large negative value is far. Ties go to the lower index. `skip_self=True`
    leaves out the diagonal of a square kernel, for the neighbours of training points among themselves.

    Examples:
        >>> found = nearest(np.array([[0.1, 0.9, 0.5], [2.0, -3.0, 2.0]]), k=2)
        >>> found.indices.tolist(), found.values.tolist()
        ([[1, 2], [0, 2]], [[0.9, 0.5], [2.0, 2.0]])
    """
    gram = kernel_of(K_test)
    m, n = gram.shape
    available = n - skip_self
    k = whole(k, "k", low=1, high=available, expected=f"1 … {available} for {available} training points")
    if skip_self and m != n:
        raise UsageError(f"got skip_self=True with a kernel of shape {(m, n)}; expected a square one")
    indices, values = np.empty((m, k), dtype=np.int64), np.empty((m, k))
    for start in range(0, m, step := max(1, BLOCK // max(1, n))):
        block = gram[start : start + step].dense().detach().to("cpu", torch.float64).numpy()
        if not np.isfinite(block).all():
            raise NumericalError(f"{gram!r} holds NaN or infinity between rows {start} and {start + len(block)}")
        if skip_self:
            block = block.copy()
            block[np.arange(len(block)), np.arange(start, start + len(block))] = -np.inf
        least = np.partition(block, n - k, axis=1)[:, n - k]
        for row, (line, bound) in enumerate(zip(block, least), start):
            candidates = np.flatnonzero(line >= bound)  # more than k when the last one is tied
            chosen = candidates[np.argsort(-line[candidates], kind="stable")[:k]]
            indices[row], values[row] = chosen, line[chosen]
    return Nearest(indices, values)
