"""The model, the inputs, the random states and the switches are as they were, also after a failure midway."""

from __future__ import annotations

import contextlib
import subprocess
import sys
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import ntkscope as ns
from ntkscope.core import NtkscopeError
from oracles.against import compare, options_for
from oracles.unchanged import assert_unchanged, state
from strategies.networks import Net, noise, randomize
from strategies.traps import TRAPS


class Counter(nn.Module):
    """Counts its calls in a buffer, as running statistics do, and raises at the call `fails_at`."""

    calls: Tensor

    def __init__(self, fails_at: int = -1) -> None:
        super().__init__()
        self.register_buffer("calls", torch.zeros((), dtype=torch.long))
        self.seen, self.fails_at = 0, fails_at

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        self.seen += 1
        if self.seen == self.fails_at:
            raise RuntimeError("the network broke")
        return x


def network(counter: Counter) -> Any:
    """Rules, a repeated module, an unsupported parameter, frozen ones, a gradient already there, user hooks."""

    def run(m: Any, x: Tensor) -> Tensor:
        return m.head(m.count(m.b(m.a(m.a(x)))) * m.scale)

    with torch.random.fork_rng():
        torch.manual_seed(0)
        parts = {"a": nn.Linear(4, 4), "b": nn.BatchNorm1d(4), "head": nn.Linear(4, 3)}
        model = randomize(Net(run, **parts, scale=nn.Parameter(torch.ones(4)), count=counter))
    model.b.bias.requires_grad_(False)
    model.a.weight.grad = torch.full_like(model.a.weight, 0.25)
    model.a.register_forward_hook(lambda *_: None)
    model.head.register_full_backward_hook(lambda *_: None)
    model.head.train()
    return model


@pytest.mark.parametrize(("name", "dtype"), [*((name, None) for name in ns.KERNELS), ("trntk0", torch.float32)])
def test_nothing_changes(name: str, dtype: torch.dtype | None) -> None:
    model, x = network(Counter()), noise(4, 4)
    before, inputs = state(model), x.clone()
    ns.kernel(name, model, x, x[:2], dtype=dtype, **options_for(name, model)).dense()
    assert_unchanged(model, before)
    assert torch.equal(x, inputs)
    assert not x.requires_grad
    assert x.grad is None


@pytest.mark.parametrize("fails_at", [1, 2, 3, 5])
@pytest.mark.parametrize("name", ["entk", "pntk", "proj-trntk", "ck", "ptk"])
def test_nothing_changes_when_the_network_breaks_midway(name: str, fails_at: int) -> None:
    model = network(Counter(fails_at))
    before = state(model)
    refused = contextlib.suppress(NtkscopeError)  # late calls may never come
    with pytest.raises(NtkscopeError, match="the network broke") if fails_at == 1 else refused:
        ns.kernel(name, model, noise(4, 4), **options_for(name, model)).dense()
    assert_unchanged(model, before)


def test_nothing_changes_when_the_call_is_refused() -> None:
    model = network(Counter())
    model.b.train()
    before = state(model)
    with pytest.raises(NtkscopeError):
        ns.kernel("trntk0", model, noise(4, 4))
    assert_unchanged(model, before)


def test_inputs_that_want_gradients_get_none() -> None:
    model, x = TRAPS["module_called_twice"]()
    x = x.clone().requires_grad_()
    gram = compare("trntk0", model, x)
    assert x.grad is None
    assert not gram.dense().requires_grad


def test_the_result_does_not_follow_the_model_afterwards() -> None:
    model, x = TRAPS["module_called_twice"]()
    gram = ns.kernel("trntk0", model, x)
    before = gram.dense().clone()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
    assert torch.equal(gram.dense(), before)


@pytest.mark.guard
def test_the_random_state_of_python_without_type_checks() -> None:
    """In a process of its own: the run-time type checks of the tests draw from that state."""
    program = """
import random, torch, ntkscope as ns
model, x = torch.nn.Linear(3, 2), torch.ones(4, 3)
ns.kernel("proj-trntk", model, x, dim=8).dense()  # imports may draw
before = random.getstate()
ns.kernel("proj-trntk", model, x, dim=8).dense()
assert random.getstate() == before
"""
    subprocess.run([sys.executable, "-c", program], check=True, timeout=120)
