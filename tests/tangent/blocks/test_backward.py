"""Gradients of a block: of a parameter whose uses overlap without being the same."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from oracles.against import compare
from strategies.networks import Net, noise, parameter, randomize


@pytest.mark.parametrize("name", ["entk", "trntk0"])
def test_a_parameter_used_whole_and_in_parts(name: str) -> None:
    """Parts that overlap have gradients of their own, which are put where they belong and added."""

    def run(m: Any, x: Tensor) -> Tensor:
        whole = torch.tanh(nn.functional.linear(x, m.weight, m.bias))
        return m.head(torch.tanh(nn.functional.linear(whole, m.weight[2:], m.bias[2:])))

    model = randomize(Net(run, weight=parameter(6, 6), bias=parameter(6), head=nn.Linear(4, 3)))
    found = compare(name, model, noise(5, 6))
    assert (found.coverage.methods["weight"], found.coverage.methods["bias"]) == ("direct", "direct")
