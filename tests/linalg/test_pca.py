"""Principal components: against a plain SVD in float64, from disk, randomised within its stated error, and refusals."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.decomposition import PCA as Peer
from sklearn.preprocessing import StandardScaler
from torch import Tensor

from ntkscope.core import NumericalError, UsageError
from ntkscope.core.errors import MemoryBudgetError
from ntkscope.linalg import pca
from ntkscope.storage import FeatureStore


def features(n: int, p: int, seed: int = 0, dtype: torch.dtype = torch.float64) -> Tensor:
    """Correlated columns of very different scales and means, one of them constant."""
    g = torch.Generator().manual_seed(seed)
    X = torch.randn(n, p, generator=g, dtype=torch.float64) @ torch.randn(p, p, generator=g, dtype=torch.float64)
    X = X * torch.logspace(-1, 1, p, dtype=torch.float64) + 100 * torch.randn(p, generator=g, dtype=torch.float64)
    if p > 2:
        X[:, p // 2] = 0.1
    return X.to(dtype)


def naive(X: Tensor, standardise: bool) -> tuple[np.ndarray, np.ndarray]:
    """Variances and components by an SVD of the standardised matrix."""
    values = X.double().numpy()
    centred = values - values.mean(0)
    if standardise:
        deviation = centred.std(0)
        centred = centred / np.where(deviation > 1e-12, deviation, 1)
        centred[:, deviation <= 1e-12] = 0
    _, s, vt = np.linalg.svd(centred, full_matrices=False)
    return s**2 / len(X), vt.T


@pytest.mark.parametrize("standardise", [True, False])
@pytest.mark.parametrize(("n", "p"), [(40, 7), (7, 40), (12, 12), (300, 3), (3, 300), (2, 1), (50, 2)])
def test_exact_components_are_those_of_a_plain_svd(n: int, p: int, standardise: bool) -> None:
    X = features(n, p, seed=n + p)
    found = pca(X, standardise=standardise)
    values, vectors = naive(X, standardise)
    rank = int((values > 1e-13 * values[0]).sum())
    assert len(found) == rank <= min(n - 1, p)
    np.testing.assert_allclose(found.variance, values[:rank], rtol=1e-7, atol=1e-12 * values[0])
    assert found.total == pytest.approx(values.sum(), rel=1e-10)
    assert float(found.shares[-1]) == pytest.approx(1.0)
    assert found.error < 1e-12
    close = values[:rank] > 1e-6 * values[0]  # directions of tiny variance are ill-conditioned
    overlap = np.abs((found.directions.numpy() * vectors[:, :rank]).sum(0))
    np.testing.assert_allclose(overlap[close], 1, atol=1e-6)


def test_standardised_scores_are_scikit_learns() -> None:
    X, new = features(60, 9), features(20, 9, seed=4)
    found = pca(X, components=5)
    scaler = StandardScaler().fit(X)
    peer = Peer(5, svd_solver="full").fit(scaler.transform(X))
    np.testing.assert_allclose(found.variance * 60 / 59, peer.explained_variance_, rtol=1e-9)
    for mine, theirs in ((found.transform(X), peer.transform(scaler.transform(X))),
                         (found.transform(new), peer.transform(scaler.transform(new)))):  # fmt: skip
        signs = np.sign((mine.numpy() * theirs).sum(0))
        np.testing.assert_allclose(mine.numpy() * signs, theirs, atol=1e-9 * np.abs(theirs).max())


def test_constant_columns_have_scale_one_and_new_rows_see_training_means_only() -> None:
    X = features(30, 5)
    found = pca(X)
    assert float(found.scale[2]) == 1.0
    shifted = X + 3
    expected = (shifted - X.mean(0)) / torch.where(X.std(0) > 1e-9, X.std(0, correction=0), torch.ones(()))
    torch.testing.assert_close(found.transform(shifted), expected @ found.directions)


@pytest.mark.parametrize(("n", "p", "k"), [(400, 300, 20), (300, 400, 20), (500, 64, 10)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_randomised_components_capture_what_exact_ones_do(n: int, p: int, k: int, dtype: torch.dtype) -> None:
    X = features(n, p, dtype=dtype)  # standardised, a slowly falling spectrum: the hard case
    exact, quick = pca(X, components=k, method="exact"), pca(X, components=k, method="randomised")
    assert quick.method == "randomised"
    captured = pca(quick.transform(X).double(), standardise=False).variance.sum()
    assert float(captured) >= 0.999 * float(exact.variance.sum())
    assert float(quick.variance.sum()) <= float(exact.variance.sum()) * (1 + 1e-6)
    Y = (X.double() - quick.mean) / quick.scale
    residual = Y.T @ (Y @ quick.directions) / n - quick.directions * quick.variance
    measured = float(residual.norm() / quick.variance.norm())
    assert quick.error == pytest.approx(measured, rel=1e-2, abs=1e-5)
    basis = quick.directions
    torch.testing.assert_close(basis.T @ basis, torch.eye(k, dtype=torch.float64), atol=1e-10, rtol=0)


def stored(X: Tensor, folder: Path, rows: int) -> FeatureStore:
    store = FeatureStore.prepare(
        folder, n=len(X), width=X.shape[1], rows=rows, dtype=X.dtype, labels={}, fingerprint={"test": "pca"}
    )
    for k in range(len(store)):
        store.write(k, X[store.span(k)])
    return store


@pytest.mark.parametrize(("n", "p"), [(90, 8), (8, 90)])
@pytest.mark.parametrize("method", ["exact", "randomised"])
def test_rows_on_disk_have_the_components_of_rows_in_memory(tmp_path: Path, n: int, p: int, method: str) -> None:
    X = features(n, p)
    store = stored(X, tmp_path / "rows", 7)
    here, there = (pca(rows, components=4, method=method, memory="200kB") for rows in (X, store))
    torch.testing.assert_close(here.variance, there.variance, rtol=1e-9, atol=0)
    torch.testing.assert_close(here.transform(X), there.transform(store), rtol=1e-6, atol=1e-6)


def test_large_means_do_not_eat_the_variance() -> None:
    X = torch.randn(500, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64) + 1e8
    values, _ = naive(X, standardise=False)
    np.testing.assert_allclose(pca(X, standardise=False).variance, values, rtol=1e-6)


def test_auto_is_exact_where_that_is_cheap_and_for_all_components(monkeypatch: pytest.MonkeyPatch) -> None:
    X = features(120, 90)
    assert pca(X, components=3).method == "exact"
    monkeypatch.setattr(sys.modules["ntkscope.linalg.features.pca"], "SMALL", 10)
    assert pca(X, components=3).method == "randomised"
    assert pca(X, components=60).method == "exact"
    assert pca(X).method == "exact"


def test_what_cannot_be_decomposed_is_refused() -> None:
    X = features(20, 6)
    for components, expected in ((0, "expected 1 … 6"), (7, "expected 1 … 6"), (True, "expected a whole number")):
        with pytest.raises(UsageError, match=expected):
            pca(X, components=components)
    with pytest.raises(UsageError, match="one row"):
        pca(X[:1])
    with pytest.raises(UsageError, match="expected floating-point rows"):
        pca(X[0])
    with pytest.raises(NumericalError, match="are constant"):
        pca(torch.ones(5, 3))
    bad = X.clone()
    bad[3, 4] = float("nan")
    with pytest.raises(NumericalError, match=r"the first at \(3, 4\)"):
        pca(bad)
    found = pca(X, components=3)
    with pytest.raises(UsageError, match="width 5"):
        found.transform(X[:, :5])
    wrong: Any
    for wrong in (4, 0, 2.5, "2", True):
        with pytest.raises(UsageError, match="components="):
            found.transform(X, wrong)


def test_a_budget_that_is_too_small_names_one_that_works() -> None:
    X = features(200, 150)
    with pytest.raises(MemoryBudgetError, match="smallest budget that works") as caught:
        pca(X, memory="100kB")
    pca(X, memory=int(re.search(r"\((\d+) bytes\)", str(caught.value))[1]))
    assert pca(X, components=5, memory="200kB").method == "randomised"


@pytest.mark.parametrize("scale", [1e-30, 1e25])
def test_randomised_components_do_not_depend_on_the_unit(scale: float) -> None:
    X = torch.randn(300, 60, generator=torch.Generator().manual_seed(0)) * torch.linspace(3, 0.1, 60)
    plain = pca(X, components=3, standardise=False, method="randomised")
    found = pca(X * scale, components=3, standardise=False, method="randomised")
    assert torch.allclose(found.variance / scale**2, plain.variance, rtol=1e-4)
    assert found.error < 0.1


def test_a_large_constant_column_makes_no_component() -> None:
    X = torch.randn(400, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    assert len(pca(torch.cat([X, torch.full((400, 1), 1e10 / 3, dtype=torch.float64)], 1))) == 3


def test_scores_of_nan_are_refused() -> None:
    X = torch.randn(9, 3, generator=torch.Generator().manual_seed(0))
    found = pca(X)
    X[4, 1] = torch.nan
    with pytest.raises(NumericalError, match="row 4"):
        found.transform(X)
