"""The IDX reader against files that are whole, cut short, too long, or of another kind."""

from __future__ import annotations

import gzip
import hashlib
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from contracts.real_data import idx_bytes
from ntkscope.core.errors import DataCorrupt
from ntkscope.data._idx import read_idx

ARRAY = np.arange(24, dtype=np.uint8).reshape(2, 3, 4)


@pytest.mark.parametrize("compressed", [False, True])
def test_round_trip(tmp_path: Path, compressed: bool) -> None:
    path = tmp_path / ("x.gz" if compressed else "x")
    content = idx_bytes(ARRAY)
    path.write_bytes(gzip.compress(content) if compressed else content)
    assert np.array_equal(read_idx(path, 3, hashlib.sha256(content).hexdigest()), ARRAY)


@settings(max_examples=30, deadline=None)
@given(shape=st.lists(st.integers(0, 4), min_size=1, max_size=4), cut=st.integers(1, 500))
def test_any_shape_and_any_cut(tmp_path_factory: pytest.TempPathFactory, shape: list[int], cut: int) -> None:
    path = tmp_path_factory.mktemp("idx") / "x"
    array = np.arange(int(np.prod(shape)), dtype=np.int64).astype(np.uint8).reshape(shape)
    content = idx_bytes(array)
    path.write_bytes(content)
    assert np.array_equal(read_idx(path, len(shape)), array)
    path.write_bytes(content[: max(0, len(content) - cut)])
    with pytest.raises(DataCorrupt, match="expected"):
        read_idx(path, len(shape))


def test_truncated_names_expected_and_found_bytes(tmp_path: Path) -> None:
    path = tmp_path / "x"
    path.write_bytes(idx_bytes(ARRAY)[:-5])
    with pytest.raises(DataCorrupt, match=r"found 35 bytes, expected 40 for the shape \(2, 3, 4\).*truncated"):
        read_idx(path, 3)


def test_truncated_gzip_names_expected_and_found_bytes(tmp_path: Path) -> None:
    path = tmp_path / "x.gz"
    array = np.random.default_rng(0).integers(0, 256, (2000, 28, 28), np.uint8)
    path.write_bytes(gzip.compress(idx_bytes(array), 1)[:-1000])
    with pytest.raises(DataCorrupt, match=r"found [\d,]+ bytes \(EOFError.*expected 1,568,016.*truncated: fetch it"):
        read_idx(path, 3)


def test_too_long(tmp_path: Path) -> None:
    path = tmp_path / "x"
    path.write_bytes(idx_bytes(ARRAY) + b"\0")
    with pytest.raises(DataCorrupt, match=r"found 41 bytes, expected 40.*too long"):
        read_idx(path, 3)


def test_shorter_than_a_header(tmp_path: Path) -> None:
    path = tmp_path / "x"
    path.write_bytes(b"\0\0\x08")
    with pytest.raises(DataCorrupt, match=r"found 3 bytes, expected at least the 16 of an IDX header with 3 axes"):
        read_idx(path, 3)


@pytest.mark.parametrize("start", [b"\0\0\x08\x01", b"\0\0\x0d\x03", b"\x1f\x8b\x08\x03", b"\x01\0\x08\x03"])
def test_other_kinds_of_file(tmp_path: Path, start: bytes) -> None:
    path = tmp_path / "x"
    path.write_bytes(start + idx_bytes(ARRAY)[4:])
    with pytest.raises(DataCorrupt, match=rf"starts with {start.hex(' ')}, expected 00 00 08 03"):
        read_idx(path, 3)


def test_header_that_claims_terabytes(tmp_path: Path) -> None:
    path = tmp_path / "x"
    path.write_bytes(b"\0\0\x08\x03" + b"\xff" * 12 + b"\0" * 10)
    with pytest.raises(DataCorrupt, match="truncated"):
        read_idx(path, 3)


def test_flipped_byte(tmp_path: Path) -> None:
    path = tmp_path / "x"
    content = bytearray(idx_bytes(ARRAY))
    expected = hashlib.sha256(content).hexdigest()
    content[-1] ^= 1
    path.write_bytes(content)
    with pytest.raises(DataCorrupt, match=rf"expected {expected}"):
        read_idx(path, 3, expected)
