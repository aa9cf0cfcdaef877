"""Fold profile: against pooled correlations written out, planted functions, what has no correlation."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
import torch
from torch import nn

from ntkscope.core import numpy_generator
from ntkscope.data.orthant_shells import orthant_signs
from ntkscope_papers.balakrishnan_2023.orthants.folding import fold_profile

RADII = np.repeat(np.arange(5, 26) / 10, 40)  # those of Figure 2's probe


def naive(scores: np.ndarray, strata: np.ndarray, at: list[int]) -> list[float]:
    """All pairs of points listed, then one Pearson correlation per distance."""
    residuals = scores.astype(float).copy()
    for orthant, radius in itertools.product(range(scores.shape[1]), set(strata.tolist())):
        chosen = strata == radius
        residuals[chosen, orthant] -= scores[chosen, orthant].mean()
    profile = []
    for k in range(scores.shape[1].bit_length()):
        pairs = [(a, o) for a in at for o in range(scores.shape[1]) if bin(a ^ o).count("1") == k]
        left, right = (np.concatenate([residuals[:, pair[side]] for pair in pairs]) for side in (0, 1))
        profile.append(float(np.corrcoef(left, right)[0, 1]))
    return profile


def points() -> torch.Tensor:
    """Base points around (4, …, 4) and all their reflections, (n, 2^d, d)."""
    direction = torch.from_numpy(numpy_generator(0, "directions").normal(size=(len(RADII), 7)))
    direction = direction / direction.norm(dim=1, keepdim=True)
    base = 4 + torch.from_numpy(RADII)[:, None] * direction
    return base[:, None] * orthant_signs(7)


def profile(scores: torch.Tensor | np.ndarray, at: int | None = None) -> list[float]:
    return fold_profile(np.asarray(scores, dtype=np.float64), (RADII * 10).round().astype(np.int64), at)[0].tolist()


@pytest.mark.parametrize("seed", range(10))
def test_against_pairs_written_out(seed: int) -> None:
    random = numpy_generator(seed, "folding")
    n, d = int(random.integers(4, 20)), int(random.integers(1, 5))
    scores = random.normal(size=(n, 2**d)) + random.normal(size=(n, 1)) + random.normal(size=2**d)
    strata = random.integers(0, 2, n)
    strata[:2], strata[2:4] = 0, 1
    for at in (None, 0, 2**d - 1):
        found, reasons = fold_profile(scores, strata, at)
        assert found == pytest.approx(naive(scores, strata, list(range(2**d)) if at is None else [at]), abs=1e-10)
        assert reasons == [None] * (d + 1)
        for scale in (1e-300, 1e307 / np.abs(scores).max()):
            assert fold_profile(scores * scale, strata, at)[0] == pytest.approx(found, abs=1e-9)


def test_a_function_of_absolute_values_folds_at_every_distance() -> None:
    """|x| = relu(x) + relu(-x) in a first layer of 14 units, then a random network, in float32."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        first = nn.Linear(7, 14)
        last = nn.Sequential(nn.Linear(14, 32), nn.Tanh(), nn.Linear(32, 1))
    with torch.no_grad():
        first.weight.copy_(torch.cat([torch.eye(7), -torch.eye(7)]))
        first.bias.zero_()
        last[0].weight[:, 7:] = last[0].weight[:, :7]
        x = points()
        scores = last(torch.relu(first(x.float().reshape(-1, 7)))).reshape(x.shape[:2])
    assert min(profile(scores)) >= 0.99
    assert min(profile(scores, at=77)) >= 0.99


def test_noise_of_its_own_in_every_orthant_does_not_fold() -> None:
    scores = numpy_generator(0, "noise").normal(size=(len(RADII), 128)) + RADII[:, None]
    assert max(map(abs, profile(scores)[1:])) < 0.05
    # of one orthant the pairs are fewer: 840 points at distance 7, deviation 0.035
    assert max(map(abs, profile(scores, at=3)[1:])) < 4 * 840**-0.5


def test_correlation_that_decays_over_the_cube_is_recovered() -> None:
    """Covariance 0.7^k between orthants: the Kronecker power of [[1, 0.7], [0.7, 1]], seen under a radial profile."""
    factor = np.ones((1, 1))
    for _ in range(7):
        factor = np.kron(factor, np.array([[1.0, 0.0], [0.7, math.sqrt(1 - 0.49)]]))
    noise = numpy_generator(0, "cube").normal(size=(len(RADII), 128)) @ factor.T
    found = profile(noise + 10 * np.tanh(RADII - 1.5)[:, None])
    assert found == pytest.approx([0.7**k for k in range(8)], abs=0.05)


@pytest.mark.parametrize("per_orthant", [False, True])
def test_being_right_everywhere_is_no_folding(per_orthant: bool) -> None:
    """A function of the radius (with a level of its own in each orthant) computed from the points, rounding included."""
    scores = torch.tanh((points().abs() - 4).norm(dim=2) - 1.5)
    if per_orthant:
        scores = scores * torch.linspace(1, 2, 128) + torch.linspace(-1, 1, 128)
    assert all(map(math.isnan, profile(scores)))


def test_what_has_no_correlation_says_why() -> None:
    same, four = np.zeros(6, dtype=np.int64), np.array([0, 0, 1, 1])
    assert fold_profile(np.full((4, 4), 0.1), four)[1] == ["the scores are constant"] * 3
    by_radius = np.repeat([[1.0], [2.0]], 2, axis=0) * np.ones(4)
    assert "same at all points of a radius in each orthant" in str(fold_profile(by_radius, four)[1][0])
    alone, reasons = fold_profile(np.arange(8.0).reshape(2, 4), np.array([0, 1]))
    assert math.isnan(alone[1])
    assert "one point" in str(reasons[1])
    scores = numpy_generator(0, "some").normal(size=(6, 4))
    scores[:, 0] = 0.3
    asked, reasons = fold_profile(scores, same, at=0)
    assert all(map(math.isnan, asked))
    assert str(reasons[0]).startswith("the orthants asked for have scores that are the same")
    partner, reasons = fold_profile(scores, same, at=3)
    assert [math.isnan(entry) for entry in partner] == [False, False, True]
    assert reasons[:2] == [None, None]
    assert str(reasons[2]).startswith("orthants 2 signs away have scores that are the same")
