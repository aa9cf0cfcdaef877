"""Models that differentiate inside their forward pass, or compute it twice, get what PyTorch's own calls give."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import ntkscope as ns
from ntkscope.tangent.blocks.execution import PLAIN, ExecutionMode
from oracles.against import expected
from oracles.closeness import assert_kernel_close
from strategies.modes import harvested
from strategies.networks import Case, Net, noise, randomize


def normed(run: Callable[..., Tensor]) -> Case:
    parts = {"pre": nn.Linear(5, 6), "norm": nn.BatchNorm1d(6), "out": nn.Linear(6, 4)}
    return randomize(Net(run, **parts)), noise(7, 5)


def forces() -> Case:
    """The gradient of an energy by what it depends on, differentiated once more."""

    def run(m: Any, x: Tensor) -> Tensor:
        z = torch.tanh(m.pre(x))
        (force,) = torch.autograd.grad(torch.tanh(m.norm(z)).sum(), z, create_graph=True)
        return m.out(force * z)

    return normed(run)


def forces_through_a_convolution() -> Case:
    def run(m: Any, x: Tensor) -> Tensor:
        z = torch.tanh(m.pre(x))
        (force,) = torch.autograd.grad(torch.tanh(m.body(z)).sum(), z, create_graph=True)
        return m.out((force * z).flatten(1))

    parts = {"pre": nn.Conv1d(1, 2, 1), "body": nn.Conv1d(2, 2, 3, padding=1), "out": nn.Linear(10, 4)}
    return randomize(Net(run, **parts)), noise(7, 1, 5)


def gradients_of_weights() -> Case:
    """What the model computes depends on whether a parameter has a gradient."""

    def run(m: Any, x: Tensor) -> Tensor:
        h = m.pre(x)
        (found,) = torch.autograd.grad(torch.tanh(m.norm(h.detach())).sum(), m.norm.weight, allow_unused=True)
        return m.out(h * (1 if found is None else 2))

    return normed(run)


def checkpoints(check: str) -> Callable[[], Case]:
    def made() -> Case:
        def run(m: Any, x: Tensor) -> Tensor:
            h = checkpoint(m.norm, m.pre(x), use_reentrant=False, determinism_check=check)
            return m.out(torch.tanh(h))

        return normed(run)

    return made


CASES: dict[str, Callable[[], Case]] = {
    "forces": forces,
    "forces through a convolution": forces_through_a_convolution,
    "gradients of weights": gradients_of_weights,
    "a checkpoint": checkpoints("default"),
    "a checkpoint that is not looked at": checkpoints("none"),
}


@pytest.mark.parametrize("certify", ["every", False])
@pytest.mark.parametrize("mode", [PLAIN, ExecutionMode(together=16)], ids=["one head", "all heads"])
@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_the_numbers_of_the_oracle(case: Callable[[], Case], mode: ExecutionMode, certify: str | bool) -> None:
    model, x = case()
    with harvested(mode):
        found = ns.kernel("trntk0", model, x, certify=certify)
    assert_kernel_close(found.dense(), expected("trntk0", model, x), 1e-10)


def test_heads_that_pytorch_cannot_batch_rightly_are_noticed() -> None:
    """The batching rule of `cdist` gives other cotangents."""

    def run(m: Any, x: Tensor) -> Tensor:
        h = m.pre(x).view(-1, 2, 3)
        return m.out(torch.cdist(h, h + 1).flatten(1))

    model, x = randomize(Net(run, pre=nn.Linear(5, 6), out=nn.Linear(4, 4))), noise(7, 5)
    with harvested(ExecutionMode(together=16)):
        found = ns.kernel("trntk0", model, x)
    assert_kernel_close(found.dense(), expected("trntk0", model, x), 1e-10)
