"""Training where the NTK is singular, steps that diverge, and questions that have no answer."""

from __future__ import annotations

import math
import warnings
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from ntkscope.core import NumericalError, UsageError
from ntkscope.infinite import dynamics, kernel_regression
from ntkscope.linalg import NumericalWarning


def twice(seed: int, n: int = 6, dtype: torch.dtype = torch.float64) -> tuple[Tensor, Tensor, Tensor]:
    """The kernel of inputs of which some came twice, that of three others with them, and labels that contradict each other."""
    random = torch.Generator().manual_seed(seed)
    x = torch.randn(n, 3, generator=random, dtype=torch.float64)
    x = torch.cat([x[: n // 2], x])
    other = torch.randn(3, 3, generator=random, dtype=torch.float64)
    y = torch.randn(len(x), 2, generator=random, dtype=torch.float64)
    return (x @ x.T / 3).exp().to(dtype), (other @ x.T / 3).exp().to(dtype), y


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_nothing_is_learned_through_rounding(seed: int, dtype: torch.dtype) -> None:
    """The end of training is the pseudo-inverse's, at the training inputs, elsewhere, and at any late time."""
    theta, cross, y = twice(seed, dtype=dtype)
    training = dynamics(theta, y, loss="half-sum")
    assert training.zeros == 3
    assert not training.eigenvalues[:3].any()
    inverse = torch.from_numpy(np.linalg.pinv(theta.double().numpy(), rcond=1e-6, hermitian=True))
    near = 1e-8 if dtype == torch.float64 else 1e-4
    for time in (math.inf, 1e20, 1e300):
        assert_close(training.predict(time=time).mean, theta.double() @ inverse @ y, rtol=0, atol=near)
        assert_close(training.predict(cross, time).mean, cross.double() @ inverse @ y, rtol=0, atol=near)
    assert torch.isinf(training.time_to_learn()[:3]).all()
    assert bool((training.time_to_learn() > 0).all())
    with pytest.warns(NumericalWarning, match="pseudo-inverse"):
        assert_close(kernel_regression(theta, y, cross), cross.double() @ inverse @ y, rtol=0, atol=near)


@pytest.mark.parametrize("seed", range(4))
def test_finite_times_against_the_equation(seed: int) -> None:
    """Euler's steps of the flow, and the steps themselves, on a singular kernel."""
    theta, cross, y = twice(seed)
    step, times = 1e-3, 400
    f, g = torch.zeros_like(y), torch.zeros(3, 2).double()
    for _ in range(times):
        f, g = f - step * theta @ (f - y), g - step * cross @ (f - y)
    training = dynamics(theta, y, loss="half-sum", step=step)
    assert_close(training.predict(time=times).mean, f, rtol=0, atol=1e-11)
    assert_close(training.predict(cross, times).mean, g, rtol=0, atol=1e-11)


def test_times_to_learn_of_steps() -> None:
    theta = torch.diag(torch.tensor([0.0, 1e-9, 0.5, 1.0, 2.0, 3.0]).double())
    found = dynamics(theta, torch.ones(6), loss="half-sum", step=1.0).time_to_learn(0.01)
    assert math.isinf(found[0])
    assert float(found[1]) == pytest.approx(math.log(0.01) / math.log1p(-1e-9))
    assert float(found[2]) == pytest.approx(math.log(0.01) / math.log(0.5))
    assert math.isinf(found[4])  # swings for ever
    assert math.isinf(found[5])  # diverges


def test_many_steps() -> None:
    training = dynamics(torch.diag(torch.tensor([1.9, 0.5]).double()), torch.ones(2), loss="half-sum", step=1.0)
    assert float(training.decay(3)[1]) == pytest.approx((1 - 1.9) ** 3)
    assert float(training.decay(10**15)[0]) == 0
    with pytest.raises(NumericalError, match="range of numbers"):
        dynamics(torch.eye(2).double(), torch.ones(2), loss="half-sum", step=5.0).predict(time=10_000)


def test_no_kernel_is_said() -> None:
    with pytest.warns(NumericalWarning, match="1 negative"):
        training = dynamics(torch.diag(torch.tensor([1.0, -0.5])), torch.ones(2))
    assert training.zeros == 1


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"time": -1.0}, "time=-1"),
        ({"time": math.nan}, "time=nan"),
        ({"start": torch.zeros(9, 2)}, "got start alone"),
        ({"start_test": torch.zeros(3, 2)}, "got start_test alone"),
        ({"start": torch.zeros(2, 9), "start_test": torch.zeros(3, 2)}, "start of shape"),
        ({"nngp_test": torch.eye(3)}, "without nngp"),
    ],
)
def test_questions_without_an_answer(options: dict[str, Any], said: str) -> None:
    theta, cross, y = twice(0)
    with pytest.raises(UsageError, match=said):
        dynamics(theta, y).predict(cross, **options)


def test_other_refusals() -> None:
    theta, cross, y = twice(0)
    with pytest.raises(UsageError, match="test_train of shape"):
        dynamics(theta, y).predict(cross.T)
    with pytest.raises(UsageError, match="without test_train"):
        dynamics(theta, y).predict(start_test=y)
    for step in (0.0, -1.0, math.inf):
        with pytest.raises(UsageError, match="step="):
            dynamics(theta, y, step=step)
    with pytest.raises(NumericalError, match="NaN"):
        dynamics(theta, y * math.nan)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        dynamics(theta, y)
