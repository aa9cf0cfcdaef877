"""Bounds on test errors: norms against their definition, theorems on random nested projections, errata by counter-examples."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from contracts.experiment import made_record
from ntkscope.core import Record, UsageError
from ntkscope.experiments import EXPERIMENTS
from ntkscope_papers.framework.pages import PAPERS
from ntkscope_papers.qadeer_2023.grids import logistic_boundary, target_function
from ntkscope_papers.qadeer_2023.logistic_bounds import (
    corner_maximum,
    labels_match,
    logistic_bounds,
    signed_scores,
    summed_cross_entropy,
)
from ntkscope_papers.qadeer_2023.logistic_regression import flipped
from ntkscope_papers.qadeer_2023.regression_bounds import (
    lipschitz_constant,
    monotone_between,
    regression_bounds,
    trapezoid_norm,
)

TAUS = st.sampled_from([2, 3, 5])


def test_the_norm_is_that_of_the_trapezoid_weights() -> None:
    """Ledger conjugate-weighted-norms: both forms of Eq. 32."""
    for part in (target_function("f1", dtype="float64").train, target_function("f1", dtype="float64").test):
        weights = part.extras["weights"].numpy()
        g = np.random.default_rng(0).normal(size=len(weights))
        assert trapezoid_norm(g, 2.0) == pytest.approx(math.sqrt((weights * g**2).sum()), rel=1e-14)


@given(st.integers(0, 10**6), TAUS, st.integers(1, 9))
@settings(deadline=None, max_examples=60)
def test_coarse_by_fine_and_monotone_functions(seed: int, tau: int, cells: int) -> None:
    """Eq. 33 for every function; Lemma 4.1 with its sharp constant for monotone ones."""
    random = np.random.default_rng(seed)
    g = random.normal(size=tau * cells + 1)
    assert trapezoid_norm(g[::tau]) <= math.sqrt(tau) * trapezoid_norm(g) * (1 + 1e-12)
    nodes = random.normal(size=cells + 1)
    shares = np.concatenate([np.zeros((cells, 1)), np.sort(random.random((cells, tau - 1)), 1)], 1)
    g = np.append((nodes[:-1, None] + shares * np.diff(nodes)[:, None]).ravel(), nodes[-1])
    assert monotone_between(g, tau)
    assert trapezoid_norm(g) <= math.sqrt(2 - 1 / tau) * trapezoid_norm(g[::tau]) * (1 + 1e-12)


@pytest.mark.parametrize(("length", "printed_holds"), [(2.0, True), (50.0, True), (100.0, False), (200.0, False)])
def test_lemma_4_2_on_long_intervals(length: float, printed_holds: bool) -> None:
    """Ledger conjugate-lemma-4-2: tents that vanish at the training nodes; the corrected slack holds."""
    tau, cells = 20, 50
    step = length / cells / tau
    tent = np.append(np.tile(np.minimum(np.arange(tau), tau - np.arange(tau)) * step, cells), 0.0)
    target = np.ones_like(tent)
    found = regression_bounds(target + tent, target, target + 0 * tent, refinement=tau, length=length)
    assert found.lipschitz_ck == pytest.approx(1)
    assert found.train_ck == pytest.approx(0, abs=1e-9)
    assert found.test_ck**2 <= found.slack[0]
    assert (found.test_ck**2 <= found.slack_printed[0]) == printed_holds
    if length == 2:
        assert found.slack[0] == pytest.approx(found.slack_printed[0])


@given(st.integers(0, 10**6), TAUS)
@settings(deadline=None, max_examples=60)
def test_theorems_of_regression_hold_for_nested_projections(seed: int, tau: int) -> None:
    """Projections on nested spans of random features in the trapezoid product; both theorems, the sharper Lemma 4.4."""
    random, cells = np.random.default_rng(seed), 20
    x = np.linspace(-1, 1, tau * cells + 1)
    features = np.stack([np.tanh(a * x + b) for a, b in random.normal(size=(6, 2)) * 2], 1)
    f = np.sin(random.normal() * 4 * x) + x**2
    roots = np.sqrt(np.where((np.arange(cells + 1) % cells) == 0, 0.5, 1.0))

    def fitted(width: int) -> np.ndarray:
        basis = features[::tau, :width] * roots[:, None]
        return features[:, :width] @ np.linalg.lstsq(basis, roots * f[::tau], rcond=None)[0]

    found = regression_bounds(f, fitted(3), fitted(6), refinement=tau)
    assert found.ordered
    assert found.projection_error < 1e-8
    assert found.theorem_4_2 is True
    assert found.theorem_4_1 in (True, None)
    assert found.train_ck <= found.train_ntk / math.sqrt(1 - found.beta**2) * (1 + 1e-6)


def test_theorem_4_1_is_not_said_where_residuals_oscillate() -> None:
    f = np.sin(np.linspace(0, 20, 61))
    assert regression_bounds(f, 0 * f, 0.5 * f, refinement=3).theorem_4_1 is None
    assert lipschitz_constant(f, 20.0) == pytest.approx(1, abs=0.02)


def test_beta_of_one_is_vacuous() -> None:
    """Ledger conjugate-beta-below-one-is-empty."""
    f = np.linspace(1, 2, 7)
    found = regression_bounds(f, f + 0.1, f, refinement=3)
    assert (found.c2, found.theorem_4_2) == (math.inf, True)


# -- logistic -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("boundary", ["F1", "F2"])
def test_the_examples_match(boundary: str) -> None:
    """Ledger conjugate-matching-property and conjugate-logistic-grids."""
    labels = logistic_boundary(boundary).test.y.reshape(23, 22).numpy()
    assert labels_match(labels, (2, 3))
    found = logistic_bounds(labels - 0.5, 2 * labels - 1.0, labels, refinement=(2, 3))
    assert found.h == pytest.approx(0.338660, abs=1e-6)
    assert (found.printed, found.safe) == (6, 35)
    assert found.theorem_5_2 is True


@given(st.integers(0, 10**6), TAUS, TAUS)
@settings(deadline=None, max_examples=60)
def test_theorems_of_classification_hold(seed: int, t1: int, t2: int) -> None:
    """Any scores: where the hypotheses hold the corrected constants do; the larger loss is called the conjugate kernel's."""
    random = np.random.default_rng(seed)
    shape = (4 * t1 + 1, 3 * t2 + 1)
    a, b = np.meshgrid(np.linspace(-1, 1, shape[0]), np.linspace(-1, 1, shape[1]), indexing="ij")
    labels = (a + random.normal() * b + 0.3 * random.normal() > 0).astype(int)
    scores = [random.normal() * 4 * a + random.normal() * 4 * b + random.normal() for _ in range(2)]
    if random.random() < 0.5:  # rough ones
        scores = [score + random.normal(size=shape) for score in scores]
    scores.sort(key=lambda s: -summed_cross_entropy(signed_scores(s, labels)[::t1, ::t2]))
    found = logistic_bounds(scores[0], scores[1], labels, refinement=(t1, t2))
    assert found.ordered
    assert found.omega >= 1  # Eq. 63 follows from Eq. 52
    assert found.train_ck <= found.omega * found.train_ntk * (1 + 1e-12)  # Eq. 64
    assert found.train_ck <= found.test_ck  # Eq. 54
    assert found.theorem_5_1 in (True, None)
    assert found.theorem_5_2 in (True, None)
    if found.matching:
        assert found.theorem_5_2 is True


