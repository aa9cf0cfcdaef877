"""The same kernel for any memory budget, any cut of the inputs and any order of them, to 1e-12 in float64."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import ntkscope as ns
from oracles.against import smallest_budget
from oracles.closeness import assert_kernel_close
from strategies.layers import LAYERS
from strategies.networks import Case, noise, normed_images, randomize
from strategies.traps import TRAPS

SAME = 1e-12  # only the order of additions may differ
N = 13  # a prime: no tile divides it


def perceptron() -> Case:
    return randomize(nn.Sequential(nn.Linear(5, 8), nn.Tanh(), nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 3))), noise(
        N, 5
    )


def convolutional() -> Case:
    return normed_images(N)


def attention() -> Case:
    model, _ = LAYERS["encoder layer"]()
    return model, noise(N, 5, 4)


def shared() -> Case:
    model, _ = TRAPS["weight_used_in_its_module_and_by_hand"]()
    return model, noise(N, 5)


def dense(name: str, model: nn.Module, *xs: Any, **options: Any) -> torch.Tensor:
    if name.startswith("proj-"):
        options["dim"] = 32
    x1, x2 = (*xs, None)[:2]
    return ns.kernel(name, model, x1, x2, **options).dense()


def block(name: str, k: torch.Tensor, rows: list[int], columns: list[int]) -> torch.Tensor:
    """The entries of chosen samples; `entk` has three rows a sample."""
    c = 3 if name == "entk" else 1
    expand = [[i * c + k for i in index for k in range(c)] for index in (rows, columns)]
    return k[expand[0]][:, expand[1]]


@pytest.mark.parametrize("name", ["entk", "trntk", "proj-pntk"])
@pytest.mark.parametrize("case", [perceptron, convolutional, attention, shared], ids=lambda case: case.__name__)
def test_any_memory_order_and_part(case: Callable[[], Case], name: str) -> None:
    model, x = case()
    whole = dense(name, model, x)
    assert torch.equal(dense(name, model, x), whole)  # the same call: the same bits
    assert torch.equal(whole, whole.T)
    smallest = smallest_budget(lambda memory: dense(name, model, x, memory=memory))
    for memory in (smallest, int(1.3 * smallest)):
        assert_kernel_close(dense(name, model, x, memory=memory), whole, SAME)
    order = torch.randperm(N, generator=torch.Generator().manual_seed(0)).tolist()
    assert_kernel_close(dense(name, model, x[order]), block(name, whole, order, order), SAME)
    rows, columns = [4, 1, 1, 9], [0, 12, 5]
    assert_kernel_close(dense(name, model, x[rows], x[columns]), block(name, whole, rows, columns), SAME)
    assert_kernel_close(dense(name, model, x[7:8]), block(name, whole, [7], [7]), SAME)
    assert_kernel_close(dense(name, model, x[:5], x[5:]), dense(name, model, x[5:], x[:5]).T, SAME)
