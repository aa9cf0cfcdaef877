"""The measure in which the surrogate paper's tables were made: saturated points, the fixed class, what labels alone score."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy.stats import kendalltau

from ntkscope.linalg import DenseGram
from ntkscope.machines import KernelPair
from ntkscope_papers.engel_2023 import published_measure as measure
from ntkscope_papers.engel_2023.published_measure import (
    Compared,
    fixed_class,
    label_floor,
    stochastic_scores,
    unsaturated,
)
from ntkscope_papers.engel_2023.side_by_side import side_by_side


def pair_of(
    classes: int, seed: int = 0, n: int = 60, m: int = 20
) -> tuple[KernelPair, np.ndarray, Compared, np.ndarray]:
    """Cosines of points around class centres, labels, a made-up network on test points and on training points."""
    random = np.random.default_rng(seed)
    y = np.arange(n + m) % classes
    x = np.eye(classes, 6)[y] * 2 + 0.7 * random.normal(size=(n + m, 6))
    unit = x / np.linalg.norm(x, axis=1, keepdims=True)
    K = torch.from_numpy(unit @ unit.T)
    network = 3 * x[:, :classes]
    pair = KernelPair("trntk", DenseGram(K[:n, :n], symmetric=True), DenseGram(K[n:, :n]))
    return pair, y[:n], Compared(network[n:], y[n:]), network[:n]


def test_points_at_exactly_0_or_1_are_left_out_and_nan_leaves_none() -> None:
    p, q = np.array([0.0, 0.2, 0.4, 0.9, 1.0]), np.array([0.5, 0.1, 0.3, 0.2, 0.9])
    found = unsaturated(p, q)
    assert (found.used, found.left_out) == (3, 2)
    assert found.tau == pytest.approx(kendalltau(p[1:4], q[1:4]).statistic)
    assert np.isnan(unsaturated(np.full(4, np.nan), np.linspace(0.1, 0.9, 4)).tau)


def test_the_fixed_class_is_plain_tau_of_scores_that_do_not_saturate() -> None:
    random = np.random.default_rng(0)
    scores, network = random.normal(size=200), 3 * random.normal(size=200)
    found = fixed_class(scores, network)
    assert found.left_out == 0
    assert found.tau == pytest.approx(kendalltau(scores, network.astype(np.float32)).statistic, abs=1e-3)


@pytest.mark.parametrize(
    ("score", "network", "left"), [(0.0, 17.0, 1), (0.0, -17.0, 0), (0.0, -104.0, 1), (-800.0, 0.0, 1)]
)
def test_what_saturates(score: float, network: float, left: int) -> None:
    """A sigmoid in single precision is 1 from 17 on and 0 only below -103; a share of the test points underflows at -745."""
    found = fixed_class(np.array([0.0, 1.0, 2.0, score]), np.array([0.5, 1.0, 2.0, network]))
    assert found.left_out == left


def test_a_score_that_overflows_has_no_tau() -> None:
    assert np.isnan(fixed_class(np.array([0.0, 710.0, 5.0]), np.array([0.0, 1.0, 2.0])).tau)


@pytest.mark.parametrize("share", [0.5, 0.3])
def test_labels_alone_score_the_floor(share: float) -> None:
    """A predictor that knows labels and draws the rest: its mean τ over draws is the closed form, 0.5 for equal classes."""
    random = np.random.default_rng(1)
    y = (np.arange(200) < 200 * share).astype(np.int64)
    network = 4.0 * (2 * y - 1) + random.normal(size=200)
    draws = [kendalltau(y + 0.9 * random.random(200), network).statistic for _ in range(300)]
    error = np.std(draws) / np.sqrt(len(draws))
    assert label_floor(y, network) == pytest.approx(np.mean(draws), abs=5 * error)
    if share == 0.5:
        assert label_floor(y, network) == pytest.approx(0.5, abs=0.01)


def test_the_floor_is_taken_where_the_network_does_not_saturate() -> None:
    y = np.array([0, 0, 1, 1, 1, 1])
    network = np.array([-2.0, -1.0, 1.0, 2.0, 30.0, 40.0])
    assert measure.floor_on_used(y, network) == label_floor(y[:4], network[:4])
    assert np.isnan(label_floor(np.ones(3, dtype=np.int64), np.arange(3.0)))


@pytest.mark.parametrize("classes", [2, 3])
def test_fits_by_sgd_depend_on_their_seed_and_on_nothing_else(classes: int) -> None:
    pair, y, compared, _ = pair_of(classes)
    first, again, other = (next(stochastic_scores(pair, y, 1e-4, [seed])) for seed in (0, 0, 1))
    assert first.shape == (20, classes)
    np.testing.assert_array_equal(first, again)
    assert np.abs(first - other).max() > 1e-6
    fits = measure.stochastic_fits(pair, y, compared, 1e-4, range(3))
    found = measure.spread(fits, "unsaturated", "tau")
    assert set(fits["seeds"]) == {"0", "1", "2"}
    assert found is not None
    assert found["least"] <= found["mean"] <= found["largest"]
    assert ("fixed class" in fits["seeds"]["0"]) == (classes == 2)


def test_a_kernel_that_is_not_of_cosines_is_measured_whatever_its_scale() -> None:
    pair, y, _, _ = pair_of(3)
    raw = KernelPair("trntk0", pair.train, pair.test)
    large = KernelPair(
        "trntk0", DenseGram(1024.0 * pair.train.dense(), symmetric=True), DenseGram(1024.0 * pair.test.dense())
    )
    a, b = (next(stochastic_scores(one, y, 1e-2, [0])) for one in (raw, large))
    np.testing.assert_allclose(a, b, rtol=1e-9)


def test_probabilities_of_one_vs_rest_add_up() -> None:
    random = np.random.default_rng(0)
    np.testing.assert_allclose(measure.shares_of_classes(5 * random.normal(size=(7, 4))).sum(1), 1, rtol=1e-12)


def test_indexing_with_one_hot_labels_forgets_the_labels() -> None:
    """As in the authors' notebook: p[i][onehot(y_i)] has class 0 in every place but one, class 1 in that one."""
    random = np.random.default_rng(0)
    p, q = (random.dirichlet(np.ones(4), size=30) for _ in range(2))
    y = random.integers(0, 4, size=30)
    onehot = np.eye(4, dtype=int)[y]
    literal = [np.concatenate([one[i][onehot[i]] for i in range(30)]) for one in (p, q)]
    assert measure.as_committed(p, q).tau == pytest.approx(unsaturated(*literal).tau, abs=1e-12)


def test_a_fit_to_the_networks_logits_follows_it_at_least_as_well() -> None:
    pair, y, compared, trained = pair_of(3, n=90)
    found = side_by_side(pair, y, trained, compared, alpha=1e-4, inspected=5)
    assert found["logits"]["r2_logits"] > found["labels"]["r2_logits"]
    assert found["logits"]["tau"] >= found["labels"]["tau"] - 0.05
    assert all(0 <= value <= 5 for value in found["shared"].values())
