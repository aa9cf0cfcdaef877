"""Products of a stored matrix with vectors of a wider dtype, without a converted copy of the whole matrix."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

CHUNK = 1 << 22  # entries converted at a time: 32 MiB in float64


def product(a: Float[Tensor, "n m"], v: Float[Tensor, "m k"]) -> Float[Tensor, "n k"]:
    """`a v` in the wider of the two dtypes; O(nmk)."""
    dtype = torch.promote_types(a.dtype, v.dtype)
    v = v.to(dtype)
    if a.dtype == dtype:
        return a @ v
    return torch.cat([part.to(dtype) @ v for part in a.split(max(1, CHUNK // max(1, a.shape[1])))])


def transposed_product(a: Float[Tensor, "n m"], v: Float[Tensor, "n k"]) -> Float[Tensor, "m k"]:
    """`aᵀ v` in the wider of the two dtypes; O(nmk)."""
    dtype = torch.promote_types(a.dtype, v.dtype)
    v = v.to(dtype)
    if a.dtype == dtype:
        return a.T @ v
    total = torch.zeros(a.shape[1], v.shape[1], dtype=dtype, device=a.device)
    step = max(1, CHUNK // max(1, a.shape[1]))
    for part, vectors in zip(a.split(step), v.split(step)):
        total += part.to(dtype).T @ vectors
    return total
