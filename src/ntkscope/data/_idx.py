"""The IDX format: two zero bytes, a type code, the number of axes, their lengths (big-endian), then the values."""

from __future__ import annotations

import math
import struct
from pathlib import Path

import numpy as np
from jaxtyping import UInt8

from ntkscope.core.errors import DataCorrupt
from ntkscope.data._files import check_sha256, read_partial

UNSIGNED_BYTE = 0x08


def read_idx(path: Path, axes: int, sha256: str | None = None) -> UInt8[np.ndarray, "..."]:
    """The array of unsigned bytes in an IDX file (plain or `.gz`), which must have `axes` axes and nothing after them.

    `sha256` is that of the uncompressed file; it is compared after the header and the length, whose errors say more.
    """
    content, problem = read_partial(path)
    reason = f" ({problem})" if problem else ""
    header = 4 + 4 * axes
    if len(content) < header:
        raise DataCorrupt(
            f"{path}: found {len(content):,} bytes{reason}, expected at least the {header} of an IDX header with"
            f" {axes} axes; fetch the file again"
        )
    zeros, kind, found_axes = struct.unpack(">HBB", content[:4])
    if zeros != 0 or kind != UNSIGNED_BYTE or found_axes != axes:
        raise DataCorrupt(
            f"{path}: the header starts with {content[:4].hex(' ')}, expected 00 00 08 {axes:02x} (IDX, unsigned bytes,"
            f" {axes} axes); this is another kind of file, perhaps images and labels were exchanged"
        )
    shape = struct.unpack(f">{axes}I", content[4:header])
    expected = header + math.prod(shape)
    if problem is not None or len(content) != expected:
        raise DataCorrupt(
            f"{path}: found {len(content):,} bytes{reason}, expected {expected:,} for the shape"
            f" {shape} in its header; the file is {'truncated' if len(content) < expected else 'too long'}:"
            " fetch it again"
        )
    if sha256 is not None:
        check_sha256(content, sha256, str(path))
    return np.frombuffer(content, np.uint8, offset=header).reshape(shape)
