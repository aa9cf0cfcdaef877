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
from strategies.networks import Case, noise, randomize
from strategies.traps import TRAPS

SAME = 1e-12  # only the order of additions may differ
N = 13  # a prime: no tile divides it


def perceptron() -> Case:
    return randomize(nn.Sequential(nn.Linear(5, 8), nn.Tanh(), nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 3))), noise(
        N, 5
    )


def convolutional() -> Case:
    layers = [nn.Conv2d(2, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU(), nn.Conv2d(4, 4, 3, stride=2, groups=2)]
    return randomize(nn.Sequential(*layers, nn.Flatten(), nn.Linear(16, 3))), noise(N, 2, 6, 6)


def attention() -> Case:
    model, _ = LAYERS["encoder layer"]()
    return model, noise(N, 5, 4)


def shared() -> Case:
    model, _ = TRAPS["weight_used_in_its_module_and_by_hand"]()
    return model, noise(N, 5)


CASES: list[Callable[[], Case]] = [perceptron, convolutional, attention, shared]
everywhere = pytest.mark.parametrize("case", CASES, ids=lambda case: case.__name__)
every_kernel = pytest.mark.parametrize("name", ["entk", "trntk", "proj-pntk"])


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


@everywhere
@every_kernel
def test_any_memory(case: Callable[[], Case], name: str) -> None:
    model, x = case()
    expected = dense(name, model, x)
    smallest = smallest_budget(lambda memory: dense(name, model, x, memory=memory))
    for memory in (smallest, int(1.3 * smallest), 3 * smallest):
        assert_kernel_close(dense(name, model, x, memory=memory), expected, SAME)


@everywhere
@every_kernel
def test_any_order(case: Callable[[], Case], name: str) -> None:
    model, x = case()
    order = torch.randperm(N, generator=torch.Generator().manual_seed(0)).tolist()
    assert_kernel_close(dense(name, model, x[order]), block(name, dense(name, model, x), order, order), SAME)


@everywhere
@every_kernel
def test_any_part(case: Callable[[], Case], name: str) -> None:
    model, x = case()
    whole = dense(name, model, x)
    rows, columns = [4, 1, 1, 9], [0, 12, 5]
    assert_kernel_close(dense(name, model, x[rows], x[columns]), block(name, whole, rows, columns), SAME)
    assert_kernel_close(dense(name, model, x[7:8]), block(name, whole, [7], [7]), SAME)


@everywhere
@every_kernel
def test_the_transpose(case: Callable[[], Case], name: str) -> None:
    model, x = case()
    assert_kernel_close(dense(name, model, x[:5], x[5:]), dense(name, model, x[5:], x[:5]).T, SAME)


@every_kernel
def test_the_same_call_gives_the_same_bits(name: str) -> None:
    model, x = convolutional()
    assert torch.equal(dense(name, model, x), dense(name, model, x))


@every_kernel
def test_a_symmetric_kernel_is_symmetric_to_the_last_bit(name: str) -> None:
    model, x = convolutional()
    k = dense(name, model, x)
    assert torch.equal(k, k.T)
