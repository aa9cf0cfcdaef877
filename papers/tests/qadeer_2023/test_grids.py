"""Functions and boundaries on nested grids: nodes, trapezoid weights, labels."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from scipy.special import iv

from contracts.dataset import DatasetContract, given
from ntkscope.core import NumericalError, Split, UsageError
from ntkscope_papers.qadeer_2023.grids import logistic_boundary, target_function, trapezoid_weights

FUNCTIONS = {
    "f1": lambda x: np.exp(np.sin(2 * np.pi * x)),
    "f2": lambda x: np.exp(3 * x),
    "f3": lambda x: np.cos(np.exp(3 * x)),
}


class TestTargetFunction(DatasetContract):
    """The paper's setting (ledger conjugate-regression-setting): N = 200, M = 600 on [-1, 1]."""

    name = "target-function"
    loader = staticmethod(target_function)
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
    split = target_function(function=function, dtype="float64")
    for part in (split.train, split.test):
        np.testing.assert_allclose(part.y.numpy(), FUNCTIONS[function](part.x[:, 0].numpy()), rtol=1e-14, atol=1e-14)


def test_weights_integrate_linear_functions_exactly() -> None:
    split = target_function(interval=(-3, 5), intervals=7, dtype="float64")
    for part in (split.train, split.test):
        x, weights = part.x[:, 0], part.extras["weights"]
        assert abs(float(weights.sum()) - 8) < 1e-13
        assert abs(float((weights * (2 * x + 1)).sum()) - (25 - 9 + 8)) < 1e-12


def test_both_forms_of_the_norm_agree() -> None:
    """Ledger conjugate-weighted-norms: Σ w g² = (h/2) Σ (g_j² + g_{j+1}²), to 1e-14."""
    g = torch.randn(201, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    weighted = (trapezoid_weights((-1, 1), 200) * g.square()).sum()
    paired = 0.01 / 2 * (g[:-1].square() + g[1:].square()).sum()
    torch.testing.assert_close(weighted, paired, rtol=1e-14, atol=0)


def test_trapezoid_order() -> None:
    """Ledger conjugate-trapezoid-order: second order for exp(3x), spectral for the periodic exp(sin 2πx)."""
    errors = []
    for intervals in (50, 100, 200):
        part = target_function(function="f2", intervals=intervals, dtype="float64").train
        exact = (np.exp(6) - np.exp(-6)) / 6
        errors.append(abs(float((part.extras["weights"] * part.y.square()).sum()) - exact))
    slopes = np.diff(np.log(errors)) / np.log(0.5)
    assert np.all((slopes > 1.9) & (slopes < 2.1))
    part = target_function(function="f1", dtype="float64").train
    # ∫ exp(2 sin 2πx) over [-1, 1] is 2 I_0(2)
    assert abs(float((part.extras["weights"] * part.y.square()).sum()) - 2 * iv(0, 2)) < 1e-12


def test_own_function() -> None:
    split = target_function(function=torch.sin, intervals=4, refinement=1)
    torch.testing.assert_close(split.train.y, split.train.x[:, 0].sin())


class TestF1(DatasetContract):
    """Ledger conjugate-logistic-grids: 96 and 506 points, class-1 shares 0.552 and 0.540, no point on the boundary."""

    name = "logistic-boundary"
    loader = staticmethod(logistic_boundary)
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

    def test_matching_property(self, split: Split) -> None:
        """Ledger conjugate-matching-property: a test label equals that of a corner of a cell the point lies in."""
        coarse, fine = split.train.y.reshape(12, 8), split.test.y.reshape(23, 22)
        for i in range(23):
            for j in range(22):
                corners = coarse[i // 2 : -(-i // 2) + 1, j // 3 : -(-j // 3) + 1]
                assert fine[i, j] in corners


class TestF2(TestF1):
    options = given(boundary="F2")
    shares = (0.479, 0.494)

    def values(self, x: torch.Tensor) -> torch.Tensor:
        return 2 * x[:, 0] ** 3 - 0.6 * x[:, 0] ** 2 - 1.94 * x[:, 0] + x[:, 1] + 0.2


@pytest.mark.parametrize(
    ("make", "options", "message"),
    [
        (target_function, {"function": "f4"}, "function='f4'; expected one of 'f1', 'f2', 'f3' or a function"),
        (target_function, {"interval": (1.0, 1.0)}, "a < b"),
        (target_function, {"intervals": 0}, "intervals=0"),
        (target_function, {"function": lambda x: x[:3]}, "expected a value each"),
        (logistic_boundary, {"boundary": "F3"}, "boundary='F3'; expected one of 'F1', 'F2' or a function"),
        (logistic_boundary, {"boundary": lambda a, b: a + b}, "has no label"),
        (logistic_boundary, {"box": ((1.0, -1.0), (-1.0, 1.0))}, "a < b"),
        (logistic_boundary, {"intervals": (11, 0)}, r"intervals\[1\]=0"),
    ],
)
def test_bad_options(make: Any, options: dict[str, object], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        make(**options)


def test_a_boundary_without_values_labels_nothing() -> None:
    with pytest.raises(NumericalError, match="values of the boundary"):
        logistic_boundary(boundary=lambda a, b: torch.sqrt(a - 0.05))
