"""Blocks that pass by side by side, a thread each: the same numbers, the same model afterwards, the same errors."""

from __future__ import annotations

import logging
import threading
import weakref
from functools import lru_cache
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import ntkscope as ns
from ntkscope.core import UsageError
from oracles.against import compare, smallest_budget
from oracles.closeness import assert_kernel_close
from oracles.unchanged import assert_unchanged, state
from strategies.crews import crew_of
from strategies.networks import Case, Net, noise, normed_images, randomize
from strategies.traps import TRAPS

SAME = 1e-12
N = 13  # a prime: no share divides it


def convolutional() -> Case:
    return normed_images(N)


@lru_cache
def by_one_thread(name: str) -> list[tuple[Tensor | None, Any]]:
    """Other inputs, or none, and the kernel with them."""
    model, x = convolutional()
    return [(other, ns.kernel(name, model, x, other)) for other in (None, x[:5], torch.cat([x, x + 1]))]


@pytest.mark.parametrize(("name", "threads"), [("entk", 2), ("entk", 5), ("trntk", 3), ("trntk0", 5), ("pntk", 2)])
def test_the_same_kernel(name: str, threads: int) -> None:
    model, x = convolutional()
    for other, alone in by_one_thread(name):
        with crew_of(threads):
            together = ns.kernel(name, model, x, other)
        assert alone.meta["plan"].workers == 1
        assert together.meta["plan"].workers == threads
        assert_kernel_close(together.dense(), alone.dense(), SAME)
        assert_kernel_close(together.diagonal(), alone.diagonal(), SAME) if other is None else None
        assert together.coverage is not None
        assert alone.coverage is not None
        assert together.coverage.methods == alone.coverage.methods
        assert together.coverage.samples_run == alone.coverage.samples_run


def test_the_same_shares_of_parameters() -> None:
    model, x = convolutional()
    alone = ns.kernel("trntk0", model, x, per_layer=True).meta["contributions"]
    with crew_of(3):
        together = ns.kernel("trntk0", model, x, per_layer=True).meta["contributions"]
    assert together.keys() == alone.keys()
    for name in alone:
        assert_kernel_close(together[name], alone[name], SAME)


@pytest.mark.guard
def test_several_groups_of_residents() -> None:
    model, x = randomize(nn.Sequential(nn.Linear(5, 4000), nn.Tanh(), nn.Linear(4000, 3))), noise(61, 5)
    whole = ns.kernel("trntk0", model, x)
    budget = int(3.1 * smallest_budget(lambda memory: ns.kernel("trntk0", model, x, memory=memory)))
    with crew_of(2):
        found = ns.kernel("trntk0", model, x, memory=budget)
        between = ns.kernel("trntk0", model, x, x[:40], memory=budget)
    assert found.meta["plan"].resident < len(x)
    assert found.meta["plan"].workers == 2
    assert_kernel_close(found.dense(), whole.dense(), SAME)
    assert_kernel_close(between.dense(), whole.dense()[:, :40], SAME)


@pytest.mark.nightly
@pytest.mark.parametrize("name", TRAPS)
def test_traps(name: str) -> None:
    model, x = TRAPS[name]()
    before = state(model)
    with crew_of(2):
        compare("trntk0", model, x)
    assert_unchanged(model, before)


class Breaks(nn.Module):
    """Passes its input on, but raises where a sample holds a large number."""

    def forward(self, x: Tensor) -> Tensor:
        if bool((x > 50).any()):
            raise RuntimeError("the network broke")
        return x


def test_an_error_in_one_thread() -> None:
    model, x = randomize(nn.Sequential(Breaks(), nn.Linear(4, 3))), noise(20, 4)
    x[11] += 100
    before, threads = state(model), torch.get_num_threads()
    with crew_of(2), pytest.raises(UsageError, match="the network broke"):
        ns.kernel("trntk0", model, x)
    assert_unchanged(model, before)
    assert torch.get_num_threads() == threads


def test_a_later_block_that_takes_another_path() -> None:
    def run(m: Any, x: Tensor) -> Tensor:
        h, large = torch.tanh(m.a(x)) * m.scale, (x > 50).any(1, keepdim=True)
        return m.head(torch.where(large, m.a(h), h) if bool(large.any()) else h)

    parts = {"a": nn.Linear(4, 4), "head": nn.Linear(4, 3), "scale": nn.Parameter(torch.ones(4))}
    model, x = randomize(Net(run, **parts)), noise(12, 4)
    x[7] += 100
    one_by_one = torch.cat([ns.kernel("trntk0", model, row[None], x).dense() for row in x])
    with crew_of(3):
        assert_kernel_close(ns.kernel("trntk0", model, x).dense(), one_by_one, 1e-10)


def test_a_model_that_cannot_be_copied(caplog: pytest.LogCaptureFixture) -> None:
    model, x = randomize(nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 3))), noise(9, 4)
    expected = ns.kernel("trntk0", model, x).dense()
    model.lock = threading.Lock()
    with crew_of(2), caplog.at_level(logging.INFO, "ntkscope"):
        assert_kernel_close(ns.kernel("trntk0", model, x).dense(), expected, SAME)
    assert "1 threads instead of 2: no more copies of the model" in caplog.text
    assert "lock" in caplog.text


def hooked() -> nn.Module:
    """A hook that uses another part of the model."""
    model = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 3))
    model.extra = nn.Linear(4, 4)
    model.forward = lambda x: model[2](model[1](model[0](x)))  # type: ignore[method-assign]
    model[0].register_forward_hook(lambda _, inputs, output: output + model.extra(inputs[0]))
    return model


def patched() -> nn.Module:
    model = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 3))
    old = model.forward
    model.forward = lambda x: 2 * old(x)  # type: ignore[method-assign]
    return model


def weak() -> nn.Module:
    """A function that finds the model by a weak reference, which is not copied."""
    model = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 3))
    whole = weakref.ref(model)
    model.forward = lambda x: 2 * nn.Sequential.forward(whole(), x)  # type: ignore[method-assign]
    return model


@pytest.mark.parametrize(("build", "workers"), [(hooked, 3), (patched, 3), (weak, 1)])
def test_functions_of_a_model_are_copied_or_one_thread_runs_it(build: Any, workers: int) -> None:
    model, x = randomize(build()), noise(9, 4)
    expected = ns.kernel("trntk0", model, x)
    with crew_of(3):
        found = ns.kernel("trntk0", model, x)
    assert found.meta["plan"].workers == workers
    assert float(expected.dense().abs().min()) > 0
    assert_kernel_close(found.dense(), expected.dense(), SAME)


def test_the_caller_s_mixed_precision_does_not_matter() -> None:
    model, x = convolutional()
    model, x = model.float(), x.float()
    expected = ns.kernel("trntk0", model, x).dense()
    for threads in (1, 2):
        with crew_of(threads), torch.autocast("cpu", dtype=torch.bfloat16):
            assert_kernel_close(ns.kernel("trntk0", model, x).dense(), expected, 1e-5)


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_gradients_switched_off_outside(mode: Any) -> None:
    model, x = convolutional()
    expected = ns.kernel("trntk0", model, x).dense()
    with crew_of(2), mode():
        found = ns.kernel("trntk0", model, x).dense()
    assert_kernel_close(found.clone(), expected, SAME)
