"""Whatever an engine keeps between calls: a model, its code or its inputs that changed since are seen as they are now."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import ntkscope as ns
from oracles.closeness import relative_error
from zoo.case import Net
from zoo.judge import gradient_rows, kernel_of, single_samples

D, N = 4, 6


def build() -> tuple[Any, Tensor]:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        run = lambda m, x: m.head(m.scale * m.norm(m.a(x)).tanh())  # noqa: E731
        parts = {"a": nn.Linear(D, D), "norm": nn.BatchNorm1d(D), "head": nn.Linear(D, 3)}
        model = Net(run, **parts, scale=1.0).double().eval()
        return model, torch.randn(N, D, dtype=torch.float64)


def _weight_in_place(m: Any, x: Tensor) -> None:
    with torch.no_grad():
        m.a.weight.mul_(2)


def _weight_data(m: Any, x: Tensor) -> None:
    m.a.weight.data.mul_(2)  # moves no version counter


def _weight_data_replaced(m: Any, x: Tensor) -> None:
    m.a.weight.data = m.a.weight.data * 2


def _weight_numpy(m: Any, x: Tensor) -> None:
    m.a.weight.detach().numpy()[0] = 3.0


def _one_number(m: Any, x: Tensor) -> None:
    m.head.weight.data[1, 2] += 1e-3


def _parameter_replaced(m: Any, x: Tensor) -> None:
    m.a.weight = nn.Parameter(m.a.weight.detach() * 2)


def _module_replaced(m: Any, x: Tensor) -> None:
    m.a = nn.Sequential(m.a, nn.Tanh())


def _buffer(m: Any, x: Tensor) -> None:
    m.norm.running_mean.data.add_(1)


def _constant(m: Any, x: Tensor) -> None:
    m.scale = 2.0


def _forward(m: Any, x: Tensor) -> None:
    m.run = lambda m, x: m.head(m.a(x).relu())


def _hook(m: Any, x: Tensor) -> None:
    m.a.register_forward_hook(lambda module, args, out: 2 * out)


def _gradient_hook(m: Any, x: Tensor) -> None:
    m.a.weight.register_hook(lambda g: 2 * g)


def _frozen(m: Any, x: Tensor) -> None:
    m.a.weight.requires_grad_(False)


def _tied(m: Any, x: Tensor) -> None:
    m.norm.weight = m.norm.bias


def _inputs(m: Any, x: Tensor) -> None:
    x.data.mul_(1.5)


def _one_input(m: Any, x: Tensor) -> None:
    x.numpy()[2, 1] += 0.25


def _eps(m: Any, x: Tensor) -> None:
    m.norm.eps = 0.3


CHANGES = (
    _weight_in_place,
    _weight_data,
    _weight_data_replaced,
    _weight_numpy,
    _one_number,
    _parameter_replaced,
    _module_replaced,
    _buffer,
    _constant,
    _forward,
    _hook,
    _gradient_hook,
    _frozen,
    _tied,
    _inputs,
    _one_input,
    _eps,
)
QUICK = (_weight_data, _constant)


def truth(model: nn.Module, x: Tensor, name: str) -> Tensor:
    return kernel_of(torch.stack([gradient_rows(model, sample) for sample in single_samples(x)]), name)


@pytest.mark.parametrize("name", ["trntk0", "entk"])
@pytest.mark.parametrize(
    "change",
    [pytest.param(f, id=f.__name__.strip("_"), marks=() if f in QUICK else pytest.mark.guard) for f in CHANGES],
)
def test_the_model_as_it_is_now(change: Callable[[Any, Tensor], None], name: str) -> None:
    model, x = build()
    before = ns.kernel(name, model, x).dense().clone()
    ns.kernel(name, model, x)  # kept things are used from the second call on
    change(model, x)
    expected = truth(model, x, name)
    try:
        after = ns.kernel(name, model, x).dense()
    except ns.NtkscopeError:
        return
    assert relative_error(after, expected) <= 1e-9
    assert change is _gradient_hook or relative_error(after, before) > 1e-6, "the change changes nothing: a bad test"


@pytest.mark.guard
def test_training_mode_is_noticed_at_the_second_call() -> None:
    model, x = build()
    ns.kernel("trntk0", model, x)
    model.train()
    with pytest.raises(ns.NtkscopeError, match="training mode"):
        ns.kernel("trntk0", model, x)


@pytest.mark.guard
def test_a_model_that_turned_random_is_noticed_at_the_second_call() -> None:
    model, x = build()
    ns.kernel("trntk0", model, x)
    model.run = lambda m, x: m.head(m.a(x + 0.1 * torch.randn_like(x)))
    with pytest.raises(ns.NtkscopeError):
        ns.kernel("trntk0", model, x)


@pytest.mark.guard
def test_two_models_of_one_shape_are_kept_apart() -> None:
    (first, x), (second, _) = build(), build()
    _weight_data(second, x)
    expected = [truth(model, x, "trntk0") for model in (first, second)]
    for _ in range(2):
        for model, right in zip((first, second), expected):
            assert relative_error(ns.kernel("trntk0", model, x).dense(), right) <= 1e-9
