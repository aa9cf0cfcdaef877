"""A kernel's store: what it holds, what any zarr reader sees of it, what it refuses."""

from __future__ import annotations

import json
import pickle
import shutil
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import pytest
import torch
import zarr
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.testing import assert_close

from contracts.gram import features
from ntkscope.core import NtkscopeError, NumericalError, UsageError
from ntkscope.core.errors import DamagedTile, StoreError
from ntkscope.linalg import Grid, TileValues
from ntkscope.storage import KernelStore, fill, open_kernel
from ntkscope.storage._files import LocalFolder, RemoteFolder, folder
from ntkscope.storage._zarr import attributes_checksum
from oracles.tiles import NetworkTiles, Products

LABELS = {"name": "linear", "rows": "sample*2 + output", "outputs": 2, "meta": {"seed": 3, "nested": [1.5, None]}}


def symmetric(n: int = 8, size: int = 3, dtype: torch.dtype = torch.float64) -> Products:
    return Products(features(n, 3, dtype=dtype), size=size, labels=LABELS)


def cross(n: int = 8, m: int = 6, size: int = 3, dtype: torch.dtype = torch.float64) -> Products:
    return Products(features(n, 3, dtype=dtype), features(m, 3, seed=1, dtype=dtype), size=size, labels=LABELS)


def filled(url: str | Path, source: Products | NetworkTiles) -> KernelStore:
    store = KernelStore.prepare(url, source)
    fill(store, source)
    return store


