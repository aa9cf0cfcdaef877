"""Arrays from an `.npz` archive, without pickles, of exactly the types and shapes expected."""

from __future__ import annotations

import math
import zipfile
import zlib
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from ntkscope.core import DataCorrupt

HEADER = 4096  # bytes; an .npy header is far shorter

Expected = Mapping[str, tuple[str, tuple[int, ...]]]


def read_npz(path: Path, expected: Expected) -> dict[str, np.ndarray]:
    """The arrays named in `expected`, each of the type code and shape given there; `DataCorrupt` otherwise."""
    found = {}
    try:
        with np.load(path, allow_pickle=False) as archive:
            for name, (kind, shape) in expected.items():
                if name not in archive:
                    raise DataCorrupt(f"{path}: no array {name!r}; it holds {', '.join(archive) or 'nothing'}")
                size, most = archive.zip.getinfo(f"{name}.npy").file_size, math.prod(shape) * np.dtype(kind).itemsize
                if size > most + HEADER:  # before it is unpacked
                    raise DataCorrupt(f"{path}: array {name!r} would take {size:,} bytes, expected {most:,}")
                found[name] = archive[name]
    except (zipfile.BadZipFile, zlib.error, OSError, EOFError, ValueError, AttributeError, KeyError) as error:
        if isinstance(error, DataCorrupt):
            raise
        raise DataCorrupt(
            f"{path}: {path.stat().st_size:,} bytes are no whole archive of plain arrays ({error}); fetch it again"
        ) from error
    for name, (kind, shape) in expected.items():
        array = found[name]
        if array.dtype != np.dtype(kind) or array.shape != shape:
            raise DataCorrupt(
                f"{path}: array {name!r} is {array.dtype}{array.shape}, expected {np.dtype(kind)}{shape};"
                " fetch it again"
            )
    return found
