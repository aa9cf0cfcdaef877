"""Error bars of the effective rank: three of them cover it in 99 of 100 draws, whatever the decay of the spectrum."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from ntkscope.linalg import as_gram, entropy_rank, estimate_effective_rank
from ntkscope.linalg.spectra.rank_estimate import _rules

SPECTRA = {
    "exponential": lambda i: torch.exp(-i / 8),
    "steep exponential": lambda i: torch.exp(-i / 3),
    "slow exponential": lambda i: torch.exp(-i / 40),
    "power law": lambda i: i**-1.5,
    "steep power law": lambda i: i**-3.0,
    "flat": lambda i: 1 + 0.5 * torch.sin(i),
}


def kernel(name: str, seed: int, n: int = 160) -> tuple[Tensor, Tensor]:
    values = SPECTRA[name](torch.arange(1, n + 1, dtype=torch.float64))
    random = torch.Generator().manual_seed(seed)
    basis = torch.linalg.qr(torch.randn(n, n, generator=random, dtype=torch.float64)).Q
    matrix = (basis * values) @ basis.T
    return (matrix + matrix.T) / 2, values


def misses(name: str, of: str, seeds: range) -> int:
    count = 0
    for seed in seeds:
        matrix, values = kernel(name, seed)
        found = estimate_effective_rank(as_gram(matrix), of, seed=seed)
        exact = entropy_rank(values.sqrt() if of == "features" else values)
        count += abs(found.value - exact) > 3 * found.standard_error
    return count


@pytest.mark.parametrize("name", SPECTRA)
def test_a_few_draws(name: str) -> None:
    assert misses(name, "features", range(2)) == 0


@pytest.mark.nightly
@pytest.mark.parametrize("name", ["exponential", "steep exponential", "power law", "flat"])
def test_three_hundred_draws(name: str) -> None:
    assert misses(name, "features", range(300)) <= 3


def test_the_two_rules_enclose_the_sum() -> None:
    """Gauss above and Radau below for a root, the other way round for `√x log x`, on every probe."""
    matrix, _ = kernel("exponential", 0)
    start = torch.randn(160, 5, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    (nodes, weights), (radau, others) = _rules(matrix, start, 12)
    eigenvalues, vectors = torch.linalg.eigh(matrix)
    shares = (vectors.T @ (start / start.norm(dim=0))).square().T
    for f, sign in ((torch.sqrt, 1), (lambda x: x.sqrt() * x.clamp_min(1e-300).log(), -1)):
        exact = (shares * f(eigenvalues.clamp_min(0))).sum(1)
        gauss = (weights * f(nodes.clamp_min(0))).sum(1)
        other = (others * f(radau.clamp_min(0))).sum(1)
        assert bool((sign * (gauss - exact) >= -1e-12).all())
        assert bool((sign * (exact - other) >= -1e-12).all())
