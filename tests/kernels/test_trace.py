"""The exact tangent kernels: all pairs of outputs, their trace and its cosine, their sum."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn

import ntkscope as ns
from contracts.kernel import KernelContract, everywhere, perceptron, seeded
from oracles.closeness import assert_kernel_close
from strategies.networks import Case, noise


class TestTrace(KernelContract):
    name = "trntk0"

    @everywhere
    def test_it_is_the_trace_of_the_blocks(self, case: Callable[[], Case]) -> None:
        model, x = seeded(case)
        blocks = ns.kernel("entk", model, x).blocks()
        assert_kernel_close(self.compute(model, x).dense(), blocks.diagonal(dim1=2, dim2=3).sum(-1), 1e-12)

    @everywhere
    def test_contributions_of_parameters(self, case: Callable[[], Case]) -> None:
        model, x = seeded(case)
        gram = self.compute(model, x, x[:3], per_layer=True)
        assert set(gram.contributions) == {name for name, _ in model.named_parameters()}
        for name, part in gram.contributions.items():
            assert part.shape == (len(x), 3)
            assert_kernel_close(part, self.expected(model, x, x[:3], params=name))
        assert_kernel_close(sum(gram.contributions.values(), torch.zeros(())), gram.dense(), 1e-12)

    def test_it_is_a_sum_not_a_mean(self) -> None:
        x = noise(4, 3)
        gram = ns.kernel("trntk0", nn.Linear(3, 5).double(), x)
        assert_kernel_close(gram.dense(), 5 * (x @ x.T + 1), 1e-14)


class TestCosine(KernelContract):
    name = "trntk"

    @everywhere
    def test_its_diagonal_is_exactly_one(self, case: Callable[[], Case]) -> None:
        model, x = seeded(case)
        for dtype in (torch.float64, torch.float32):
            gram = self.compute(model.to(dtype), x.to(dtype) if x.is_floating_point() else x)
            assert torch.equal(gram.dense().diagonal(), torch.ones(len(x), dtype=gram.dtype))
            assert torch.equal(gram.diagonal(), torch.ones(len(x), dtype=gram.dtype))

    @everywhere
    def test_it_is_the_normalised_trace(self, case: Callable[[], Case]) -> None:
        model, x = seeded(case)
        assert_kernel_close(self.compute(model, x).dense(), ns.kernel("trntk0", model, x).normalized().dense(), 1e-12)


class TestEntk(KernelContract):
    name = "entk"

    def test_blocks(self) -> None:
        model, x = seeded(perceptron)
        gram = self.compute(model, x, x[:2])
        blocks = gram.blocks()
        assert blocks.shape == (5, 2, 3, 3)
        for i, j, k, h in [(0, 1, 2, 0), (4, 0, 1, 1), (3, 1, 0, 2)]:
            assert blocks[i, j, k, h] == gram.dense()[i * 3 + k, j * 3 + h]


def test_the_blocks_of_one_linear_layer() -> None:
    """⟨g_k(x), g_l(x')⟩ = δ_kl (x·x' + 1) for f(x) = W x + b."""
    x = noise(4, 3)
    gram = ns.kernel("entk", nn.Linear(3, 2).double(), x)
    assert_kernel_close(gram.dense(), torch.kron(x @ x.T + 1, torch.eye(2, dtype=torch.float64)), 1e-14)


class TestPseudo(KernelContract):
    name = "pntk"

    @everywhere
    def test_it_is_the_sum_of_the_blocks_over_the_outputs(self, case: Callable[[], Case]) -> None:
        model, x = seeded(case)
        gram = ns.kernel("entk", model, x)
        blocks = gram.blocks().sum((2, 3)) / gram.outputs
        assert_kernel_close(self.compute(model, x).dense(), blocks, 1e-12)

    def test_contributions_of_parameters(self) -> None:
        model, x = seeded(perceptron)
        gram = self.compute(model, x, per_layer=True)
        assert_kernel_close(sum(gram.contributions.values(), torch.zeros(())), gram.dense(), 1e-12)


def test_the_sum_of_one_linear_layer() -> None:
    """⟨Σ_c g_c(x), Σ_c g_c(x')⟩ / C = x·x' + 1 for f(x) = W x + b, whatever C is."""
    x = noise(4, 3)
    for classes in (1, 4):
        gram = ns.kernel("pntk", nn.Linear(3, classes).double(), x)
        assert_kernel_close(gram.dense(), x @ x.T + 1, 1e-14)
