"""Arrays from an `.npz` archive, without pickles, of exactly the types and shapes expected."""

from __future__ import annotations

import lzma
import zipfile
import zlib
from collections.abc import Mapping
from pathlib import Path

import numpy as np
from numpy.lib import format as npy

from ntkscope.core.errors import DataCorrupt
from ntkscope.data._files import LIMIT

Expected = Mapping[str, tuple[str, tuple[int, ...]]]


def _read(archive: zipfile.ZipFile, path: Path, name: str, kind: np.dtype, shape: tuple[int, ...]) -> np.ndarray:
    """One array; its header is compared before any memory is taken for it."""
    if f"{name}.npy" not in archive.namelist():
        names = ", ".join(member.removesuffix(".npy") for member in archive.namelist())
        raise DataCorrupt(f"{path}: no array {name!r}; it holds {names or 'nothing'}")
    with archive.open(f"{name}.npy") as file:
        if npy.read_magic(file) != (1, 0):  # the others have headers of up to 4 GiB, which plain arrays do not need
            raise DataCorrupt(f"{path}: array {name!r} is not of version 1.0 of the format; write it with numpy.savez")
        found_shape, _, found_kind = npy.read_array_header_1_0(file)
    if found_kind != kind or found_shape != shape:
        raise DataCorrupt(
            f"{path}: array {name!r} is {found_kind}{found_shape}, expected {kind}{shape}; fetch the file again"
        )
    with archive.open(f"{name}.npy") as file:
        return npy.read_array(file, allow_pickle=False)


def read_npz(path: Path, expected: Expected) -> dict[str, np.ndarray]:
    """The arrays named in `expected`, each of the type code and shape given there; `DataCorrupt` otherwise."""
    if not path.is_file() or path.stat().st_size > LIMIT:
        raise DataCorrupt(f"{path} is not a regular file of at most {LIMIT:,} bytes; fetch it again")
    try:
        with zipfile.ZipFile(path) as archive:
            return {name: _read(archive, path, name, np.dtype(kind), shape) for name, (kind, shape) in expected.items()}
    except DataCorrupt:
        raise
    except (
        zipfile.BadZipFile,
        zlib.error,
        lzma.LZMAError,
        OSError,
        EOFError,
        ValueError,
        SyntaxError,
        NotImplementedError,
        RuntimeError,
    ) as error:  # RuntimeError: an encrypted member
        raise DataCorrupt(
            f"{path}: {path.stat().st_size:,} bytes are not a complete archive of plain arrays ({error!s:.200}); fetch it again"
        ) from error
