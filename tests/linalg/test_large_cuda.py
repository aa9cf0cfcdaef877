"""Dense solves beyond 46,340 rows on CUDA: a matrix of more than 2³¹ numbers, in place."""

from __future__ import annotations

import os

import pytest
import torch

from ntkscope.linalg import DenseGram, cholesky_solve, least_squares

ROWS = int(os.environ.get("NTKSCOPE_LARGE_ROWS", "60000"))
pytestmark = [
    pytest.mark.nightly,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA"),
]


def product(rows: int, columns: int) -> torch.Tensor:
    """A well-conditioned matrix: a product of thin random ones, plus the identity."""
    draw = torch.Generator(device="cuda").manual_seed(0)
    left = torch.randn(rows, 500, dtype=torch.float64, device="cuda", generator=draw)
    right = left if rows == columns else torch.randn(500, columns, dtype=torch.float64, device="cuda", generator=draw).T
    made = left @ right.T
    made /= 500
    made.diagonal().add_(1.0)
    return made


def gigabytes(before: int) -> float:
    return (torch.cuda.max_memory_allocated() - before) / 1e9


def test_cholesky_in_one_copy() -> None:
    K = product(ROWS, ROWS)
    x = torch.ones(ROWS, 2, dtype=torch.float64, device="cuda")
    y = K @ x
    held = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    found = cholesky_solve(DenseGram(K, symmetric=True), y)
    assert float((found.solution - x).abs().max()) < 1e-8
    assert found.residual < 1e-10
    assert gigabytes(held) < 1.15 * 8 * ROWS**2 / 1e9  # one copy, and blocks


@pytest.mark.parametrize("wide", [False, True])
def test_qr(wide: bool) -> None:
    n, p = (ROWS, ROWS + 941) if wide else (ROWS + 941, ROWS)
    A = product(n, p)
    x = A.T @ torch.ones(n, 1, dtype=torch.float64, device="cuda") / n  # in the row space: of minimum norm
    found = least_squares(A, A @ x)
    assert found.rank == ROWS
    assert found.method == "qr"
    assert float((found.solution - x).norm() / x.norm()) < 1e-8
