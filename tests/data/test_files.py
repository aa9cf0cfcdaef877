"""Places searched, damaged files, checksums, archives without pickles."""

from __future__ import annotations

import gzip
import hashlib
import io
import lzma
import zipfile
from pathlib import Path

import numpy as np
import pytest

from ntkscope.core import UsageError
from ntkscope.core.errors import DataCorrupt, DataNotFound
from ntkscope.data import _files
from ntkscope.data._npz import read_npz
from ntkscope.data.olivetti import olivetti


@pytest.fixture
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home with nothing in it."""
    monkeypatch.delenv("NTKSCOPE_DATA", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path


def test_order_of_places(elsewhere: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NTKSCOPE_DATA", str(elsewhere / "environment"))
    found = _files.places(str(elsewhere), ["a", "b"], ["/system/a"])
    assert found == (
        elsewhere / "a",
        elsewhere / "b",
        elsewhere,
        elsewhere / "environment" / "a",
        elsewhere / "environment" / "b",
        elsewhere / "cache" / "ntkscope" / "a",
        elsewhere / "cache" / "ntkscope" / "b",
        Path("/system/a"),
    )


def test_cache_is_below_home_by_default(elsewhere: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(elsewhere))
    assert _files.places(None, ["a"]) == (elsewhere / ".cache" / "ntkscope" / "a",)


def test_root_that_is_no_folder_is_not_passed_over(elsewhere: Path) -> None:
    with pytest.raises(DataNotFound, match=r"root='.*nowhere' is not a folder"):
        _files.places(str(elsewhere / "nowhere"), ["a"])


def test_nothing_found_names_every_place_what_it_lacks_and_the_remedy(elsewhere: Path) -> None:
    (elsewhere / "here").mkdir()
    (elsewhere / "here" / "one").touch()
    searched = [elsewhere / "here", elsewhere / "there"]
    with pytest.raises(DataNotFound) as caught:
        _files.find_folder("The set", searched, [("one",), ("two.gz", "two")], "bake it.")
    message = str(caught.value)
    assert f"{elsewhere / 'here'} (lacks two.gz or two)" in message
    assert f"{elsewhere / 'there'} (no such folder)" in message
    assert "How to get it: bake it." in message
    assert "NTKSCOPE_DATA" in message
    assert isinstance(caught.value, FileNotFoundError)


def test_first_complete_place_wins(elsewhere: Path) -> None:
    for name in ("partial", "whole"):
        (elsewhere / name).mkdir()
        (elsewhere / name / "one").touch()
    (elsewhere / "whole" / "two").touch()
    places = [elsewhere / "partial", elsewhere / "whole"]
    assert _files.find_folder("set", places, [("one",), ("two.gz", "two")], "") == elsewhere / "whole"


@pytest.mark.parametrize("suffix", ["", ".gz", ".xz"])
def test_reads_plain_and_compressed(tmp_path: Path, suffix: str) -> None:
    content = b"grass is green\n" * 1000
    path = tmp_path / f"file{suffix}"
    path.write_bytes({"": bytes, ".gz": gzip.compress, ".xz": lzma.compress}[suffix](content))
    assert _files.read_file(path) == content
    assert _files.read_text(path, hashlib.sha256(content).hexdigest()) == content.decode()


@pytest.mark.parametrize(("suffix", "compress"), [(".gz", gzip.compress), (".xz", lzma.compress)])
@pytest.mark.parametrize("damage", ["truncated", "not compressed at all", "flipped"])
def test_damaged_compression(tmp_path: Path, suffix: str, compress: object, damage: str) -> None:
    assert callable(compress)
    whole = compress(np.random.default_rng(0).bytes(5000))
    flipped = bytearray(whole)
    flipped[len(flipped) // 2] ^= 0xFF
    path = tmp_path / f"file{suffix}"
    path.write_bytes({"truncated": whole[:-50], "not compressed at all": b"plain", "flipped": bytes(flipped)}[damage])
    with pytest.raises(DataCorrupt, match=r"reading stopped after [\d,]+ bytes .*fetch the file again"):
        _files.read_file(path)


def test_decompression_bomb_stops_at_the_limit(tmp_path: Path) -> None:
    path = tmp_path / "bomb.gz"
    path.write_bytes(gzip.compress(bytes(8 << 20)))
    with pytest.raises(DataCorrupt, match=r"more than the 1,000 bytes"):
        _files.read_file(path, limit=1000)


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


def test_an_unknown_option_lists_what_is_allowed() -> None:
    with pytest.raises(UsageError, match=r"got split='persons'; expected one of 'person', 'random'"):
        olivetti(split="persons")


EXPECTED = {"a": ("u1", (3,)), "b": ("u1", (2, 2))}


def test_npz(tmp_path: Path) -> None:
    np.savez(tmp_path / "x.npz", a=np.arange(3, dtype=np.uint8), b=np.ones((2, 2), np.uint8), c=np.ones(1))
    found = read_npz(tmp_path / "x.npz", EXPECTED)
    assert list(found) == ["a", "b"]
    assert found["a"].tolist() == [0, 1, 2]


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"a": np.zeros(3, np.uint8)}, r"no array 'b'; it holds a"),
        ({"a": np.zeros(3, np.uint8), "b": np.zeros(4, np.uint8)}, r"array 'b' is uint8\(4,\), expected uint8\(2, 2\)"),
        ({"a": np.zeros(3), "b": np.zeros((2, 2), np.uint8)}, r"array 'a' is float64\(3,\), expected uint8\(3,\)"),
        (
            {"a": np.zeros(9999, np.uint8), "b": np.zeros((2, 2), np.uint8)},
            r"array 'a' is uint8\(9999,\), expected uint8\(3,\)",
        ),
        (
            {"a": np.array([{}, 1, 2], dtype=object), "b": np.zeros((2, 2), np.uint8)},
            r"array 'a' is object\(3,\), expected uint8\(3,\)",
        ),
    ],
)
def test_npz_of_other_contents(tmp_path: Path, arrays: dict[str, np.ndarray], message: str) -> None:
    np.savez(tmp_path / "x.npz", **arrays)
    with pytest.raises(DataCorrupt, match=message) as caught:
        read_npz(tmp_path / "x.npz", EXPECTED)
    assert str(tmp_path / "x.npz") in str(caught.value)


def test_npz_truncated_or_something_else(tmp_path: Path) -> None:
    path = tmp_path / "x.npz"
    buffer = io.BytesIO()
    np.savez(buffer, a=np.arange(3, dtype=np.uint8), b=np.ones((2, 2), np.uint8))
    for content in (buffer.getvalue()[:200], b"plain text", b""):
        path.write_bytes(content)
        with pytest.raises(DataCorrupt, match=rf"{len(content)} bytes are not a complete archive of plain arrays"):
            read_npz(path, EXPECTED)
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("a.npy", b"not an array")
        archive.writestr("b.npy", b"not an array")
    with pytest.raises(DataCorrupt, match=r"x\.npz.*not a complete archive"):
        read_npz(path, EXPECTED)


def test_npz_whose_header_claims_terabytes(tmp_path: Path) -> None:
    path = tmp_path / "x.npz"
    header = b"{'descr': '|u1', 'fortran_order': False, 'shape': (9000000000000,), }"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("a.npy", b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header)
    with pytest.raises(DataCorrupt, match=r"array 'a' is uint8\(9000000000000,\), expected uint8\(3,\)"):
        read_npz(path, {"a": ("u1", (3,))})
