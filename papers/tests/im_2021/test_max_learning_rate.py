"""Largest learning rates: the contract, bisection, the linearised model."""

from __future__ import annotations

import pytest
import torch

from contracts.dataset import given
from contracts.experiment import ExperimentContract
from ntkscope import infinite
from ntkscope.infinite import Dense
from ntkscope_papers.im_2021.max_learning_rate import AROUND, TESTED, descent, linearised, threshold


class TestMaxLearningRate(ExperimentContract):
    name = "max-learning-rate"
    tiny = given(items=16, width=32, steps=6, linear_steps=400, trials=3, seeds=1)


def test_bisection_finds_the_place_and_says_when_it_is_outside() -> None:
    assert threshold(lambda rate: rate >= 1.7, 14) == pytest.approx(1.7, rel=1e-3)
    assert threshold(lambda rate: True, 5) == AROUND[0]
    assert threshold(lambda rate: False, 5) == AROUND[1]


def test_the_linearised_model_diverges_where_it_should_for_both_losses() -> None:
    draw = torch.Generator().manual_seed(0)
    J = torch.randn(12, 40, generator=draw, dtype=torch.float64)
    y = torch.randn(12, 2, generator=draw, dtype=torch.float64)
    found = linearised(J @ J.T, y, 1500, 9)
    for loss, (below, above) in TESTED.items():
        assert found[loss]["tested"] == {str(below): False, str(above): True}
        assert found[loss]["threshold"] == pytest.approx((below + above) / 2, rel=0.01)


def test_gradient_descent_on_a_linear_network_diverges_at_one_over_the_eigenvalue() -> None:
    """f = w·x / √d: the kernel is exact, so the threshold is too."""
    draw = torch.Generator().manual_seed(1)
    x = torch.randn(8, 4, generator=draw)
    rate = infinite.max_learning_rate((x @ x.T).double() / 4).inverse
    y = x @ torch.randn(4, 1, generator=draw)  # no residual that cannot be learned
    for times, ends_above in ((0.97, False), (1.03, True)):
        model = infinite.finite(Dense(), (4,), 1, seed=0)
        losses = descent(model, x, y, times * rate, 300, until=1e6)
        assert (losses[-1] > losses[0]) == ends_above
