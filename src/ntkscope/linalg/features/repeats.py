"""Rows of a matrix that repeat earlier ones, entry by entry."""

from __future__ import annotations

import numpy as np
import torch
from jaxtyping import Float64, Int64
from torch import Tensor

from ntkscope.core import numpy_generator


def distinct_rows(matrix: Float64[Tensor, "m n"]) -> Int64[Tensor, " k"]:
    """Indices of the rows that equal no earlier row, ascending; O(m n).

    Rows are told apart by a hash of their bits (sums of 64-bit words times random ones, exact in any order); those that share
    one are compared.

    >>> distinct_rows(torch.tensor([[1.0, 2.0], [3.0, 4.0], [1.0, 2.0], [2.0, 1.0]], dtype=torch.float64)).tolist()
    [0, 1, 3]
    """
    entries = np.ascontiguousarray(matrix.detach().cpu().numpy()) + 0.0  # -0 is 0
    factors = numpy_generator(0, "distinct rows").integers(1 << 62, size=entries.shape[1], dtype=np.int64) * 2 + 1
    hashes = (entries.view(np.int64) * factors).sum(1)
    groups: dict[int, list[int]] = {}
    distinct = []
    for row, word in enumerate(hashes.tolist()):
        before = groups.setdefault(word, [])
        if not any(np.array_equal(entries[row], entries[other]) for other in before):
            before.append(row)
            distinct.append(row)
    return torch.tensor(distinct, dtype=torch.int64, device=matrix.device)
