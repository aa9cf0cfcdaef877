"""Products of float32 matrices at the rate of tensor cores, as exact as those of float32 units.

Each row, divided by a power of two, is the sum of two float16 matrices, h + l, which leave out at most 2⁻²² of a number (or
2⁻³⁹ of the largest one of its row); a product is h h' + h l' + l h', where l l' is at most 2⁻²² of a term. Tensor cores cut off
what they add, so that their long sums drift (3e-4 of the norms on 65,536 positive numbers): they add 64 terms at a time, and
float32 units the rest; parts of at most 2¹⁶ terms are added in float64. One H200: 200 TFLOP/s, float32 units 51.
"""

from __future__ import annotations

import importlib.util
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from math import prod
from typing import Any

import torch
from jaxtyping import Float, Float16, Float32
from torch import Tensor

LOG = logging.getLogger(__name__)
NUMBERS: tuple[torch.dtype, ...] = (torch.float32,)
DEVICES: tuple[str, ...] = ("cuda",)
SHORTEST, MIDDLE, LONGEST = 2**11, 2**13, 2**16  # terms of a part; up to the second a row's are read once to be halved
FEW = 2**19  # entries of a product, up to which halving its sides is what takes time
PROGRAMS = 264  # tiles and parts that keep the processors of a GPU busy
TILE: dict[str, Any] = {"ROWS": 128, "COLUMNS": 128, "STEP": 64, "GROUP": 8, "num_warps": 8, "num_stages": 3}
SHORT = TILE | {"COLUMNS": 64, "num_warps": 4}  # where little is added before a tile is written
SMALL = SHORT | {"ROWS": 64, "num_stages": 4}  # of few rows and columns
WORTH = 2e8  # operations of a product, below which launches cost more than it gains
LEAST = 32  # rows and columns, below which most of a tile would be empty
WIDEST = 512  # sides of images, lines of which are turned as a whole
TURNED = 2**12  # numbers of a line of an image that are turned together
BESIDE = 64  # rows that lie side by side and are turned together


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
    """Whether the device has tensor cores and Triton has a compiler for it: small products and a convolution must be right."""
    if device.type != "cuda" or importlib.util.find_spec("triton") is None:
        return False
    if torch.cuda.get_device_capability(device) < (8, 0):
        return False
    x = torch.arange(PROGRAMS * 20 * 35, device=device, dtype=torch.float32).sin()
    few, many = x[:600].view(1, 3, 200), x[:26000].view(1, 130, 200)
    turned = x.view(PROGRAMS // 2, 20, 70).transpose(1, 2)
    images, kernels = x[:3200].view(2, 64, 5, 5), x[:73728].view(128, 64, 3, 3)
    try:
        right = all(_right(product, _times, one, one) for one in (few, many, turned))
        right &= _right(partial(convolved, padding=(1, 1)), partial(torch.conv2d, padding=1), images, kernels)
    except Exception as error:  # of a compiler or a driver: float32 units can do it
        LOG.warning("products are made in plain float32, since Triton failed: %s", error)
        return False
    return right


def _right(split: Callable[..., Tensor], plain: Callable[..., Tensor], *sides: Tensor) -> bool:
    truth, size = plain(*(side.double() for side in sides)), plain(*(side.double().abs() for side in sides)).max()
    return bool((split(*sides) - truth).abs().max() < 1e-6 * size)


def _times(left: Tensor, right: Tensor) -> Tensor:
    return left @ right.mT


def product(
    left: Float32[Tensor, "g rows k"],
    right: Float32[Tensor, "g columns k"],
    bias: Float32[Tensor, " columns"] | None = None,
    out: Float32[Tensor, "g rows columns"] | None = None,
) -> Float[Tensor, "g rows columns"]:
    """`left @ rightᵀ` for each pair of matrices, float32, or float64 where it was made in parts: never with `bias`, which is
    added, or `out`, where it is written."""
    whole = bias is not None or out is not None
    part = LONGEST if whole else part_for(left.shape[0], left.shape[1], right.shape[1], left.shape[2])
    halves = halved(left, part)
    return multiplied(halves, halves if right is left else halved(right, part), bias=bias, out=out)


def worthwhile(rows: int, columns: int, inner: int, groups: int = 1) -> bool:
    """Whether a product in one part is faster so than by float32 units."""
    large = 2.0 * groups * rows * columns * inner > WORTH
    return large and min(rows, columns, inner) >= LEAST and inner <= LONGEST


def part_for(groups: int, rows: int, columns: int, inner: int) -> int:
    """How long parts are: few tiles leave processors idle unless their inner axis is cut."""
    tiles = groups * tiles_of(rows, columns, tile_for(rows, columns, inner))
    part = MIDDLE if rows * columns <= FEW else LONGEST
    while part > SHORTEST and tiles * -(-inner // part) < PROGRAMS:
        part //= 2
    return part


def halved(x: Float32[Tensor, "g rows k"], part: int) -> Halves:
    """Numbers in two halves; rows that lie side by side in memory are turned on the way, if their inner axis is one part."""
    from ntkscope.tangent.blocks._split_kernels import halve, halve_columns

    g, rows, inner = x.shape
    padded = -(-inner // step_for(inner)) * step_for(inner)
    beside = x.stride(1) == 1 and x.stride(2) != 1 and inner <= part and g * -(-rows // BESIDE) >= PROGRAMS
    x = x if x.stride(2) == 1 or beside else x.contiguous()
    parts = -(-padded // part)
    high, low = (torch.empty(g, rows, padded, dtype=torch.float16, device=x.device) for _ in range(2))
    scales = torch.empty(g, rows, parts, dtype=torch.float32, device=x.device)
    with torch.cuda.device(x.device):
        if beside:
            sizes = inner, padded, x.stride(0), x.stride(2), rows
            halve_columns[g, -(-rows // BESIDE)](x, high, low, scales, *sizes, STEP=16, COLUMNS=BESIDE)
        else:
            block = min(MIDDLE, part, triton_size(padded))  # where it is the whole part, each number is read once
            how = {"PART": block if block >= padded else part, "BLOCK": block, "num_warps": 8 if block > 1024 else 4}
            halve[g * rows, parts](x, high, low, scales, inner, padded, x.stride(0), x.stride(1), rows, **how)
    return Halves(high, low, scales, part)


def step_for(inner: int) -> int:
    """Terms that are added at a time: short inner axes are not made much longer."""
    return next(step for step in (16, 32, TILE["STEP"]) if inner <= 5 * step or step == TILE["STEP"])


def tile_for(rows: int, columns: int, inner: int) -> dict[str, Any]:
    """How a product is cut into tiles."""
    if max(rows, columns) <= SMALL["ROWS"]:
        tile = SMALL
    else:
        tile = TILE if step_for(inner) == TILE["STEP"] else SHORT
    return tile | {"STEP": step_for(inner)}


def tiles_of(rows: int, columns: int, tile: dict[str, Any]) -> int:
    return -(-rows // tile["ROWS"]) * -(-columns // tile["COLUMNS"])


def triton_size(length: int) -> int:
    return 1 << max(4, (length - 1).bit_length())


def multiplied(
    left: Halves,
    right: Halves,
    diagonal: int | None = None,
    bias: Float32[Tensor, " columns"] | None = None,
    out: Float32[Tensor, "g rows columns"] | None = None,
) -> Float[Tensor, "g rows columns"]:
    """The product of two halved matrices; tiles that lie wholly below the diagonal (i, i - `diagonal`) are zeros.

    `bias` and `out`, where it is written: of a product in one part.
    """
    from ntkscope.tangent.blocks._split_kernels import multiply

    (g, rows, padded), columns, parts = left.high.shape, right.high.shape[1], left.scales.shape[2]
    if parts > 1 and not (out is None and bias is None):
        raise ValueError(f"got an inner axis of {padded} terms; expected at most {LONGEST} with bias= or out=")
    if out is None:
        out = torch.empty(g, parts, rows, columns, dtype=torch.float32, device=left.high.device)
    tile = tile_for(rows, columns, padded)
    sides = left.high, left.low, left.scales, right.high, right.low, right.scales
    with torch.cuda.device(left.high.device):
        below = rows if diagonal is None else diagonal
        multiply[tiles_of(rows, columns, tile) * g * parts,](
            *sides, bias, out, rows, columns, padded, parts, below, BIASED=bias is not None, PART=left.part, **tile
        )
    if parts == 1:
        return out.view(g, rows, columns)
    return out.sum(1, dtype=torch.float64)


def convolves(x: Tensor, weight: Tensor) -> bool:
    """Whether a pass back through a convolution is faster so than by float32 units."""
    outs, channels, *taps = weight.shape
    large = 2.0 * x[:, 0].numel() * weight.numel() > WORTH and min(channels, outs) >= LEAST // 2
    fits = max(x.shape[2:]) <= WIDEST and (outs + 15) * prod(taps) <= LONGEST
    return large and fits and splittable(x, weight)


def splittable(*values: Tensor) -> bool:
    """Whether all are numbers that are split, on one device that does it."""
    return all(
        value.dtype in NUMBERS and value.device.type in DEVICES and value.device == values[0].device for value in values
    )


def convolved(
    x: Float32[Tensor, "n channels height width"],
    weight: Float32[Tensor, "outs channels taps_high taps_wide"],
    padding: Sequence[int],
) -> Float32[Tensor, "n outs out_height out_width"]:
    """`F.conv2d(x, weight, padding=padding)`, each image and each kernel divided by a power of two of its own."""
    from ntkscope.tangent.blocks._split_kernels import convolve, halve_images

    (n, channels, *sides), (outs, _, *taps) = x.shape, weight.shape
    around = [side + 2 * pad for side, pad in zip(sides, padding)]
    places = [side - tap + 1 for side, tap in zip(around, taps)]
    padded = -(-channels // 16) * 16
    step = next(step for step in (64, 32, 16) if padded % step == 0)
    kernels = torch.nn.functional.pad(weight.permute(0, 2, 3, 1), (0, padded - channels))
    halves = halved(kernels.reshape(1, outs, -1), LONGEST)
    high, low = (torch.empty(n, *around, padded, dtype=torch.float16, device=x.device) for _ in range(2))
    sizes = torch.linalg.vector_norm(x, torch.inf, (1, 2, 3))
    inside = torch.channels_last if x.is_contiguous(memory_format=torch.channels_last) else torch.contiguous_format
    out = torch.empty(n, outs, *places, dtype=x.dtype, device=x.device).contiguous(memory_format=inside)
    rows, columns = n * places[0] * places[1], min(TILE["COLUMNS"], triton_size(outs))
    high_tile = TILE["ROWS"] // (2 if columns == step == 64 else 1)
    how = {"TAPS": taps[0] * taps[1], "TAPS_WIDE": taps[1], "ROWS": high_tile, "COLUMNS": columns, "STEP": step}
    how |= {"num_warps": 8 if columns > 64 else 4, "num_stages": 3}
    with torch.cuda.device(x.device):
        wide = triton_size(around[1])
        some = min(64, triton_size(padded), max(16, TURNED // wide))
        shapes = channels, *sides, *padding, padded, *around
        halve_images[n, around[0], -(-padded // some)](
            x, sizes, high, low, *shapes, *x.stride(), WIDE=wide, CHANNELS=some
        )
        numbers = padded, around[1], around[0] * around[1] * padded, places[1], places[0] * places[1]
        given = high, low, sizes, halves.high, halves.low, halves.scales, out, rows, outs, halves.high.shape[2]
        convolve[-(-rows // high_tile), -(-outs // columns)](*given, *numbers, *out.stride(), **how)
    return out
