"""The trace kernels: the sum over outputs and its cosine."""

from __future__ import annotations

from collections.abc import Callable

import pytest
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
    def test_parameters_add_up(self, case: Callable[[], Case]) -> None:
        model, x = seeded(case)
        names = [name for name, _ in model.named_parameters()]
        parts = [self.compute(model, x, params=name).dense() for name in names]
        assert_kernel_close(torch.stack(parts).sum(0), self.compute(model, x).dense(), 1e-12)

    @everywhere
    def test_contributions_of_parameters(self, case: Callable[[], Case]) -> None:
        model, x = seeded(case)
        gram = self.compute(model, x, x[:3], per_layer=True)
        assert set(gram.contributions) == {name for name, _ in model.named_parameters()}
        for name, part in gram.contributions.items():
            assert part.shape == (len(x), 3)
            assert_kernel_close(part, self.expected(model, x, x[:3], params=name))
        assert_kernel_close(sum(gram.contributions.values(), torch.zeros(())), gram.dense(), 1e-12)

    def test_outputs_add_up(self) -> None:
        model, x = seeded(perceptron)
        parts = [self.compute(model, x, outputs=[c]).dense() for c in range(3)]
        assert_kernel_close(torch.stack(parts).sum(0), self.compute(model, x).dense(), 1e-12)

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

    def test_entries_are_cosines(self) -> None:
        model, x = seeded(perceptron)
        assert float(self.compute(model, x, 3 * x[:2]).dense().abs().max()) <= 1 + 1e-12

    def test_rescaling_the_outputs_changes_nothing(self) -> None:
        """f → a f scales hidden gradients by a; with only those parameters the cosine is the same."""
        model, x = seeded(perceptron)
        expected = self.compute(model, x, params=["0.*", "3.*"]).dense()
        with torch.no_grad():
            model[5].weight.mul_(7.0)
        assert_kernel_close(self.compute(model, x, params=["0.*", "3.*"]).dense(), expected, 1e-12)


@pytest.mark.parametrize("name", ["trntk", "trntk0"])
def test_the_same_input_twice(name: str) -> None:
    model, x = seeded(perceptron)
    k = ns.kernel(name, model, x[[0, 0, 1]]).dense()
    assert_kernel_close(k[0], k[1], 1e-14)
