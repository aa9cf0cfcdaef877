"""The trace kernels: the sum over outputs and its cosine."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn

import ntkscope as ns
from contracts.kernel import KernelContract, everywhere, seeded
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
