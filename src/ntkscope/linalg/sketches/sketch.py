"""Random projections from counters: entry (row, column) depends on the seed, a name and its place, on nothing else.

So a projection is the same on every device, for every tile size and number of workers, and is never stored whole.
"""

from __future__ import annotations

import torch
from jaxtyping import Float, Int
from torch import Tensor

from ntkscope.core import UsageError, derive_seed

KINDS = ("rademacher", "gaussian")  # dense: every entry is drawn
STRUCTURED = ("sparse", "kronecker")


def _signed(value: int) -> int:
    return value - (1 << 64) if value >= 1 << 63 else value


GOLDEN, FIRST, SECOND = map(_signed, (0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB))


def _mix(z: Tensor) -> Tensor:
    """The SplitMix64 finaliser, bit for bit the same wherever int64 wraps around (Steele, Lea & Flood 2014)."""
    z = (z ^ ((z >> 30) & ((1 << 34) - 1))) * FIRST
    z = (z ^ ((z >> 27) & ((1 << 37) - 1))) * SECOND
    return z ^ ((z >> 31) & ((1 << 33) - 1))


def random_words(key: int, rows: Tensor, columns: Tensor) -> Tensor:
    """A random 64-bit word for every (row, column)."""
    left = _mix(rows * GOLDEN + _signed(key))
    right = _mix(columns * GOLDEN + _signed(key ^ 0x5DEECE66D))
    return _mix(left[:, None] + right[None, :])


def _signs_by_table(octets: Tensor, unit: float | int, dtype: torch.dtype) -> Tensor:
    """A bit to ±unit, eight at a time from a table of all octets: few operations, which suits a CPU."""
    bits = (torch.arange(256, device=octets.device)[:, None] >> torch.arange(8, device=octets.device)) & 1
    signs = ((bits * 2 - 1).to(dtype) * unit).contiguous()  # ±1 times a number: the same everywhere
    return torch.nn.functional.embedding(octets.to(torch.int32), signs)


def _signs_by_shifts(octets: Tensor, unit: float | int, dtype: torch.dtype) -> Tensor:
    """The same by shifts in bytes: passes over contiguous memory, which suits a GPU; `2u - u` is u to the last bit."""
    shifts = torch.arange(8, dtype=torch.uint8, device=octets.device)
    bits = (octets.unsqueeze(-1) >> shifts).bitwise_and_(1)
    unit = torch.tensor(1.0, dtype=dtype).mul(unit).item()
    return bits.to(dtype).mul_(2 * unit).sub_(unit)


def signs(
    key: int,
    rows: Int[Tensor, " rows"],
    start: int,
    stop: int,
    unit: float | int = 1,
    dtype: torch.dtype = torch.float32,
) -> Float[Tensor, "rows columns"]:
    """±unit for each of `rows` and the columns [start, stop), `start` a multiple of 64; independent of what else is requested.

    >>> whole = signs(7, torch.arange(4), 0, 200)
    >>> torch.equal(whole[[3, 1], 64:150], signs(7, torch.tensor([3, 1]), 64, 150))
    True
    """
    assert start % 64 == 0
    words = random_words(key, rows, torch.arange(start // 64, -(-stop // 64), device=rows.device))
    octets = words.view(torch.uint8)  # (rows, 8 · words), little-endian
    expand = _signs_by_shifts if octets.is_cuda else _signs_by_table
    return expand(octets, unit, dtype).reshape(len(rows), -1)[:, : stop - start]


def projection_rows(
    seed: int,
    name: str,
    start: int,
    stop: int,
    dim: int,
    kind: str = "rademacher",
    dtype: torch.dtype = torch.float32,
    device: torch.device | str = "cpu",
) -> Float[Tensor, "rows dim"]:
    """Rows [start, stop) of the projection of the vector called `name`, entries of variance 1/dim.

    `E[Pᵀ… ]`: for any g, h the expected inner product of `g P` and `h P` is that of g and h.

    >>> whole = projection_rows(0, "w", 0, 6, 128)
    >>> torch.equal(whole[2:5], projection_rows(0, "w", 2, 5, 128))
    True
    """
    if kind not in KINDS:
        raise UsageError(f"got projection kind {kind!r}; expected one of {', '.join(KINDS)}")
    if dim < 1:
        raise UsageError(f"projection to {dim} dimensions; expected at least 1")
    key = derive_seed(seed, "projection", name)
    rows = torch.arange(start, stop, device=device)
    if kind == "rademacher":
        return signs(key, rows, 0, dim, dim**-0.5, dtype)
    words = random_words(key, rows, torch.arange(dim, device=device))
    uniform = (((words >> 11) & ((1 << 53) - 1)).double() + 0.5) * 2.0**-53
    return (torch.erfinv(2 * uniform - 1) * (2.0 / dim) ** 0.5).to(dtype)
