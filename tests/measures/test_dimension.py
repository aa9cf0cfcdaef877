"""Intrinsic dimension: cubes of known dimension, brute-force neighbours, honest errors, duplicates, and a peer."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.spatial.distance import cdist

from ntkscope.core import UsageError, numpy_generator
from ntkscope.measures import dimension
from ntkscope.measures.dimension import _neighbour_ratios, components_for, estimate, two_nn


def cube(d: int, n: int, ambient: int = 50, seed: int = 0) -> np.ndarray:
    """Uniform points of a cube, rotated into `ambient` dimensions."""
    random = numpy_generator(seed, "test", "cube", d)
    rotation = np.linalg.qr(random.normal(size=(ambient, ambient)))[0]
    return random.random((n, d)) @ rotation[:d]


def published(X: np.ndarray, discard: float = 0.1) -> float:
    """Facco et al. (2017), written out: all distances, the empirical distribution i/n, a line through the origin."""
    near = np.sort(cdist(X, X) + np.diag(np.full(len(X), np.inf)), axis=1)[:, :2]
    x = np.sort(np.log(near[:, 1] / near[:, 0]))
    used = int(len(x) * (1 - discard))
    y = -np.log(1 - np.arange(1, used + 1) / len(x))
    return float(np.linalg.lstsq(x[:used, None], y, rcond=None)[0][0])


@pytest.mark.parametrize(("d", "allowed"), [(2, 0.1), (5, 0.1), (10, 0.15)])
def test_cubes_have_their_dimension(d: int, allowed: float) -> None:
    found = two_nn(cube(d, 4000), halvings=0)
    assert found.dimension == pytest.approx(d, rel=allowed)
    assert found.items == 4000


def test_it_is_the_published_estimate() -> None:
    for d in (2, 7):
        X = cube(d, 300, 20)
        assert two_nn(X).dimension == pytest.approx(published(X), rel=1e-9)


def test_a_peer_agrees() -> None:
    skdim = pytest.importorskip("skdim")
    for d in (2, 5, 10):
        X = cube(d, 4000)
        theirs = skdim.id.TwoNN().fit(X).dimension_
        assert two_nn(X, halvings=0).dimension == pytest.approx(theirs, rel=0.02)


@settings(max_examples=25, deadline=None)
@given(n=st.integers(20, 60), p=st.integers(1, 12), seed=st.integers(0, 99), offset=st.sampled_from([0.0, 1e3, 1e6]))
def test_neighbours_are_those_of_all_differences(n: int, p: int, seed: int, offset: float) -> None:
    """Products lose the distances of points far from the origin; differences do not."""
    X = np.random.default_rng(seed).normal(size=(n, p)) + offset
    X[1] = X[0] + 1e-7
    near = np.sort([np.sort(np.linalg.norm(X - x, axis=1))[1:3] for x in X], axis=1)
    ratios, nearest = _neighbour_ratios(torch.from_numpy(X))
    assert ratios == pytest.approx(near[:, 1] / near[:, 0], rel=1e-12)
    assert np.linalg.norm(X - X[nearest], axis=1) == pytest.approx(near[:, 0], rel=1e-12)


@pytest.mark.parametrize("seed", range(5))
def test_neighbours_in_a_cluster_that_products_cannot_tell_apart(seed: int) -> None:
    """Far from the origin, products say that all of a tight cluster are at one distance: more of them than are looked at."""
    X = np.random.default_rng(seed).normal(size=(40, 3))
    X[:30] = 1e4 + 1e-5 * X[:30]
    near = np.sort(cdist(X, X) + np.diag(np.full(40, np.inf)), axis=1)
    ratios, nearest = _neighbour_ratios(torch.from_numpy(X))
    assert ratios == pytest.approx(near[:, 1] / near[:, 0], rel=1e-9)
    assert nearest.tolist() == (cdist(X, X) + np.diag(np.full(40, np.inf))).argmin(1).tolist()


@pytest.mark.parametrize("d", [2, 5, 10])
def test_the_error_knows_that_neighbours_share_distances(d: int) -> None:
    """Over 60 cubes the spread is what the errors say, within 3 of its own errors; without the pairs it would be too small."""
    found = [two_nn(cube(d, 300, d, seed), halvings=0) for seed in range(60)]
    spread = float(np.std([one.dimension for one in found], ddof=1))
    assert spread == pytest.approx(float(np.mean([one.error for one in found])), rel=3 / np.sqrt(2 * 60))


def test_duplicates_are_counted_out() -> None:
    X = cube(3, 200, 10)
    plain, doubled = two_nn(X), two_nn(np.concatenate([X, X[:50], X[:50]]))
    assert (plain.duplicates, doubled.duplicates) == (0, 100)
    assert doubled.items == 200
    assert doubled.dimension == pytest.approx(plain.dimension, rel=1e-12)
    signed = np.concatenate([X * 0.0, X])
    signed[:100] *= -1.0  # zeros of both signs are one item
    assert two_nn(signed).duplicates == 199


def test_noise_shows_in_the_curve() -> None:
    """A plane with thin noise in ten dimensions: with fewer items neighbours are further away, and the plane remains."""
    random = numpy_generator(0, "test", "noise")
    X = np.c_[random.random((1600, 2)), np.zeros((1600, 8))] + 4e-3 * random.normal(size=(1600, 10))
    curve = two_nn(X, halvings=4).curve
    assert [one.items for one in curve] == [1600, 800, 400, 200, 100]
    assert curve[0].dimension > curve[-1].dimension + 1
    flat = two_nn(cube(2, 1600), halvings=4).curve
    assert all(abs(one.dimension - 2) < 0.25 for one in flat)


def test_blocks_give_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    X = torch.from_numpy(cube(4, 90, 9))
    whole, nearest = _neighbour_ratios(X)
    monkeypatch.setattr(dimension, "NUMBERS", 1000)
    found, again = _neighbour_ratios(X)
    assert found == pytest.approx(whole, rel=1e-12)
    assert again.tolist() == nearest.tolist()


def test_too_few_items_are_refused() -> None:
    with pytest.raises(UsageError, match="got 5 distinct items of 40"):
        two_nn(np.repeat(np.eye(5), 8, axis=0))
    with pytest.raises(UsageError, match="discard=1"):
        two_nn(np.eye(30), discard=1.0)
    with pytest.raises(UsageError, match="0 above 1"):
        two_nn(np.eye(30))  # all at one distance: no dimension
    with pytest.raises(UsageError, match="none below 1"):
        estimate(np.full(30, 0.5))


def test_components_for_a_share_of_the_variance() -> None:
    variance = np.sort(np.random.default_rng(0).random(40))[::-1]
    for share in (0.1, 0.5, 0.9, 1.0):
        k = components_for(variance, variance.sum(), share)
        sums = variance.cumsum() / variance.sum()
        assert sums[k - 1] >= share - 1e-12
        assert k == 1 or sums[k - 2] < share
    with pytest.raises(UsageError, match="compute more"):
        components_for([1.0, 0.5], 10.0)
    with pytest.raises(UsageError, match="share=0"):
        components_for([1.0], 1.0, 0.0)