def test_wrong_grids() -> None:
    with pytest.raises(UsageError, match="got 6 nodes with refinement=3"):
        monotone_between(np.zeros(6), 3)
    with pytest.raises(UsageError, match=r"got a grid of shape \(4, 4\) with refinement=\(2, 3\)"):
        corner_maximum(np.zeros((4, 4)), (2, 3))


@pytest.mark.parametrize(
    ("name", "claim", "leg", "wrong"),
    [
        ("function-regression", "conjugate-theorem-4-1", "narrow/f1", {"theorem_4_1": False}),
        ("logistic-regression", "conjugate-theorem-5-1", "narrow", {"5.1 holds": 0}),
    ],
)
def test_a_network_of_one_unit_that_breaks_a_theorem_is_noticed(
    name: str, claim: str, leg: str, wrong: dict[str, Any], tmp_path: Path
) -> None:
    kept = Record.open(PAPERS / "qadeer_2023" / "results" / name)
    config = EXPERIMENTS[name].of(kept)
    (statement,) = (one for one in config.published() if one.id == claim)
    assert statement(config, kept).holds
    first = {
        key: [value, *kept.metrics[leg][key][1:]] if isinstance(value, bool) else value for key, value in wrong.items()
    }
    record = made_record(tmp_path, name, **{**kept.metrics, leg: {**kept.metrics[leg], **first}})
    assert not statement(config, record).holds


def test_half_planes_with_flipped_labels_have_both_classes() -> None:
    several = flipped(20, 0, "corner networks")
    assert {own.shape for own in several} == {(4, 3)}
    assert {0, 1} == {int(value) for own in several for value in np.unique(own)}
    assert all(len(np.unique(own)) == 2 for own in several)
    assert not (several[0] == flipped(20, 1, "corner networks")[0]).all()
