"""Covariances of every activation against the error they state: variances from 1e-6 to 1e8, correlations to 1 − 1e-12."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache

import mpmath
import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from ntkscope import infinite
from ntkscope.core import NumericalError, UsageError
from ntkscope.infinite import Activation, Dense, Erf, Gelu, LeakyRelu, Relu, serial
from ntkscope.infinite.layer import Nonlinearity
from ntkscope.infinite.precise import gap
from ntkscope.infinite.rules import Abs, Rbf, Sin
from oracles.gaussian_pairs import by_mpmath, pair_mean, second_moment

VARIANCES = [(1e-6, 1e-6), (1.0, 1.0), (30.0, 2.0), (2e4, 2e4), (1e8, 1e8), (1e-6, 1e8), (1e4, 1e8)]
APART = [1.0, 0.5, 0.05, 1e-3, 1e-6, 1e-9, 1e-12]
POINTS = [(q1, q2, sign * (1 - apart)) for q1, q2 in VARIANCES for apart in APART for sign in (1.0, -1.0)]
CLOSED = [Relu(), LeakyRelu(0.2), Abs(), Erf(), Gelu(), Sin(), Sin(0.01, 0.4), Sin(1e-4, 1.7), Rbf(1e-8)]


def double(*values: float) -> list[Tensor]:
    return [torch.tensor([value], dtype=torch.float64) for value in values]


def both(layer: Nonlinearity, cov: float, q1: float, q2: float) -> tuple[float, float]:
    one, first, second = double(cov, q1, q2)
    values, slopes = layer.covariances(one, first, second, True)
    assert slopes is not None
    return float(values), float(slopes)


@pytest.mark.parametrize("layer", CLOSED, ids=repr)
def test_closed_forms_against_50_digits(layer: Nonlinearity) -> None:
    with mpmath.workdps(50):
        for q1, q2, rho in POINTS:
            cov = rho * math.sqrt(q1 * q2)
            cov = math.copysign(min(abs(cov), math.nextafter(math.sqrt(q1 * q2), 0)), cov)
            numbers = [np.array([mpmath.mpf(value)], dtype=object) for value in (cov, q1, q2)]
            expected = [float(value[0]) for value in layer.exact(*numbers)]
            sizes = [
                math.sqrt(float(layer.moments(double(q1)[0], True)[k]) * float(layer.moments(double(q2)[0], True)[k]))
                for k in (0, 1)
            ]
            for derivative, (a, b, size) in enumerate(zip(both(layer, cov, q1, q2), expected, sizes)):
                bound = max(layer.error(q1, bool(derivative)), layer.error(q2, bool(derivative)))
                assert abs(a - b) <= bound * size, (q1, q2, rho, derivative, a, b)


@dataclass(frozen=True)
class Case:
    """A function of PyTorch, the same in NumPy with its derivative, and where they change quickly."""

    fn: Callable[[Tensor], Tensor]
    f: Callable[[np.ndarray], np.ndarray]
    slope: Callable[[np.ndarray], np.ndarray]
    places: tuple[float, ...] = (0.0,)
    may_refuse: bool = False
    """So steep that rounding of its argument may be felt: refused then, with the accuracy that was reached."""


def sigmoid(x: np.ndarray) -> np.ndarray:
    e = np.exp(-np.abs(x))
    return np.where(x > 0, 1, e) / (1 + e)


def bell(x: np.ndarray) -> np.ndarray:
    e = np.exp(-np.abs(x))
    return e / (1 + e) ** 2


def negative(x: np.ndarray) -> np.ndarray:
    return np.minimum(x, 0)


SELU = 1.0507009873554804934193349852946, 1.6732632423543772848170429916717
CASES = {
    "tanh": Case(nn.Tanh(), np.tanh, lambda x: 4 * bell(2 * x)),
    "sigmoid": Case(nn.Sigmoid(), sigmoid, bell),
    "silu": Case(nn.SiLU(inplace=True), lambda x: x * sigmoid(x), lambda x: sigmoid(x) + x * bell(x)),
    "softplus": Case(
        nn.Softplus(),
        lambda x: np.where(x > 20, x, np.maximum(x, 0) + np.log1p(np.exp(-np.abs(x)))),
        lambda x: np.where(x > 20, 1, sigmoid(x)),
    ),
    "elu": Case(nn.ELU(), lambda x: np.where(x > 0, x, np.expm1(negative(x))), lambda x: np.exp(negative(x))),
    "selu": Case(
        nn.SELU(),
        lambda x: SELU[0] * np.where(x > 0, x, SELU[1] * np.expm1(negative(x))),
        lambda x: SELU[0] * np.where(x > 0, 1, SELU[1] * np.exp(negative(x))),
    ),
    "hardtanh": Case(nn.Hardtanh(), lambda x: np.clip(x, -1, 1), lambda x: (np.abs(x) < 1) * 1.0, (-1.0, 1.0)),
    "softsign": Case(nn.Softsign(), lambda x: x / (1 + np.abs(x)), lambda x: 1 / (1 + np.abs(x)) ** 2),
    "log-sigmoid": Case(nn.LogSigmoid(), lambda x: negative(x) - np.log1p(np.exp(-np.abs(x))), lambda x: sigmoid(-x)),
    "step": Case(lambda z: (z > 0.3).double(), lambda x: (x > 0.3) * 1.0, lambda x: 0 * x, (0.3,)),
    "steep": Case(
        lambda z: torch.sigmoid(50 * (z - 1)),
        lambda x: sigmoid(50 * (x - 1)),
        lambda x: 50 * bell(50 * (x - 1)),
        (1.0,),
    ),
    "very steep": Case(
        lambda z: torch.tanh(100 * z), lambda x: np.tanh(100 * x), lambda x: 400 * bell(200 * x), may_refuse=True
    ),
    "relu by quadrature": Case(torch.relu, lambda x: np.maximum(x, 0), lambda x: (x > 0) * 1.0),
    "kinked twice": Case(
        lambda z: functional.relu6(z + 2) - 2,
        lambda x: np.clip(x, -2, 4),
        lambda x: ((x > -2) & (x < 4)) * 1.0,
        (-2.0, 4.0),
    ),
}


def check(case: Case, points: list[tuple[float, float, float]]) -> None:
    """Every covariance and its slope is within the stated bound."""
    layer = Activation(case.fn)
    stated = lru_cache(layer.error)
    for q1, q2, rho in points:
        cov = math.copysign(min(abs(rho) * math.sqrt(q1 * q2), math.nextafter(math.sqrt(q1 * q2), 0)), rho)
        try:
            pair = both(layer, cov, q1, q2)
        except NumericalError:
            if not case.may_refuse:
                raise
            continue
        for derivative, found in enumerate(pair):
            f = case.slope if derivative else case.f
            expected = pair_mean(f, cov, q1, q2, case.places)
            size = math.sqrt(second_moment(f, q1, case.places) * second_moment(f, q2, case.places))
            bound = max(stated(q1, bool(derivative)), stated(q2, bool(derivative)))
            assert abs(found - expected) <= bound * size, (q1, q2, rho, derivative, found, expected, size)


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.guard, pytest.mark.nightly][k % 2]) for k, name in enumerate(CASES)]
)
def test_quadrature_is_within_its_stated_error(name: str) -> None:
    hardest = [(2e4, 2e4, 1 - 1e-3), (1e8, 1e8, 1 - 1e-12), (1e8, 1e8, -(1 - 1e-9))]
    check(CASES[name], [*hardest, *random.Random(name).sample(POINTS, 3)])


def test_the_check_can_fail() -> None:
    wrong = Case(lambda z: torch.tanh(1.0001 * z), CASES["tanh"].f, CASES["tanh"].slope)
    with pytest.raises(AssertionError):
        check(wrong, [(1.0, 1.0, 0.5)])


@pytest.mark.guard
@pytest.mark.nightly
@pytest.mark.long
def test_the_oracle_agrees_with_mpmath() -> None:
    assert by_mpmath(mpmath.tanh, 0.999e4, 1e4, 1e4) == pytest.approx(pair_mean(np.tanh, 0.999e4, 1e4, 1e4), rel=1e-12)
    relu = Relu()
    with mpmath.workdps(50):
        for q1, q2, rho in random.Random(0).sample(POINTS, 12):
            cov = rho * math.sqrt(q1 * q2)
            numbers = [np.array([mpmath.mpf(value)], dtype=object) for value in (cov, q1, q2)]
            expected = float(relu.exact(*numbers)[0][0])
            found = pair_mean(lambda x: np.maximum(x, 0), cov, q1, q2)
            assert found == pytest.approx(expected, rel=1e-10, abs=1e-14 * math.sqrt(q1 * q2))


def test_what_quadrature_cannot_resolve_is_refused_with_what_it_reached() -> None:
    x = torch.eye(3, dtype=torch.float64) * 1e4
    with pytest.raises(
        NumericalError, match=r"variance 3.33333e\+07, correlation 1, is known to .* only; expected 1e-10"
    ):
        infinite.kernel(serial(Dense(), Activation(torch.sin), Dense()), x)
    with pytest.raises(NumericalError, match="known to"):
        infinite.boolean_cube(serial(Dense(), Activation(functional.hardtanh), Dense()), 5)


def test_gradients_where_the_series_does_not_do_are_refused() -> None:
    x = (torch.eye(3, dtype=torch.float64) + 10).requires_grad_(True)
    with pytest.raises(UsageError, match="gradients of Activation"):
        infinite.kernel(serial(Dense(5.0), Activation(functional.hardtanh), Dense()), x)


@pytest.mark.parametrize("fn", [lambda z: z - z.mean(), lambda z: torch.softmax(z, -1), lambda z: z.sum()])
def test_a_function_of_several_numbers_is_refused(fn: Callable[[Tensor], Tensor]) -> None:
    with pytest.raises(UsageError, match="not a function of each number alone"):
        infinite.kernel(serial(Dense(), Activation(fn), Dense()), torch.eye(2, dtype=torch.float64))


def test_functions_of_one_name_are_told_apart() -> None:
    """A kernel on disk is found again by how its network is written."""
    one, two = Activation(lambda z: z), Activation(lambda z: 2 * z)
    assert repr(one) != repr(two)
    assert repr(Dense(1.0)) != repr(Dense(1.0 + 1e-12))
    assert repr(Dense()) != repr(Dense(train_weight=False))


def test_differences_of_products_are_exact() -> None:
    draw = torch.Generator().manual_seed(0)
    q1, q2 = (torch.rand(50, generator=draw, dtype=torch.float64) * 10.0 ** (k % 9) for k in (1, 8))
    cov = (q1 * q2).sqrt() * (1 - 1e-13 * torch.rand(50, generator=draw, dtype=torch.float64))
    with mpmath.workdps(60):
        for c, a, b, found in zip(*(t.tolist() for t in (cov, q1, q2, gap(cov, q1, q2)))):
            expected = max(mpmath.mpf(0), mpmath.mpf(a) * mpmath.mpf(b) - mpmath.mpf(c) ** 2)
            assert abs(found - expected) <= mpmath.mpf(4e-16) * expected + mpmath.mpf(2.0) ** -104 * a * b


HIDDEN = 3
NET = serial(*[layer for _ in range(HIDDEN) for layer in (Dense(2**0.5, 0.1), Relu())], Dense(1.0, 0.1))


def by_hand(x: Tensor, y: Tensor) -> mpmath.mpf:
    """The NTK of `NET` in mpmath's working precision."""
    a, b = ([mpmath.mpf(v) for v in side.tolist()] for side in (x, y))
    cov, q1, q2 = (mpmath.fdot(u, v) / len(a) for u, v in ((a, b), (a, a), (b, b)))
    ntk, bias = mpmath.mpf(0), mpmath.mpf(0.1) ** 2
    for layer in range(HIDDEN + 1):
        scale = mpmath.mpf(2**0.5) ** 2 if layer < HIDDEN else mpmath.mpf(1)
        cov, q1, q2 = (scale * v + bias for v in (cov, q1, q2))
        ntk = scale * ntk + cov
        if layer < HIDDEN:
            norm = mpmath.sqrt(q1 * q2)
            cosine = min(cov / norm, mpmath.mpf(1))
            rest = mpmath.pi - mpmath.acos(cosine)
            cov = norm * (mpmath.sqrt(1 - cosine**2) + rest * cosine) / (2 * mpmath.pi)
            ntk, q1, q2 = ntk * rest / (2 * mpmath.pi), q1 / 2, q2 / 2
    return ntk


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("distance", "double", "single"),
    [(1.0, 3e-14, 2e-6), (1e-3, 2e-11, 7e-4), (1e-5, 1e-7, 1e-5), (1e-7, 1e-7, 1e-5), (0.0, 1e-15, 5e-7)],
)
def test_the_stated_errors(distance: float, double: float, single: float) -> None:
    draw = torch.Generator().manual_seed(0)
    x = torch.randn(3, 784, generator=draw, dtype=torch.float64)
    y = x + distance * torch.randn(3, 784, generator=draw, dtype=torch.float64)
    with mpmath.workdps(60):
        expected = [by_hand(a, b) for a, b in zip(x, y)]
        for dtype, allowed in ((torch.float64, double), (torch.float32, single)):
            found = infinite.kernel(NET, x, y, dtype=dtype).dense().diagonal().tolist()
            assert max(float(abs(f / e - 1)) for f, e in zip(found, expected)) < allowed
