"""Neural collapse: against the definitions with (p, p) covariances, at planted frames, and what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from contracts.measure import MeasureContract
from ntkscope.core import NtkscopeError, NumericalError, UsageError, numpy_generator
from ntkscope.linalg.features import rows
from ntkscope.measures import collapse
from ntkscope.storage import FeatureStore
from oracles import collapse as oracle


def clusters(
    seed: int, n: int = 30, p: int = 6, classes: int = 3, spread: float = 0.5
) -> tuple[np.ndarray, np.ndarray]:
    """Items around random class means, classes of different sizes, in random order."""
    random = numpy_generator(seed, "test", "collapse", n, p)
    y = np.sort(np.r_[np.arange(classes), np.arange(classes), random.integers(0, classes, n - 2 * classes)])
    y = random.permutation(y)
    return random.normal(size=(classes, p))[y] + spread * random.normal(size=(n, p)) + 3.0, y


def simplex(classes: int, p: int, seed: int = 0) -> np.ndarray:
    """Equiangular class means of equal norms, rotated into p dimensions, around a centre that is not 0."""
    rotation = np.linalg.qr(numpy_generator(seed, "test", "simplex").normal(size=(p, p)))[0]
    return (np.eye(classes, p) - np.eye(classes, p)[:classes].mean(0)) @ rotation + 5.0


class OfFeatures(MeasureContract):
    def arguments(self, seed: int) -> tuple[np.ndarray, ...]:
        return clusters(seed)

    def perfect(self) -> tuple[np.ndarray, ...]:
        y = np.arange(12) % 4
        return simplex(4, 7)[y], y


class TestNC1(OfFeatures):
    name = "nc1"


class TestNC2Norms(OfFeatures):
    name = "nc2-norms"


class TestNC2Angles(OfFeatures):
    name = "nc2-angles"


class TestCDNV(OfFeatures):
    name = "cdnv"


class TestNC3(OfFeatures):
    name = "nc3"

    def arguments(self, seed: int) -> tuple[np.ndarray, ...]:
        H, y = clusters(seed)
        return H, y, numpy_generator(seed, "test", "readout").normal(size=(3, 6))

    def perfect(self) -> tuple[np.ndarray, ...]:
        H, y = super().perfect()
        return H, y, 4 * (simplex(4, 7) - 5.0)


class TestNC4(OfFeatures):
    name = "nc4"

    def arguments(self, seed: int) -> tuple[np.ndarray, ...]:
        H, y = clusters(seed, spread=2.0)
        return H, y, y

    def perfect(self) -> tuple[np.ndarray, ...]:
        H, y = super().perfect()
        return H, y, y


SHAPES = [(30, 6, 3), (200, 5, 10), (40, 90, 4), (25, 300, 2), (60, 60, 12), (500, 3, 2), (80, 400, 10), (50, 9, 10)]
SHAPES += [(24, 1000, 3), (300, 40, 20)]


@pytest.mark.parametrize(("n", "p", "classes"), SHAPES)
def test_measures_equal_their_definitions(n: int, p: int, classes: int) -> None:
    H, y = clusters(1, n, p, classes)
    found = collapse.collapse(H, y)
    assert found.nc1 == pytest.approx(oracle.nc1(H, y, min(classes - 1, p)), rel=1e-8)
    assert (found.nc2_norms, found.nc2_angles) == pytest.approx(oracle.nc2(H, y), rel=1e-9, abs=1e-12)
    assert found.cdnv == pytest.approx(oracle.cdnv(H, y), rel=1e-10)
    assert found.nc1 == collapse.nc1(H, y)


def test_the_usual_cut_off_of_a_pseudo_inverse_would_return_noise() -> None:
    """Why it is taken from the class means: NumPy's `pinv` of Σ_B inverts rounding errors, here float32's."""
    H, y = clusters(0, 60, 200, 5)
    within, between, _ = oracle.covariances(H, y)
    usual = float(np.trace(within @ np.linalg.pinv(between.astype(np.float32).astype(float)))) / 5
    assert abs(usual / oracle.nc1(H, y, 4) - 1) > 10
    assert collapse.nc1(H, y) == pytest.approx(oracle.nc1(H, y, 4), rel=1e-8)


@pytest.mark.parametrize("scale", [1e-120, 1.0, 1e120])
def test_measures_do_not_depend_on_scale_place_and_rotation(scale: float) -> None:
    H, y = clusters(2, 40, 20, 4)
    rotation = np.linalg.qr(numpy_generator(0, "test", "rotation").normal(size=(20, 20)))[0]
    expected, found = collapse.collapse(H, y), collapse.collapse(scale * (H @ rotation + 1.0), y)
    for name in ("nc1", "nc2_norms", "nc2_angles", "cdnv"):
        assert getattr(found, name) == pytest.approx(getattr(expected, name), rel=1e-9), name


@pytest.mark.parametrize("classes", [2, 3, 10])
def test_a_planted_simplex_has_no_nc2(classes: int) -> None:
    random = numpy_generator(0, "test", "planted")
    y = np.repeat(np.arange(classes), 6)
    noise = random.normal(size=(len(y), 30))
    for c in range(classes):
        noise[y == c] -= noise[y == c].mean(0)  # the means stay where they are
    found = collapse.collapse(simplex(classes, 30)[y] + noise, y)
    assert found.nc2_norms < 1e-12
    assert found.nc2_angles < 1e-12
    assert found.nc1 > 0.1


def test_coinciding_means_have_no_direction_of_their_own() -> None:
    """Two of three classes in one place: Σ_B has rank 1, not 2, although rounding gives the means another direction."""
    random = numpy_generator(0, "test", "twins")
    noise = random.normal(size=(12, 8))
    places = np.array([[1e3] * 8, [1e3] * 8, [1e3 + 1] * 8])
    y = np.repeat(np.arange(3), 4)
    for c in range(3):
        noise[y == c] -= noise[y == c].mean(0)
    H = places[y] + noise
    moments = collapse.class_moments(H, y)
    assert moments.along.shape == (3, 1)
    assert collapse.nc1(H, y) == pytest.approx(oracle.nc1(H, y, 1), rel=1e-6)


def test_decisions_against_the_nearest_mean_of_other_items() -> None:
    H, y = clusters(3, 60, 5, 4, spread=1.5)
    at, _ = clusters(4, 50, 5, 4, spread=1.5)
    decisions = numpy_generator(0, "test", "decisions").integers(0, 4, 50)
    expected = oracle.nearest(H, y, at)
    moments = collapse.class_moments(H, y)
    assert collapse.nearest_class(moments, at).tolist() == expected.tolist()
    assert collapse.nc4(H, y, decisions, at=at) == pytest.approx(np.mean(expected != decisions))
    assert collapse.collapse(H, y, decisions=decisions, at=at).nc4 == collapse.nc4(H, y, decisions, at=at)


def test_a_vector_added_to_every_row_of_the_readout_counts_unless_centred() -> None:
    H, y = clusters(5)
    W = numpy_generator(5, "test", "readout").normal(size=(3, 6))
    moved = W + 7.0
    assert collapse.nc3(H, y, moved) != pytest.approx(collapse.nc3(H, y, W), abs=1e-3)
    assert collapse.nc3(H, y, moved, centred=True) == pytest.approx(collapse.nc3(H, y, W, centred=True))


def test_blocks_of_rows_and_stores_give_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    H, y = clusters(6, 50, 8, 3)
    whole = collapse.collapse(H, y)
    store = FeatureStore.prepare(
        tmp_path / "store", n=50, width=8, rows=7, dtype=torch.float64, labels={}, fingerprint={"a": "b"}
    )
    for k in range(len(store)):
        store.write(k, torch.from_numpy(H[store.span(k)]))
    monkeypatch.setattr(rows, "BLOCK", 8 * 40)  # five rows at a time
    for values in (torch.from_numpy(H), store):
        found = collapse.collapse(values, y)
        assert found.nc1 == pytest.approx(whole.nc1, rel=1e-12)
        assert found.cdnv == pytest.approx(whole.cdnv, rel=1e-12)


@pytest.mark.parametrize(
    ("H", "y", "kind", "words"),
    [
        (np.ones((4, 2)), [0, 0, 0, 0], UsageError, "one class"),
        (np.eye(3), [0, 0, 1], UsageError, r"1 item\(s\) of class 1"),
        (np.ones((4, 2)), [0, 0, 1, 1], NumericalError, "the class means coincide"),
        (np.eye(4), [0, 0, 1], UsageError, "expected"),
        ([[0.0, 1.0], [0.0, 1.0], [np.inf, 0.0], [1.0, 0.0]], [0, 0, 1, 1], NumericalError, "the first of item 2"),
    ],
)
def test_what_has_no_answer_is_refused(H: Any, y: Any, kind: type[NtkscopeError], words: str) -> None:
    with pytest.raises(kind, match=words):
        collapse.collapse(H, y)


def test_degenerate_frames_are_refused() -> None:
    twins = np.repeat([[0.0, 0.0], [0.0, 0.0], [1.0, 0.0]], 2, axis=0)
    with pytest.raises(NumericalError, match="classes 0 and 1 have the same mean"):
        collapse.cdnv(twins, [0, 0, 1, 1, 2, 2])
    centred = np.repeat([[-1.0, 0.0], [0.0, 0.0], [1.0, 0.0]], 2, axis=0)
    with pytest.raises(NumericalError, match="class 1 is the centre"):
        collapse.nc2_angles(centred, [0, 0, 1, 1, 2, 2])
    H, y = clusters(0)
    for readout in (np.ones((2, 6)), np.ones((3, 5))):
        with pytest.raises(UsageError, match="one row of weights per class"):
            collapse.nc3(H, y, readout)
    with pytest.raises(NumericalError, match="all zero"):
        collapse.nc3(H, y, np.zeros((3, 6)))
    with pytest.raises(UsageError, match="one class"):
        collapse.nc4(H, y, y.astype(float))