class TestContents:
    @pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.float64])
    @pytest.mark.parametrize("make", [symmetric, cross])
    def test_tiles_come_back_bit_by_bit(self, tmp_path: Path, make: Any, dtype: torch.dtype) -> None:
        source = make(dtype=dtype)
        store = KernelStore.prepare(tmp_path / "k", source)
        assert store.done() == set()
        assert store.missing() == list(source.grid)
        for count, (i, j) in enumerate(source.grid):
            assert not store.has(i, j)
            store.write(i, j, source.tile(i, j))
            assert store.has(i, j)
            assert len(store.done()) == count + 1
            assert torch.equal(store.read(i, j), source.tile(i, j).values)
        again = KernelStore.open(tmp_path / "k")
        assert again == store
        assert again.missing() == again.damaged() == []
        assert again.labels == LABELS
        assert again.fingerprint == {"features": "a"}
        assert again.dtype == dtype
        assert_close(again.row_diagonal(), source.left.double().square().sum(1), rtol=0, atol=0)
        assert again.column_diagonal() is not None

    def test_any_zarr_reader_sees_the_same_numbers(self, tmp_path: Path) -> None:
        """zarr's own codecs verify the checksums and cut the padding; what is not stored is NaN."""
        for source, name in ((cross(dtype=torch.float32), "cross"), (symmetric(), "symmetric")):
            store = filled(tmp_path / name, source)
            group = zarr.open_group(str(tmp_path / name), mode="r")
            values = group["values"][:]
            assert values.dtype == np.dtype(str(source.dtype).split(".")[1])
            for i, j in source.grid:
                rows, columns = source.grid.rows(i), source.grid.columns(j)
                np.testing.assert_array_equal(values[rows, columns], store.read(i, j).numpy())
            if source.grid.symmetric:
                assert np.isnan(values[3:6, 0:3]).all()
            np.testing.assert_array_equal(group["row_diagonal"][:], store.row_diagonal().numpy())
            assert group.attrs["kind"] == "ntkscope kernel"

    def test_what_others_write_is_noticed(self, tmp_path: Path) -> None:
        """zarr puts the right checksum, and no seal."""
        store = filled(tmp_path / "k", cross())
        values = zarr.open_array(str(tmp_path / "k" / "values"), mode="r+")
        values[3:6, 0:3] = np.arange(9.0).reshape(3, 3)
        with pytest.raises(DamagedTile, match="was not written for this place of this store"):
            store.read(1, 0)
        assert store.damaged() == [(1, 0)]

    def test_zeros_are_kept_like_any_other_numbers(self, tmp_path: Path) -> None:
        store = filled(tmp_path / "k", Products(torch.zeros(6, 2), size=2))
        assert store.missing() == []

    def test_symmetric_kernels_keep_their_upper_triangle_only(self, tmp_path: Path) -> None:
        filled(tmp_path / "k", symmetric(8))
        kept = sorted(p.relative_to(tmp_path / "k/values/c").as_posix() for p in (tmp_path / "k/values/c").glob("*/*"))
        assert kept == ["0/0", "0/1", "0/2", "1/1", "1/2", "2/2"]

    def test_there_is_nothing_but_json_and_chunks(self, tmp_path: Path) -> None:
        """No pickle, which would run code when opened by somebody else."""
        store = filled(tmp_path / "k", symmetric())
        for path in (tmp_path / "k").rglob("*"):
            if path.name == "zarr.json":
                json.loads(path.read_text())
            elif path.is_file():
                array, kind = path.relative_to(tmp_path / "k").parts[:2]
                assert array in ("values", "row_diagonal")
                if kind == "c":
                    assert path.stat().st_size in (3 * 3 * 8 + 4, 3 * 8 + 4)
                else:
                    assert kind == "seal"
                    assert path.stat().st_size <= 64
        assert store.missing() == []

    def test_diagonals_nobody_knows_are_none(self, tmp_path: Path) -> None:
        store = KernelStore.prepare(tmp_path / "k", cross())
        for i, j in store.grid:
            store.write(i, j, TileValues(cross().tile(i, j).values))
        assert store.row_diagonal() is None
        assert store.column_diagonal() is None
        assert store.damaged() == []
        with pytest.raises(UsageError, match="row_diagonal"):
            open_kernel(tmp_path / "k").normalized()

    def test_a_symmetric_kernel_always_has_its_diagonal(self, tmp_path: Path) -> None:
        store = KernelStore.prepare(tmp_path / "k", symmetric())
        for i, j in store.grid:
            store.write(i, j, TileValues(symmetric().tile(i, j).values))
        assert_close(store.row_diagonal(), features(8, 3).square().sum(1))

    def test_drop_and_missing(self, tmp_path: Path) -> None:
        store = filled(tmp_path / "k", symmetric())
        store.drop(0, 1)
        assert store.missing() == [(0, 1)]
        with pytest.raises(StoreError, match=r"tile \(0, 1\) .* is missing \(5 of 6 are there\)"):
            store.read(0, 1)
        assert fill(store, symmetric()) == 1

    def test_pickles(self, tmp_path: Path) -> None:
        store = filled(tmp_path / "k", symmetric())
        again = pickle.loads(pickle.dumps(store))  # noqa: S301 - our own bytes
        assert torch.equal(again.read(0, 1), store.read(0, 1))


class TestFilling:
    def test_computes_what_is_missing_and_nothing_else(self, tmp_path: Path) -> None:
        asked: list[tuple[int, int]] = []

        class Counting(Products):
            def tile(self, i: int, j: int) -> TileValues:
                asked.append((i, j))
                return super().tile(i, j)

        source = Counting(features(9, 3), size=3)
        store = KernelStore.prepare(tmp_path / "k", source)
        store.write(0, 1, source.tile(0, 1))
        asked.clear()
        assert fill(store, source) == 5
        assert asked == [(0, 1), *(tile for tile in source.grid if tile != (0, 1))]  # the stored one, to compare
        asked.clear()
        assert fill(store, source) == 0
        assert len(asked) == 1


