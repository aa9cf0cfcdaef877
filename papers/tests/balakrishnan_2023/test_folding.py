"""Fold profile: against pooled correlations written out, planted functions, what has no correlation."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
import torch
from torch import nn

from ntkscope.core import NumericalError, UsageError, numpy_generator
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


def points(dimension: int = 7, radii: np.ndarray = RADII) -> torch.Tensor:
    """Base points around (4, …, 4) and all their reflections, (n, 2^d, d)."""
    direction = torch.from_numpy(numpy_generator(0, "directions").normal(size=(len(radii), dimension)))
    direction = direction / direction.norm(dim=1, keepdim=True)
    base = 4 + torch.from_numpy(radii)[:, None] * direction
    return base[:, None] * orthant_signs(dimension)


@pytest.mark.parametrize("seed", range(10))
def test_against_pairs_written_out(seed: int) -> None:
    random = numpy_generator(seed, "folding")
    n, d = int(random.integers(4, 20)), int(random.integers(1, 5))
    scores = random.normal(size=(n, 2**d)) + random.normal(size=(n, 1)) + random.normal(size=2**d)
    strata = random.integers(0, 2, n)
    strata[:2], strata[2:4] = 0, 1
    for at in (None, 0, [int(2**d - 1)], random.permutation(2**d)[: 2 ** (d - 1)].tolist()):
        listed = list(range(2**d)) if at is None else [at] if isinstance(at, int) else at
        found = fold_profile(scores, strata, at)
        assert list(found) == pytest.approx(naive(scores, strata, listed), abs=1e-10)
        assert found.reasons == (None,) * (d + 1)
        assert len(found) == d + 1
        for scale in (1e-300, 1e307 / np.abs(scores).max()):
            assert list(fold_profile(scores * scale, strata, at)) == pytest.approx(list(found), abs=1e-9)


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
    assert min(fold_profile(scores, RADII)) >= 0.99
    assert min(fold_profile(scores, RADII, at=77)) >= 0.99


def test_noise_of_its_own_in_every_orthant_does_not_fold() -> None:
    scores = numpy_generator(0, "noise").normal(size=(len(RADII), 128)) + RADII[:, None]
    assert max(map(abs, list(fold_profile(scores, RADII))[1:])) < 0.05
    # of one orthant the pairs are fewer: 840 points at distance 7, deviation 0.035
    assert max(map(abs, list(fold_profile(scores, RADII, at=3))[1:])) < 4 * 840**-0.5


def test_correlation_that_decays_over_the_cube_is_recovered() -> None:
    """Covariance 0.7^k between orthants: the Kronecker power of [[1, 0.7], [0.7, 1]], seen under a radial profile."""
    factor = np.ones((1, 1))
    for _ in range(7):
        factor = np.kron(factor, np.array([[1.0, 0.0], [0.7, math.sqrt(1 - 0.49)]]))
    noise = numpy_generator(0, "cube").normal(size=(len(RADII), 128)) @ factor.T
    found = fold_profile(noise + 10 * np.tanh(RADII - 1.5)[:, None], RADII)
    assert list(found) == pytest.approx([0.7**k for k in range(8)], abs=0.05)


def test_a_linear_function_changes_sign_with_its_coordinates() -> None:
    """x ↦ Σ x_j, of independent deviations from the centre: 1 - 2k/d at distance k."""
    x = points(radii=np.repeat([1.0, 2.0], 4000))
    assert list(fold_profile(x.sum(2), np.repeat([1, 2], 4000))) == pytest.approx(
        [1 - 2 * k / 7 for k in range(8)], abs=0.02
    )


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("per_orthant", [False, True])
def test_being_right_everywhere_is_no_folding(dtype: torch.dtype, per_orthant: bool) -> None:
    """A function of the radius (with a level of its own in each orthant) computed from the points, rounding included."""
    x = points().to(dtype)
    scores = torch.tanh((x.abs() - 4).norm(dim=2) - 1.5)
    if per_orthant:
        scores = scores * torch.linspace(1, 2, 128, dtype=dtype) + torch.linspace(-1, 1, 128, dtype=dtype)
    profile = fold_profile(scores, RADII)
    assert all(math.isnan(entry) for entry in profile)
    assert profile.reasons == (
        "scores are the same at all points of a radius in each orthant: no residual is left to compare",
    ) * len(profile)


def test_what_has_no_correlation_says_why() -> None:
    constant = fold_profile(np.full((4, 4), 0.1), [0, 0, 1, 1])
    assert math.isnan(constant[0])
    assert constant.reasons == ("the scores are constant",) * 3
    alone = fold_profile(np.arange(8.0).reshape(2, 4), [0, 1])
    assert math.isnan(alone[1])
    assert "one point" in str(alone.reasons[1])
    scores = numpy_generator(0, "some").normal(size=(6, 4))
    scores[:, 0] = 0.3
    asked = fold_profile(scores, [0] * 6, at=0)
    assert all(map(math.isnan, asked))
    assert asked.reasons[0] is not None
    assert asked.reasons[0].startswith("the orthants asked for have scores that are the same")
    partner = fold_profile(scores, [0] * 6, at=3)
    assert [math.isnan(entry) for entry in partner] == [False, False, True]
    assert partner.reasons[:2] == (None, None)
    assert str(partner.reasons[2]).startswith("orthants 2 signs away have scores that are the same")


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ((np.zeros((3, 6)), [0, 0, 0]), UsageError, r"shape \(3, 6\); expected \(points, 2\^d\)"),
        ((np.zeros((3, 1)), [0, 0, 0]), UsageError, r"2\^d"),
        ((np.zeros((1, 4)), [0]), UsageError, "at least two points"),
        ((np.zeros((3, 4)), [0, 0]), UsageError, "got 2 strata for 3 base points"),
        ((np.zeros((3, 4)), [0, 0, 0], 4), UsageError, "at=4; expected distinct orthant numbers from 0 to 3"),
        ((np.zeros((3, 4)), [0, 0, 0], -1), UsageError, "distinct orthant numbers"),
        ((np.zeros((3, 4)), [0, 0, 0], [1, 1]), UsageError, "distinct orthant numbers"),
        ((np.zeros((3, 4)), [0, 0, 0], []), UsageError, "distinct orthant numbers"),
        pytest.param(
            (np.zeros((3, 4)), [0, 0, 0], 1.5),
            UsageError,
            "whole number|distinct orthant numbers",
            marks=pytest.mark.wrong_type,
        ),
        ((np.full((3, 4), np.nan), [0, 0, 0]), NumericalError, "NaN or infinite"),
        ((np.zeros((3, 4)), [0, 0, np.nan]), NumericalError, "got strata with 1 NaN"),
    ],
)
def test_refusals(arguments: tuple[object, ...], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        fold_profile(*arguments)
