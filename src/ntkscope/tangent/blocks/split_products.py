"""Products of float32 matrices at the rate of tensor cores, as exact as those of float32 units.

Each row, divided by a power of two, is the sum of two float16 matrices, h + l, which leave out at most 2⁻²² of a number (or
2⁻³⁹ of the largest one of its row); a product is h h' + h l' + l h', where l l' is at most 2⁻²² of a term. Tensor cores cut off
what they add, so that their long sums drift (3e-4 of the norms on 65,536 positive numbers): they add 64 terms at a time, and
float32 units the rest; parts of at most 2¹⁶ terms are added in float64. One H200: 200 TFLOP/s, float32 units 51.
"""

from __future__ import annotations

import importlib.util
import logging
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import torch
from jaxtyping import Float, Float16, Float32
from torch import Tensor

LOG = logging.getLogger(__name__)
SHORTEST, MIDDLE, LONGEST = 2**11, 2**13, 2**16  # terms of a part; up to the second a row's are read once to be halved
FEW = 2**19  # entries of a product, up to which halving its sides is what takes time
PROGRAMS = 264  # tiles and parts that keep the processors of a GPU busy
TILE: dict[str, Any] = {"ROWS": 128, "COLUMNS": 128, "STEP": 64, "GROUP": 8, "num_warps": 8, "num_stages": 3}
WORTH = 2e8  # operations of a product, below which launches cost more than it gains


@dataclass(frozen=True, eq=False)
class Halves:
    """Matrices (g, rows, inner) as `(high + low) * scales`, the inner axis in `parts` of `part` numbers, zeros at its end."""

    high: Float16[Tensor, "g rows padded"]
    low: Float16[Tensor, "g rows padded"]
    scales: Float32[Tensor, "g rows parts"]
    part: int

    def last(self, rows: int) -> Halves:
        """The last rows, of one matrix."""
        return Halves(self.high[:, -rows:], self.low[:, -rows:], self.scales[:, -rows:], self.part)


@lru_cache
def available(device: torch.device) -> bool:
    """Whether the device has tensor cores and Triton has a compiler for it: a small product, which must be right."""
    if device.type != "cuda" or importlib.util.find_spec("triton") is None:
        return False
    if torch.cuda.get_device_capability(device) < (8, 0):
        return False
    x = torch.arange(3 * 200, device=device, dtype=torch.float32).sin().view(1, 3, 200)
    try:
        values, truth = product(x, x), x.double() @ x.double().transpose(1, 2)
        right = bool((values - truth).abs().max() < 1e-6 * truth.abs().max())
    except Exception as error:  # of a compiler or a driver: float32 units can do it
        LOG.warning("products are made in plain float32, since Triton failed: %s", error)
        return False
    return right


def product(
    left: Float32[Tensor, "g rows k"], right: Float32[Tensor, "g columns k"]
) -> Float[Tensor, "g rows columns"]:
    """`left @ rightᵀ` for each pair of matrices, float32, or float64 where it was made in parts."""
    part = part_for(left.shape[0], left.shape[1], right.shape[1], left.shape[2])
    halves = halved(left, part)
    return multiplied(halves, halves if right is left else halved(right, part))


def part_for(groups: int, rows: int, columns: int, inner: int) -> int:
    """How long parts are: few tiles leave processors idle unless their inner axis is cut."""
    tiles = groups * -(-rows // TILE["ROWS"]) * -(-columns // TILE["COLUMNS"])
    part = MIDDLE if rows * columns <= FEW else LONGEST
    while part > SHORTEST and tiles * -(-inner // part) < PROGRAMS:
        part //= 2
    return part


def halved(x: Float32[Tensor, "g rows k"], part: int) -> Halves:
    """Numbers in two halves; the inner axis has to be consecutive in memory."""
    from ntkscope.tangent.blocks._split_kernels import halve

    x = x if x.stride(2) == 1 else x.contiguous()
    g, rows, inner = x.shape
    padded = -(-inner // TILE["STEP"]) * TILE["STEP"]
    parts = -(-padded // part)
    high, low = (torch.empty(g, rows, padded, dtype=torch.float16, device=x.device) for _ in range(2))
    scales = torch.empty(g, rows, parts, dtype=torch.float32, device=x.device)
    with torch.cuda.device(x.device):
        how = {"PART": part, "BLOCK": min(MIDDLE, part), "num_warps": 8}
        halve[g * rows, parts](x, high, low, scales, inner, padded, x.stride(0), x.stride(1), rows, **how)
    return Halves(high, low, scales, part)


def multiplied(left: Halves, right: Halves, diagonal: int | None = None) -> Float[Tensor, "g rows columns"]:
    """The product of two halved matrices; tiles that lie wholly below the diagonal (i, i - `diagonal`) are zeros."""
    from ntkscope.tangent.blocks._split_kernels import multiply

    (g, rows, padded), columns, parts = left.high.shape, right.high.shape[1], left.scales.shape[2]
    out = torch.empty(g, parts, rows, columns, dtype=torch.float32, device=left.high.device)
    tiles = -(-rows // TILE["ROWS"]) * -(-columns // TILE["COLUMNS"])
    sides = left.high, left.low, left.scales, right.high, right.low, right.scales
    with torch.cuda.device(left.high.device):
        below = rows if diagonal is None else diagonal
        multiply[tiles, g * parts](*sides, out, rows, columns, padded, parts, below, PART=left.part, **TILE)
    return out[:, 0] if parts == 1 else out.sum(1, dtype=torch.float64)
