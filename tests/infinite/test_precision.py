"""What docs/infinite.md says about precision, against 60 digits."""

from __future__ import annotations

import mpmath
import pytest
import torch
from torch import Tensor

from ntkscope import infinite
from ntkscope.infinite import Dense, Relu, serial

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
