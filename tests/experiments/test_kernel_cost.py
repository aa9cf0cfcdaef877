"""Cost of kernels: the contract, the paper's counts, and the tail of residuals."""

from __future__ import annotations

import numpy as np
import pytest

from contracts.dataset import given
from contracts.experiment import ExperimentContract
from ntkscope.experiments.kernel_cost import BENT, carried_on, operations, residual_figures


@pytest.mark.guard
class TestKernelCost(ExperimentContract):
    name = "kernel-cost"
    tiny = given(
        train_items=60,
        epochs=1,
        batch=30,
        points=(10, 20),
        dense_points=10,
        residual_points=30,
        dim=32,
        dims=(16, 64),
        outputs=(1, 10),
        output_points=10,
        repeats=1,
    )
    timed = ("time/", "dense/", "outputs/")
    identities = ("surrogate-projection-saves-when", "surrogate-memory-factor")


@pytest.mark.parametrize(("n", "p", "saving"), [(50_000, 11_173_962, 4.9), (8_551, 109_500_000, 0.83)])
def test_the_counts_predict_what_the_ledger_found(n: int, p: int, saving: float) -> None:
    counts = operations(n, 10, p, 10_240)
    assert counts["trNTK"] / counts["proj-trNTK"] == pytest.approx(saving, rel=0.02)
    assert counts["proj-trNTK"] == 10 * counts["proj-pNTK"]
    assert counts["eNTK"] == 10 * counts["trNTK"]


def test_seconds_are_carried_on_by_what_they_are_made_of() -> None:
    n = [1000, 2000, 4000]
    assert carried_on(n, [2e-3 * k for k in n], 50_000) == pytest.approx(100)  # grows with the points
    assert carried_on(n, [3e-7 * k**2 for k in n], 50_000) == pytest.approx(750)  # with the pairs
    assert carried_on(n, [1.0, 0.9, 1.1], 50_000) > 0  # noise never makes it negative


def test_a_gaussian_tail_falls_faster_than_an_exponential_one() -> None:
    draw = np.random.default_rng(0)
    gaussian = residual_figures(draw.normal(size=200_000), 100)
    laplace = residual_figures(draw.laplace(size=200_000), 100)
    assert gaussian["std sqrt K"] == pytest.approx(10, rel=0.01)
    assert gaussian["faster"] > 1 > abs(laplace["faster"])
    assert laplace["slope"] == pytest.approx(-(2**0.5), rel=0.1)
    heavy = residual_figures(draw.standard_cauchy(size=200_000).clip(-1e3, 1e3), 100)
    assert heavy["faster"] < -0.05 or heavy["slope"] > -1


def test_a_tail_heavier_than_exponential_is_told_apart() -> None:
    random = np.random.default_rng(0)
    assert residual_figures(random.normal(size=80_000), 1)["faster"] >= BENT
    assert residual_figures(random.laplace(size=80_000), 1)["faster"] >= BENT
    assert residual_figures(random.standard_t(3, size=80_000), 1)["faster"] < BENT
    assert not residual_figures(random.normal(size=20), 1)["faster"] >= BENT  # too few to say
