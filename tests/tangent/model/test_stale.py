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


def replaced(m: Any, x: Tensor) -> None:
    m.a.weight = nn.Parameter(m.a.weight.detach() * 2)


CHANGES: dict[str, Callable[[Any, Tensor], Any]] = {
    "a weight, in place": lambda m, x: m.a.weight.detach().mul_(2),
    "a weight, by data": lambda m, x: m.a.weight.data.mul_(2),  # moves no version counter
    "a weight, its data replaced": lambda m, x: setattr(m.a.weight, "data", m.a.weight.data * 2),
    "a weight, by numpy": lambda m, x: m.a.weight.detach().numpy().__setitem__(0, 3.0),
    "one number": lambda m, x: m.head.weight.data[1, 2].add_(1e-3),
    "a parameter, replaced": replaced,
    "a module, replaced": lambda m, x: setattr(m, "a", nn.Sequential(m.a, nn.Tanh())),
    "a buffer": lambda m, x: m.norm.running_mean.data.add_(1),
    "a constant": lambda m, x: setattr(m, "scale", 2.0),
    "forward": lambda m, x: setattr(m, "run", lambda m, x: m.head(m.a(x).relu())),
    "a hook": lambda m, x: m.a.register_forward_hook(lambda module, args, out: 2 * out),
    "a gradient hook": lambda m, x: m.a.weight.register_hook(lambda g: 2 * g),
    "frozen": lambda m, x: m.a.weight.requires_grad_(False),
    "tied": lambda m, x: setattr(m.norm, "weight", m.norm.bias),
    "the inputs": lambda m, x: x.data.mul_(1.5),
    "one input": lambda m, x: x.numpy()[2].__setitem__(1, 7.0),
    "an epsilon": lambda m, x: setattr(m.norm, "eps", 0.3),
}
QUICK = ("a weight, by data", "a constant")


def truth(model: nn.Module, x: Tensor, name: str) -> Tensor:
    return kernel_of(torch.stack([gradient_rows(model, sample) for sample in single_samples(x)]), name)


@pytest.mark.parametrize("name", ["trntk0", "entk"])
@pytest.mark.parametrize(
    "change", [pytest.param(key, marks=() if key in QUICK else pytest.mark.guard) for key in CHANGES]
)
def test_the_model_as_it_is_now(change: str, name: str) -> None:
    model, x = build()
    before = ns.kernel(name, model, x).dense().clone()
    kept = ns.Tangent(model)
    kept.kernel(name, x)
    CHANGES[change](model, x)
    expected = truth(model, x, name)
    for ask in (lambda: ns.kernel(name, model, x), lambda: kept.kernel(name, x)):
        try:
            after = ask().dense()
        except ns.NtkscopeError:
            continue
        assert relative_error(after, expected) <= 1e-9
        changed = relative_error(after, before) > 1e-6
        assert change == "a gradient hook" or changed, "the change changes nothing: a bad test"


@pytest.mark.guard
@pytest.mark.parametrize("change", ["training mode", "chance"])
def test_what_makes_a_kernel_meaningless_is_noticed_at_the_second_call(change: str) -> None:
    model, x = build()
    kept = ns.Tangent(model, x)
    if change == "chance":
        model.run = lambda m, x: m.head(m.a(x + 0.1 * torch.randn_like(x)))
    else:
        model.train()
    for ask in (lambda: ns.kernel("trntk0", model, x), lambda: kept.kernel("trntk0", x)):
        with pytest.raises(ns.NtkscopeError, match="random|twice|deterministic" if change == "chance" else change):
            ask()


@pytest.mark.guard
def test_two_models_of_one_shape_are_kept_apart() -> None:
    (first, x), (second, _) = build(), build()
    second.a.weight.data.mul_(2)
    expected = [truth(model, x, "trntk0") for model in (first, second)]
    for _ in range(2):
        for model, right in zip((first, second), expected):
            assert relative_error(ns.kernel("trntk0", model, x).dense(), right) <= 1e-9
