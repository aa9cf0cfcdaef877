"""Functions and boundaries on nested grids: nodes, trapezoid weights, labels."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from contracts.dataset import DatasetContract, given
from ntkscope.core import Split, UsageError
from ntkscope_papers.qadeer_2023.grids import logistic_boundary, target_function, trapezoid_weights

FUNCTIONS = {
    "f1": lambda x: np.exp(np.sin(2 * np.pi * x)),
    "f2": lambda x: np.exp(3 * x),
    "f3": lambda x: np.cos(np.exp(3 * x)),
}


class TestTargetFunction(DatasetContract):
    """The paper's setting (ledger conjugate-regression-setting): N = 200, M = 600 on [-1, 1]."""

    name = "target-function"
    loader = staticmethod(lambda seed, **options: target_function("f1", **options))
    random = False
    item_shape = (1,)
    sizes = given(train=201, test=601)
    value_range = (-1.0, 1.0)

    def check_defining_property(self, split: Split) -> None:
        assert torch.equal(split.test.x[::3], split.train.x)  # nested: y_{τj} = x_j, bit for bit
        assert torch.equal(split.test.y[::3], split.train.y)
        torch.testing.assert_close(split.train.x[:, 0], torch.linspace(-1, 1, 201))
        for part, step in ((split.train, 0.01), (split.test, 1 / 300)):
            weights = part.extras["weights"]
            torch.testing.assert_close(weights[1:-1], torch.full((len(part) - 2,), step))
            torch.testing.assert_close(weights[[0, -1]], torch.full((2,), step / 2))


@pytest.mark.parametrize("function", FUNCTIONS)
def test_values(function: str) -> None:
    split = target_function(function, dtype="float64")
    for part in (split.train, split.test):
        np.testing.assert_allclose(part.y.numpy(), FUNCTIONS[function](part.x[:, 0].numpy()), rtol=1e-14, atol=1e-14)


def test_weights_integrate_linear_functions_exactly() -> None:
    x, weights = torch.linspace(-3, 5, 8, dtype=torch.float64), trapezoid_weights((-3, 5), 7)
    assert abs(float(weights.sum()) - 8) < 1e-13
    assert abs(float((weights * (2 * x + 1)).sum()) - (25 - 9 + 8)) < 1e-12


class TestF1(DatasetContract):
    """Ledger conjugate-logistic-grids: 96 and 506 points, class-1 shares 0.552 and 0.540, no point on the boundary."""

    name = "logistic-boundary"
    loader = staticmethod(lambda seed, name="F1", **options: logistic_boundary(name, **options))
    random = False
    item_shape = (2,)
    classes = 2
    sizes = given(train=96, test=506)
    value_range = (-1.0, 1.0)
    balance = 0.06
    shares = (0.552, 0.540)

    def values(self, x: torch.Tensor) -> torch.Tensor:
        return 4 * x[:, 0] ** 2 - 3 * x[:, 0] + 5 * x[:, 1] - 1

    def check_defining_property(self, split: Split) -> None:
        for part, share in zip((split.train, split.test), self.shares, strict=True):
            f = self.values(part.x.double())
            assert torch.equal((f.sign() + 1) / 2, part.y.double())
            torch.testing.assert_close(f.float(), part.extras["boundary"], atol=1e-5, rtol=1e-5)
            assert abs(float(part.y.double().mean()) - share) < 5e-4
        assert 0.019 < float(split.train.extras["boundary"].abs().min()) < 0.021
        assert torch.equal(split.test.x.reshape(23, 22, 2)[::2, ::3].reshape(-1, 2), split.train.x)


class TestF2(TestF1):
    options = given(name="F2")
    shares = (0.479, 0.494)

    def values(self, x: torch.Tensor) -> torch.Tensor:
        return 2 * x[:, 0] ** 3 - 0.6 * x[:, 0] ** 2 - 1.94 * x[:, 0] + x[:, 1] + 0.2


def test_what_has_no_values_or_labels_is_refused() -> None:
    with pytest.raises(UsageError, match="expected one of 'f1', 'f2', 'f3'"):
        target_function("f4")
    with pytest.raises(UsageError, match="expected one of 'F1', 'F2'"):
        logistic_boundary("F3")
    with pytest.raises(UsageError, match=r"node \(1.0, 0.0\), which then has no label"):
        logistic_boundary("F1", intervals=(11, 8))
