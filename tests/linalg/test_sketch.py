"""Bits to signs: the two ways of expanding a projection's random words."""

from __future__ import annotations

import pytest
import torch

from ntkscope.linalg.sketches.sketch import _signs_by_shifts, _signs_by_table


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("dim", [64, 100, 10240])
def test_bits_become_the_same_signs_by_table_and_by_shifts(dtype: torch.dtype, dim: int) -> None:
    octets = torch.arange(256, dtype=torch.uint8).reshape(16, 16)
    table = _signs_by_table(octets, dim**-0.5, dtype)
    shifts = _signs_by_shifts(octets, dim**-0.5, dtype)
    assert torch.equal(table, shifts)  # to the last bit: a seed means one projection on every device
