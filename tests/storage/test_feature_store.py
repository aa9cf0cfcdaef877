"""Features on disk: the Gram contract, whole chunks or none, damage named, other features refused."""

from __future__ import annotations

import itertools
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import fsspec
import pytest
import torch
import zarr
from torch import Tensor
from torch.testing import assert_close

from contracts.gram import GramContract, features
from ntkscope.core import NumericalError, UsageError
from ntkscope.core.errors import DamagedTile, StoreError
from ntkscope.linalg import FactoredGram, Gram
from ntkscope.storage.feature_store import FeatureStore
from ntkscope.storage.stored_features import Rows, StoredFeatureGram, open_features


def kept(url: Any, values: Tensor, rows: int = 4, fill: bool = True, **labels: Any) -> FeatureStore:
    store = FeatureStore.prepare(
        url,
        n=len(values),
        width=values.shape[1],
        rows=rows,
        dtype=values.dtype,
        labels=labels,
        fingerprint={"model": "a"},
    )
    for k in store.missing() if fill else []:
        store.write(k, values[store.span(k)])
    return store


class TestStoredFeatures(GramContract):
    @pytest.fixture(autouse=True)
    def _urls(self, tmp_path: Path) -> Iterator[None]:
        self.urls = (f"memory:/{tmp_path}/{k}" for k in itertools.count())
        yield
        fsspec.filesystem("memory").rm(str(tmp_path), recursive=True)

    def make(self, left: Tensor, right: Tensor | None = None, **labels: Any) -> Gram:
        """An empty side cannot be stored: it stays in memory."""
        sides = [
            None if side is None else Rows(kept(next(self.urls), side)) if len(side) else Rows(side)
            for side in (left, right)
        ]
        assert sides[0] is not None
        kept(next(self.urls), torch.ones(1, 1))
        return StoredFeatureGram(sides[0], sides[1], dtype=left.dtype, **labels)


@pytest.mark.parametrize("kind", ["stored", "in memory"])
def test_symmetric_is_what_was_asked_for(tmp_path: Path, kind: str) -> None:
    values = features(6, 3)

    def made(*sides: Tensor, **labels: Any) -> Gram:
        if kind == "in memory":
            return FactoredGram(*sides, **labels)
        rows = [Rows(kept(tmp_path / f"{next(numbers)}", side)) for side in sides]
        return StoredFeatureGram(*rows, dtype=torch.float64, **labels)

    numbers = itertools.count()
    assert made(values).symmetric
    assert made(values, symmetric=True).symmetric
    assert not made(values, values.clone()).symmetric
    cross = made(values, symmetric=False)  # the same inputs, but not known to be
    assert not cross.symmetric
    assert_close(cross.dense(), values @ values.T)
    assert_close(cross.T[:2].dense(), (values @ values.T)[:2])
    with pytest.raises(UsageError, match="symmetric=True with two sets"):
        made(values, values.clone(), symmetric=True)


def test_features_of_two_widths_are_refused() -> None:
    with pytest.raises(UsageError, match="widths 3 and 4"):
        StoredFeatureGram(Rows(features(2, 3)), Rows(features(2, 4)), dtype=torch.float64)


def test_an_opened_store_is_the_gram_of_its_features(tmp_path: Path) -> None:
    values = features(11, 32)
    kept(tmp_path, values, name="proj-trntk", normalize=True, groups=16, meta={"seed": 3})
    gram: Any = open_features(tmp_path)
    whole: Any = FactoredGram(values, groups=16).normalized()
    assert gram.out_of_core
    assert gram.meta["seed"] == 3
    assert_close(gram.dense(), whole.dense())
    assert_close(gram.standard_error([1, 4], slice(3, 9)), whole.standard_error([1, 4], slice(3, 9)))
    assert_close(gram.in_memory().dense(), whole.dense())
    new = features(3, 32, seed=5)
    assert_close(open_features(tmp_path, new).dense(), FactoredGram(new, values).normalized().dense())


def test_any_zarr_reader_reads_them(tmp_path: Path) -> None:
    values = features(11, 6, dtype=torch.float32)
    kept(tmp_path, values)
    group = zarr.open_group(tmp_path, mode="r")
    assert_close(torch.from_numpy(group["features"][:]), values)
    assert_close(torch.from_numpy(group["squared_norms"][:]), values.double().square().sum(1))


def test_what_is_missing_is_asked_for_and_what_is_there_stays(tmp_path: Path) -> None:
    values = features(11, 6)
    store = kept(tmp_path, values, fill=False)
    assert store.missing() == [0, 1, 2]
    store.write(1, values[4:8])
    assert kept(tmp_path, values, rows=2, fill=False).missing() == [0, 2]  # with the chunks it was begun with
    with pytest.raises(StoreError, match="1 of 3"):
        open_features(tmp_path)


def test_damage_is_named(tmp_path: Path) -> None:
    kept(tmp_path, features(11, 6))
    victim = next((tmp_path / "features" / "c").rglob("1/0"))
    data = bytearray(victim.read_bytes())
    data[5] ^= 1
    victim.write_bytes(data)
    with pytest.raises(DamagedTile, match="crc32c"):
        open_features(tmp_path).dense()


def test_other_features_are_refused(tmp_path: Path) -> None:
    values = features(11, 6)
    kept(tmp_path, values)
    with pytest.raises(StoreError, match="model is 'b' now and 'a' in the store"):
        FeatureStore.prepare(
            tmp_path, n=11, width=6, rows=4, dtype=torch.float64, labels={}, fingerprint={"model": "b"}
        )
    with pytest.raises(StoreError, match="inputs"):
        kept(tmp_path, features(12, 6))
    with pytest.raises(NumericalError, match=r"\[2\]"):
        kept(tmp_path / "new", features(4, 2).index_fill(0, torch.tensor([2]), torch.nan))


@pytest.mark.parametrize("with_seal", [False, True])
def test_features_belong_to_their_place_and_their_store(tmp_path: Path, with_seal: bool) -> None:
    store = kept(tmp_path / "k", features(11, 6))
    kept(tmp_path / "other", features(11, 6, seed=1), name="other")
    for where, name in (("k", "1"), ("other", "0")):
        good = {kind: (tmp_path / f"k/features/{kind}/0/0").read_bytes() for kind in ("c", "seal")}
        for kind in ("c", "seal") if with_seal else ("c",):
            shutil.copy(tmp_path / f"{where}/features/{kind}/{name}/0", tmp_path / f"k/features/{kind}/0/0")
        assert store.damaged() == [0]
        with pytest.raises(DamagedTile, match="was not written for this place of this store"):
            open_features(tmp_path / "k").dense()
        for kind, content in good.items():
            (tmp_path / f"k/features/{kind}/0/0").write_bytes(content)
        assert store.damaged() == []


def test_features_computed_again_are_compared(tmp_path: Path) -> None:
    values = features(11, 6)
    store = kept(tmp_path, values)
    store.compare_chunk(1, values[4:8])
    with pytest.raises(StoreError, match=r"chunk 1, computed again.* answers differently from the one"):
        store.compare_chunk(1, values[4:8] * (1 + 1e-12))
