"""The IDX reader against files that are whole, cut short or changed; other kinds of file are in `tests/doors`."""

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


def test_flipped_byte(tmp_path: Path) -> None:
    path = tmp_path / "x"
    content = bytearray(idx_bytes(ARRAY))
    expected = hashlib.sha256(content).hexdigest()
    content[-1] ^= 1
    path.write_bytes(content)
    with pytest.raises(DataCorrupt, match=rf"expected {expected}"):
        read_idx(path, 3, expected)
