"""Batch norms made in another, equal way give the outputs and gradients of PyTorch, for one cotangent and for several."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.func import vmap

import ntkscope as ns
from ntkscope.tangent.blocks import norm as quick_norm
from ntkscope.tangent.blocks.execution import PLAIN, ExecutionMode
from ntkscope.tangent.blocks.norm import still
from ntkscope.tangent.blocks.replaced_calls import ReplacedCalls
from oracles.against import expected
from oracles.closeness import assert_kernel_close
from strategies.modes import harvested
from strategies.networks import noise, randomize


@pytest.fixture(autouse=True)
def on_the_cpu_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(quick_norm, "DEVICES", ("cpu", "cuda"))


def arguments(x: Tensor, draw: torch.Generator, weight: bool = True, bias: bool = True) -> dict[str, Any]:
    def normal() -> Tensor:
        return torch.randn(x.shape[1], generator=draw, dtype=x.dtype)

    leaves = {name: normal().requires_grad_() for name, wanted in (("weight", weight), ("bias", bias)) if wanted}
    return {"input": x, "running_mean": normal(), "running_var": normal().exp(), "eps": 1e-3, **leaves}


@given(st.data())
def test_gradients_are_those_of_the_plain_call(data: st.DataObject) -> None:
    draw = torch.Generator().manual_seed(data.draw(st.integers(0, 10**6), label="seed"))
    shape = [data.draw(st.integers(1, 4), label="size") for _ in range(data.draw(st.integers(2, 5), label="axes"))]
    x = torch.randn(shape, generator=draw, dtype=torch.float64)
    if len(shape) == 4 and data.draw(st.booleans(), label="channels innermost"):
        x = x.contiguous(memory_format=torch.channels_last)
    x.requires_grad_(data.draw(st.booleans(), label="input has a gradient"))
    weight, bias = data.draw(st.sampled_from([(True, True), (True, False), (False, True)]), label="parameters")
    asked = arguments(x, draw, weight, bias)
    own = ReplacedCalls()
    made = still(F.batch_norm, asked, own)
    assert made is not None
    plain = F.batch_norm(**asked)
    assert torch.equal(made, plain)
    leaves = [leaf for leaf in (x, asked.get("weight"), asked.get("bias")) if leaf is not None and leaf.requires_grad]
    several = torch.randn(3, *shape, generator=draw, dtype=torch.float64)
    ours = torch.autograd.grad(made, leaves, several[0], retain_graph=True)
    for one, other in zip(ours, torch.autograd.grad(plain, leaves, several[0], retain_graph=True)):
        torch.testing.assert_close(one, other, rtol=1e-10, atol=1e-10)
    if x.requires_grad:  # cotangents alone, of several heads
        theirs = torch.stack([torch.autograd.grad(plain, x, each, retain_graph=True)[0] for each in several])
        with own.of_cotangents():
            found = vmap(lambda each: torch.autograd.grad(made, x, each, retain_graph=True)[0])(several)
            assert all(
                torch.autograd.grad(made, leaf, several[0], retain_graph=True, allow_unused=True)[0] is None
                for leaf in leaves[1:]
            )
        torch.testing.assert_close(found, theirs, rtol=1e-12, atol=1e-12)


def halved(asked: dict[str, Any]) -> dict[str, Any]:
    return {name: value.detach().bfloat16() if isinstance(value, Tensor) else value for name, value in asked.items()}


@pytest.mark.parametrize(
    "change",
    [
        lambda asked: {"training": True},
        halved,
        lambda asked: {"input": asked["input"].bfloat16()},  # kept in float32
        lambda asked: {"running_mean": None, "running_var": None},
    ],
)
def test_other_calls_are_left_alone(
    change: Callable[[dict[str, Any]], dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = arguments(torch.randn(3, 2, 4, 4), torch.Generator().manual_seed(0))
    asked = plain | change(plain)
    assert still(F.batch_norm, asked, ReplacedCalls()) is None
    assert still(F.layer_norm, asked, ReplacedCalls()) is None
    monkeypatch.setattr(quick_norm, "DEVICES", ("cuda",))
    assert still(F.batch_norm, plain, ReplacedCalls()) is None


def frozen(model: nn.Sequential) -> None:
    model[1].weight.requires_grad_(False)


def elsewhere(model: nn.Sequential) -> None:
    """Shared by two norms: gradients of both uses add up."""
    model[4].weight = model[1].weight


@pytest.mark.parametrize("change", [frozen, elsewhere], ids=["frozen", "shared"])
@pytest.mark.parametrize("mode", [PLAIN, ExecutionMode(together=16)], ids=["one head", "all heads"])
def test_kernels(change: Callable[[nn.Sequential], None], mode: ExecutionMode) -> None:
    body = [nn.Conv2d(2, 3, 3), nn.BatchNorm2d(3), nn.ReLU(inplace=True), nn.Conv2d(3, 3, 2), nn.BatchNorm2d(3)]
    model = randomize(nn.Sequential(*body, nn.Flatten(), nn.Linear(27, 4)))
    change(model)
    x = noise(7, 2, 6, 6)
    with harvested(mode, 4):
        found = ns.kernel("trntk0", model, x)
    assert not found.certificate.fell_back
    assert_kernel_close(found.dense(), expected("trntk0", model, x), 1e-10)
