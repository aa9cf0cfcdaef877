"""The spike after one step, against the step itself on drawn networks."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from ntkscope_papers.wang_2023.one_step import OneStepSetting, one_step_spike, one_step_threshold

SLOPE = 0.8  # of σ(z) = 0.8 z, whose gradient has rank one exactly
SIZES = (800, 600, 400)  # n, h, d
TABLE_8 = OneStepSetting(2000, 1500, 1000, slope=0.964609, linear=0.959563, second=1.09)


def linear_step(lr: float, seed: int, *, kept: bool) -> tuple[float, float, OneStepSetting]:
    """λ₁ and |β·u₁| after one step of a network with σ(z) = 0.8 z on y = 0.9 β·x + noise, by hand in float64."""
    n, h, d = SIZES
    draw = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=draw, dtype=torch.float64)

    W, v, x, beta = normal(h, d), normal(h), normal(n, d), normal(d)
    beta /= beta.norm()
    y = 0.9 * x @ beta + 0.5 * normal(n)
    outputs = SLOPE * (x @ W.T / math.sqrt(d)) @ v / math.sqrt(h)
    residual = y - outputs if kept else y
    gradient = -torch.outer(SLOPE * v, residual @ x) / (n * math.sqrt(h * d))
    stepped = W - lr * gradient
    values, vectors = torch.linalg.eigh(stepped.T @ stepped / d)
    linear, second, readout = (float(each.mean()) for each in (y * (x @ beta), y.square(), v.square()))
    start = float(outputs.square().mean()) if kept else 0.0
    setting = OneStepSetting(n, h, d, SLOPE, linear, second, readout, start)
    return float(values[-1]), float((vectors[:, -1] @ beta).abs()), setting


@pytest.mark.parametrize("kept", [False, True])
@pytest.mark.parametrize("multiple", [1.7, 3.0])
def test_it_says_what_a_step_does(multiple: float, kept: bool) -> None:
    *_, setting = linear_step(0.0, 0, kept=kept)
    lr = multiple * one_step_threshold(setting)
    value, alignment, _ = linear_step(lr, 0, kept=kept)
    found = one_step_spike(lr, setting)
    # 400 dimensions: deviations of order 1/√400, of a row of W against the labels too where f₀ is kept
    assert found.value == pytest.approx(value, rel=0.12 if kept else 0.06)
    assert found.alignment == pytest.approx(alignment, abs=0.06)


def test_the_naive_formula_overshoots_where_the_network_starts_away_from_zero() -> None:
    *_, setting = linear_step(0.0, 1, kept=True)
    lr = 1.7 * one_step_threshold(replace(setting, start=0.0))
    value, _, _ = linear_step(lr, 1, kept=True)
    assert one_step_spike(lr, setting, naive=True).value > 1.15 * value
    assert one_step_spike(lr, setting).value == pytest.approx(value, rel=0.12)


def test_below_the_threshold_nothing_leaves_the_bulk() -> None:
    *_, setting = linear_step(0.0, 2, kept=False)
    lr = 0.6 * one_step_threshold(setting)
    value, alignment, _ = linear_step(lr, 2, kept=False)
    found = one_step_spike(lr, setting)
    assert not found.spike
    assert found.value == pytest.approx((1 + math.sqrt(SIZES[1] / SIZES[2])) ** 2)
    assert value == pytest.approx(found.value, rel=0.03)
    assert alignment < 0.25


def test_table_8_has_its_threshold_near_930() -> None:
    assert one_step_threshold(TABLE_8) == pytest.approx(930, rel=0.025)
    assert one_step_threshold(replace(TABLE_8, readout=1.04)) == pytest.approx(930, rel=0.003)  # one network's ‖v‖²/h


@settings(max_examples=30)
@given(
    st.integers(50, 5000),
    st.integers(50, 5000),
    st.integers(50, 5000),
    st.floats(0.1, 2),
    st.floats(0.05, 1),
    st.floats(0.2, 4),
    st.sampled_from([0.0, 1.0]),
)
def test_the_threshold_is_where_the_spike_begins(
    n: int, h: int, d: int, slope: float, share: float, second: float, start: float
) -> None:
    setting = OneStepSetting(n, h, d, slope, math.sqrt(share * second), second, 1.3, start)
    limit = one_step_threshold(setting)
    assert one_step_spike(1.001 * limit, setting).spike
    assert not one_step_spike(0.999 * limit, setting).spike
    assert one_step_spike(limit, setting).strength == pytest.approx(math.sqrt(h / d), rel=1e-9)
    for lr in (1.2 * limit, 5 * limit):
        found = one_step_spike(lr, setting)
        assert 0 < found.alignment <= 1
        assert found.value >= (1 + math.sqrt(h / d)) ** 2
    if start:
        assert one_step_threshold(setting, naive=True) < limit
