"""The kernel of all output pairs."""

from __future__ import annotations

import torch
from torch import nn

import ntkscope as ns
from contracts.kernel import KernelContract, perceptron, seeded
from oracles.closeness import assert_kernel_close
from strategies.networks import noise


class TestEntk(KernelContract):
    name = "entk"

    def test_blocks(self) -> None:
        model, x = seeded(perceptron)
        gram = self.compute(model, x, x[:2])
        blocks = gram.blocks()
        assert blocks.shape == (5, 2, 3, 3)
        for i, j, k, h in [(0, 1, 2, 0), (4, 0, 1, 1), (3, 1, 0, 2)]:
            assert blocks[i, j, k, h] == gram.dense()[i * 3 + k, j * 3 + h]


def test_one_linear_layer() -> None:
    """⟨g_k(x), g_l(x')⟩ = δ_kl (x·x' + 1) for f(x) = W x + b."""
    x = noise(4, 3)
    gram = ns.kernel("entk", nn.Linear(3, 2).double(), x)
    assert_kernel_close(gram.dense(), torch.kron(x @ x.T + 1, torch.eye(2, dtype=torch.float64)), 1e-14)
