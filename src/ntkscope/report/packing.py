"""Packing: numbers as text of four characters each, so that a script can read any of them without reading the rest."""

from __future__ import annotations

import base64

import numpy as np
from numpy.typing import NDArray

LARGEST = 3e38  # of a float32, almost


def pack_floats(values: NDArray[np.floating]) -> str:
    """Floats to five significant digits: the upper three bytes of each float32, in base64; NaN stays NaN.

    >>> pack_floats(np.array([1.0, -2.5]))
    'P4AAwCAA'
    >>> len(pack_floats(np.zeros((3, 5))))
    60
    """
    bounded = np.clip(np.asarray(values, dtype=np.float64), -LARGEST, LARGEST)
    bits = np.ascontiguousarray(bounded, dtype=np.float32).reshape(-1).view(np.uint32).astype(np.int64)
    return _packed(np.where(np.isnan(bounded).reshape(-1), bits, bits + 0x80) >> 8)


def pack_whole(values: NDArray[np.integer]) -> str:
    """Whole numbers from -1 to 16,777,214, in base64; -1 stands for none.

    >>> pack_whole(np.array([0, 65, -1]))
    'AAAAAABB////'
    """
    return _packed(np.ascontiguousarray(values, dtype=np.int64).reshape(-1) & 0xFFFFFF)


def _packed(numbers: NDArray[np.integer]) -> str:
    parts = np.stack([numbers >> 16, numbers >> 8, numbers], axis=-1) & 0xFF
    return base64.b64encode(parts.astype(np.uint8).tobytes()).decode()
