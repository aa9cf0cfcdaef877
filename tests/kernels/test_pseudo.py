"""The pseudo kernel: the gradient of the summed outputs, with the factor 1/C."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn

import ntkscope as ns
from contracts.kernel import KernelContract, everywhere, perceptron, seeded
from oracles.closeness import assert_kernel_close
from strategies.networks import Case, noise


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


def test_one_linear_layer() -> None:
    """⟨Σ_c g_c(x), Σ_c g_c(x')⟩ / C = x·x' + 1 for f(x) = W x + b, whatever C is."""
    x = noise(4, 3)
    for classes in (1, 4):
        gram = ns.kernel("pntk", nn.Linear(3, classes).double(), x)
        assert_kernel_close(gram.dense(), x @ x.T + 1, 1e-14)
