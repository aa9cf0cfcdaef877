"""All nine kernels on the networks they are promised for: 1e-10 in float64, 1e-5 in float32."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import Any

import pytest
from torch import Tensor, nn

import ntkscope as ns
from oracles import against, naive
from oracles.autograd import Jacobian, double, jacobian
from oracles.closeness import assert_kernel_close
from strategies.named import LARGE, NAMED

DIM = 12
DEEP = ("resnet18", "mobilenetv2", "real_resnet20")


def marked(names: Iterable[str]) -> list[Any]:
    return [pytest.param(name, marks=[pytest.mark.data] if name.startswith("real") else []) for name in names]


QUICK, QUICK_DEEP, SLOW = marked(NAMED), marked(DEEP), marked(LARGE)
KERNELS = against.NAMES


@lru_cache(maxsize=1)
def case(name: str) -> tuple[nn.Module, Any]:
    return {**NAMED, **LARGE}[name]()


@lru_cache(maxsize=1)
def gradients(name: str) -> Jacobian:
    return jacobian(*case(name))


def options(kernel: str, model: nn.Module) -> dict[str, Any]:
    layers = against.affine_layers(model)
    middle = layers[len(layers) // 2]
    known: dict[str, dict[str, Any]] = {
        "proj-trntk": {"dim": DIM},
        "proj-pntk": {"dim": DIM, "normalize": False},
        "em": {"layers": sorted({layers[0], middle, layers[-1]})},
        "ptk": {"layer": middle},
    }
    return known.get(kernel, {})


def oracle(name: str, kernel: str) -> Tensor:
    """The kernel of all inputs with themselves; the Jacobian of a network is computed once."""
    model, x = case(name)
    if kernel in against.GRADIENT_NAMES:
        j = gradients(name)
        normalize = options(kernel, model).get("normalize")
        return naive.from_jacobians(kernel, j, j, projection=against.projection(dim=DIM), normalize=normalize)
    return naive.kernel(kernel, model, x, **options(kernel, model))


def first(x: Any, count: int) -> Any:
    if isinstance(x, Tensor):
        return x[:count]
    if isinstance(x, Mapping):
        return {key: value[:count] for key, value in x.items()}
    return tuple(value[:count] for value in x)


def check(name: str, kernel: str, single: bool = True) -> None:
    model, x = case(name)
    expected = oracle(name, kernel)
    extra = options(kernel, model)
    exact = copy.deepcopy(model).double()
    gram: Any = ns.kernel(kernel, exact, double(x), **extra)
    assert_kernel_close(gram.dense(), expected, 1e-10)
    if single:
        assert_kernel_close(ns.kernel(kernel, model, x, **extra).dense(), expected, 1e-5)
    if name not in DEEP:
        cross = ns.kernel(kernel, exact, first(double(x), 1), double(x), **extra)
        assert_kernel_close(cross.dense(), expected[: gram.outputs], 1e-10)
    if kernel == "trntk":
        slow = {parameter for parameter, method in gram.coverage.methods.items() if method == "func"}
        assert {parameter for parameter in slow if not slow_allowed(name, parameter)} == set()


def slow_allowed(name: str, parameter: str) -> bool:
    """What has no rule; and a key's bias, whose gradient is zero but for rounding: nothing a rule could be held to."""
    without_rule = {"lstm": "lstm.", "bare_parameter_twice": "w"}.get(name)
    return parameter.endswith("key.bias") or (without_rule is not None and parameter.startswith(without_rule))


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("name", QUICK)
@pytest.mark.guard
def test_small(name: str, kernel: str) -> None:
    if name in DEEP and kernel in ("trntk0", "pntk", "proj-pntk"):
        pytest.skip("for time: trntk and proj-trntk make the same sums; all nine nightly")
    if name == "mobilenetv2" and kernel in ("trntk", "proj-trntk", "em"):
        pytest.skip("for time: entk, ck and ptk stay; all nine nightly")
    if name == "real_resnet20" and kernel in ("entk", "proj-trntk"):
        pytest.skip("for time: trntk, ck, em and ptk stay; all nine nightly")
    check(name, kernel, single=name not in DEEP or kernel in ("trntk", "ck", "em"))


@pytest.mark.nightly
@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("name", [*QUICK_DEEP, *SLOW])
def test_deep(name: str, kernel: str) -> None:
    check(name, kernel)