class TestPlaces:
    """A tile belongs to its place and its store: copied elsewhere, it is noticed and computed again."""

    @pytest.mark.parametrize("with_seal", [False, True])
    @pytest.mark.parametrize("make", [symmetric, cross])
    def test_a_tile_copied_over_another(self, tmp_path: Path, make: Any, with_seal: bool) -> None:
        source = make(12, 4) if make is symmetric else make(12, 12, 4)
        store = filled(tmp_path / "k", source)
        pairs = [((0, 1), (1, 2)), ((0, 0), (2, 2))] if make is symmetric else [((0, 1), (1, 0)), ((2, 2), (0, 2))]
        for (a, b), (i, j) in pairs:
            for kind in ("c", "seal") if with_seal else ("c",):
                shutil.copy(tmp_path / f"k/values/{kind}/{a}/{b}", tmp_path / f"k/values/{kind}/{i}/{j}")
            with pytest.raises(DamagedTile, match="was not written for this place of this store"):
                store.read(i, j)
            assert store.damaged() == [(i, j)]
            with pytest.warns(RuntimeWarning, match="damaged"):
                assert fill(store, source) == 1
            assert torch.equal(store.read(i, j), source.tile(i, j).values)

    @pytest.mark.parametrize("with_seal", [False, True])
    def test_a_tile_of_another_store(self, tmp_path: Path, with_seal: bool) -> None:
        other = replace(symmetric(), left=2 * symmetric().left, fingerprint={"features": "b"})
        store = filled(tmp_path / "k", symmetric())
        filled(tmp_path / "other", other)
        for kind in ("c", "seal") if with_seal else ("c",):
            shutil.copy(tmp_path / f"other/values/{kind}/0/1", tmp_path / f"k/values/{kind}/0/1")
            shutil.copy(tmp_path / f"other/row_diagonal/{kind}/2", tmp_path / f"k/row_diagonal/{kind}/2")
        assert store.damaged() == [(0, 1), (2, 2)]
        with pytest.raises(DamagedTile):
            open_kernel(tmp_path / "k").dense()
        with pytest.warns(RuntimeWarning, match="damaged"):
            assert fill(store, symmetric()) == 2

    def test_a_lost_seal(self, tmp_path: Path) -> None:
        store = filled(tmp_path / "k", symmetric())
        (tmp_path / "k/values/seal/0/1").unlink()
        assert store.damaged() == [(0, 1)]

    def test_another_source_under_the_same_name_is_refused(self, tmp_path: Path) -> None:
        """It says it computes the same numbers; the tile computed again is another one, by its last digits."""
        store = filled(tmp_path / "k", symmetric())
        store.drop(1, 2)
        moved = symmetric().left * (1 + 1e-14)
        with pytest.raises(StoreError, match=r"tile \(\d, \d\), computed again.* answers differently from the one"):
            fill(store, replace(symmetric(), left=moved))
        assert store.missing() == [(1, 2)]

    def test_another_machine_may_round_otherwise(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        store = filled(tmp_path / "k", symmetric())
        moved = replace(symmetric(), left=symmetric().left * (1 + 1e-12))
        with pytest.raises(StoreError, match="answers differently"):
            fill(store, moved)
        monkeypatch.setattr("ntkscope.storage._base.machine", lambda device: "cpu-of-another-kind")
        assert fill(store, moved) == 0
        with pytest.raises(StoreError, match="answers differently"):
            fill(store, replace(symmetric(), left=symmetric().left * (1 + 1e-6)))


class TestRefusals:
    def test_a_different_fingerprint_is_named(self, tmp_path: Path) -> None:
        source = replace(symmetric(), fingerprint={"model": "aa", "inputs": "bb", "code": "1.0"})
        filled(tmp_path / "k", source)
        other = replace(source, fingerprint={"model": "aa", "inputs": "cc", "options": "x"})
        with pytest.raises(StoreError) as caught:
            KernelStore.prepare(tmp_path / "k", other)
        message = str(caught.value)
        assert "inputs is 'cc' now and 'bb' in the store" in message
        assert "code is absent now and '1.0' in the store" in message
        assert "options is 'x' now and absent in the store" in message
        assert "model" not in message
        assert "choose another folder" in message
        assert KernelStore.prepare(tmp_path / "k", source).missing() == []

    @pytest.mark.parametrize(
        ("other", "named"),
        [
            (symmetric(10), "rows is 10 now and 8"),
            (symmetric(size=4), "tile size is 4 now and 3"),
            (symmetric(dtype=torch.float32), "dtype is 'torch.float32' now and 'torch.float64'"),
            (cross(8, 8), "symmetric is False now and True"),
        ],
    )
    def test_a_different_grid_is_named(self, tmp_path: Path, other: Products, named: str) -> None:
        filled(tmp_path / "k", symmetric())
        with pytest.raises(StoreError, match=named):
            KernelStore.prepare(tmp_path / "k", other)

    def test_what_is_no_store(self, tmp_path: Path) -> None:
        (tmp_path / "other").mkdir()
        (tmp_path / "other" / "thesis.tex").write_text("years of work")
        with pytest.raises(StoreError, match=r"nor empty \(thesis.tex\)"):
            KernelStore.prepare(tmp_path / "other", symmetric())
        with pytest.raises(StoreError, match=r"no kernel store at .*other"):
            open_kernel(tmp_path / "other")
        with pytest.raises(StoreError, match="no kernel store at"):
            KernelStore.open(tmp_path / "nowhere")
        assert KernelStore.find(tmp_path / "nowhere") is None
        filled(tmp_path / "headless", symmetric())
        (tmp_path / "headless/zarr.json").unlink()  # whose tiles are these?
        with pytest.raises(StoreError, match=r"nor empty \(row_diagonal, values\)"):
            KernelStore.prepare(tmp_path / "headless", symmetric())
        (tmp_path / "file").write_text("")
        with pytest.raises(StoreError, match="cannot list"):
            KernelStore.prepare(tmp_path / "file", symmetric())
        zarr.create_group(str(tmp_path / "zarr"), attributes={"kind": "somebody else's"})
        for act in (open_kernel, KernelStore.find, lambda url: KernelStore.prepare(url, symmetric())):
            with pytest.raises(StoreError, match="is not an ntkscope kernel"):
                act(tmp_path / "zarr")

    def test_incomplete_stores_are_refused_unless_asked_for(self, tmp_path: Path) -> None:
        store = filled(tmp_path / "k", symmetric())
        store.drop(1, 2)
        with pytest.raises(StoreError, match="incomplete: 5 of 6 tiles"):
            open_kernel(tmp_path / "k")
        partial = open_kernel(tmp_path / "k", partial=True)
        lost = torch.zeros(8, 8, dtype=torch.bool)
        lost[3:6, 6:] = lost[6:, 3:6] = True
        assert torch.equal(partial.dense().isnan(), lost)
        empty = KernelStore.prepare(tmp_path / "empty", symmetric())
        assert bool(open_kernel(tmp_path / "empty", partial=True)[:3, :3].dense().isnan().all())
        assert empty.done() == set()

    def test_wrong_tiles_are_refused(self, tmp_path: Path) -> None:
        store = KernelStore.prepare(tmp_path / "k", symmetric())
        good = symmetric().tile(0, 0).values
        for tile in (good[:2], good.float()):
            with pytest.raises(UsageError, match=r"got tile \(0, 0\) as"):
                store.write(0, 0, TileValues(tile))
        for i, j in ((1, 0), (0, 3), (-1, 0), (3, 3)):
            with pytest.raises(UsageError, match="upper triangle of 3 × 3"):
                store.write(i, j, TileValues(good))
            with pytest.raises(UsageError, match="upper triangle"):
                store.read(i, j)
        skew = good.clone()
        skew[0, 1] += 1
        with pytest.raises(UsageError, match="not symmetric"):
            store.write(0, 0, TileValues(skew))
        bad = symmetric().tile(1, 2).values.clone()
        bad[2, 1] = torch.nan
        with pytest.raises(NumericalError, match="row 5 and column 7"):
            store.write(1, 2, TileValues(bad))
        assert store.done() == set()

    def test_labels_that_json_cannot_say(self, tmp_path: Path) -> None:
        for meta in ({"gap": float("nan")}, {"values": torch.ones(2)}):
            with pytest.raises(UsageError, match="must be JSON"):
                KernelStore.prepare(tmp_path / "k", replace(symmetric(), labels={"meta": meta}))
        assert not (tmp_path / "k").exists()

    def test_a_dtype_files_cannot_hold(self, tmp_path: Path) -> None:
        with pytest.raises(UsageError, match="bfloat16"):
            KernelStore.prepare(tmp_path / "k", symmetric(dtype=torch.bfloat16))

    def test_a_missing_package_says_how_to_install_it(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setitem(sys.modules, "zarr", None)
        with pytest.raises(StoreError, match=r'pip install "ntkscope\[store\]"'):
            KernelStore.prepare(tmp_path / "k", symmetric())


def mangled(change: dict[str, Any]) -> dict[str, Any]:
    """The attributes of a good store with some of them changed; keys with dots reach inside."""
    attributes: dict[str, Any] = {
        "kind": "ntkscope kernel",
        "schema": 2,
        "grid": {"n": 8, "m": 8, "size": 3, "symmetric": True},
        "dtype": "float64",
        "labels": json.loads(json.dumps(LABELS)),
        "fingerprint": {"features": "a"},
    }
    for path, value in change.items():
        *parents, last = path.split(".")
        place = attributes
        for parent in parents:
            place = place[parent]
        place[last] = value
    return {**attributes, "checksum": attributes_checksum(attributes)}


class TestUntrustedAttributes:
    """A store may come from anybody: whatever its JSON says, it is opened or refused in words; `tests/doors` has a table."""

    @pytest.mark.parametrize(
        ("schema", "remedy"),
        [(1, " by an earlier ntkscope.* compute it again in a new folder"), (3, "; .*reads up to 2: update ntkscope")],
    )
    def test_another_schema_says_what_to_do(self, tmp_path: Path, schema: int, remedy: str) -> None:
        zarr.create_group(str(tmp_path / "k"), attributes=mangled({"schema": schema}))
        for act in (open_kernel, KernelStore.find, lambda url: KernelStore.prepare(url, symmetric())):
            with pytest.raises(StoreError, match=f"schema {schema}{remedy}"):
                act(tmp_path / "k")
        shutil.rmtree(tmp_path / "k")
        zarr.create_group(str(tmp_path / "k"), attributes=mangled({}))
        assert KernelStore.open(tmp_path / "k").grid == Grid(8, 8, 3, symmetric=True)

    def test_what_was_edited_is_refused(self, tmp_path: Path) -> None:
        """As a text editor does it, which leaves the checksum."""
        filled(tmp_path / "k", symmetric())
        text = (tmp_path / "k/zarr.json").read_text()
        for path, value in (
            ("labels.name", "other"),
            ("labels.outputs", 1),
            ("labels.rows", "samples"),
            ("labels.meta", {"seed": 4, "nested": [1.5, None]}),
            ("labels.normalize", True),
            ("fingerprint", {"features": "b"}),
            ("dtype", "float32"),
            ("answers", {}),
            ("checksum", "0"),
        ):
            document = json.loads(text)
            *parents, last = path.split(".")
            place = document["attributes"]
            for parent in parents:
                place = place[parent]
            place[last] = value
            (tmp_path / "k/zarr.json").write_text(json.dumps(document))
            for act in (open_kernel, lambda url: KernelStore.prepare(url, symmetric())):
                with pytest.raises(StoreError, match="is not what was written"):
                    act(tmp_path / "k")
        (tmp_path / "k/zarr.json").write_text(text)
        assert open_kernel(tmp_path / "k").name == "linear"

    @settings(max_examples=100)
    @given(
        path=st.sampled_from(
            ["grid.n", "grid.size", "grid", "dtype", "labels.outputs", "labels", "fingerprint", "schema"]
        ),
        value=st.recursive(
            st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5),
            lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
            max_leaves=5,
        ),
    )
    def test_any_value_is_opened_or_refused_in_words(self, path: str, value: Any) -> None:
        document = {"zarr_format": 3, "node_type": "group", "attributes": mangled({path: value})}
        fsspec.filesystem("memory").pipe_file("/untrusted/zarr.json", json.dumps(document).encode())
        try:
            store = KernelStore.open("memory://untrusted")
        except NtkscopeError:
            return
        assert store.missing()

    def test_files_that_do_not_belong_are_left_alone(self, tmp_path: Path) -> None:
        filled(tmp_path / "k", symmetric())
        for name in ("values/c/0/9", "values/c/-1/0", "values/c/00/1", "values/c/x/1", "values/c/2/0", "values/c/7"):
            path = tmp_path / "k" / name
            path.parent.mkdir(exist_ok=True)
            path.write_bytes(b"?")
        store = KernelStore.open(tmp_path / "k")
        assert store.missing() == store.damaged() == []

    def test_a_file_of_absurd_size_is_not_read_whole(self, tmp_path: Path) -> None:
        store = filled(tmp_path / "k", symmetric())
        with open(tmp_path / "k/values/c/0/1", "r+b") as handle:
            handle.truncate(1 << 40)  # a sparse terabyte
        with pytest.raises(StoreError, match="too many bytes"):
            store.read(0, 1)
        assert store.damaged() == [(0, 1)]


class TestAddresses:
    def test_urls(self, tmp_path: Path) -> None:
        assert folder(tmp_path) == folder(str(tmp_path)) == folder(f"file://{tmp_path}") == LocalFolder(tmp_path)
        assert isinstance(folder("memory://a"), RemoteFolder)
        with pytest.raises(StoreError, match="cannot be opened"):
            folder("nonsense://a")
        with pytest.raises(UsageError, match="empty"):
            folder("")

    @pytest.mark.parametrize("url", ["memory://kernels/a", "memory://b", "file"])
    def test_stores_behind_urls(self, tmp_path: Path, url: str) -> None:
        url = f"file://{tmp_path}/k" if url == "file" else url
        store = filled(url, symmetric())
        assert KernelStore.prepare(url, symmetric()) == store
        store.drop(1, 1)
        assert store.missing() == [(1, 1)]
        assert fill(store, symmetric()) == 1
        gram = open_kernel(url)
        assert_close(gram.dense(), features(8, 3) @ features(8, 3).T)
        with pytest.raises(StoreError, match="holds another kernel"):
            KernelStore.prepare(url, replace(symmetric(), fingerprint={}))
        if url.startswith("memory"):
            assert folder(store.url) == store.folder
            files = fsspec.filesystem("memory")
            path = f"{url.removeprefix('memory:/')}/values/c/0/1"
            files.pipe_file(path, files.cat_file(path)[:-1])
            assert store.damaged() == [(0, 1)]

    def test_file_systems_without_whole_objects_move_files_into_place(self, tmp_path: Path) -> None:
        """A folder behind an fsspec file system that is not known to show only whole files."""
        files = fsspec.filesystem("dir", path=str(tmp_path), fs=fsspec.filesystem("file"))
        place = RemoteFolder(files, "k")
        assert place.put("a/b", b"12", np.frombuffer(b"3", np.uint8))
        assert bytes(place.get("a/b", 10) or b"") == b"123"
        assert place.sizes() == {"a/b": 3}
        assert place.names() == ["a"]
        assert RemoteFolder(files, "nowhere").names() == []
        assert not place.put("a/b", b"4", new=True)
        assert place.size("a/b") == 3
        assert place.size("a/c") is None
        (tmp_path / "k/a/.c.0123456789ab.part").write_bytes(b"")
        (tmp_path / "k/a/.c.123.part").write_bytes(b"someone else's")
        assert place.sizes() == {"a/b": 3}
        place.clear_leftovers()
        assert sorted(p.name for p in (tmp_path / "k/a").iterdir()) == [".c.123.part", "b"]
        place.remove("a/b")
        assert place.get("a/b", 10) is None
