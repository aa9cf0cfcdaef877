"""A copy is the model or is refused: other dtypes, kept engines, linearised networks and threads against the original."""

from __future__ import annotations

import copy
import functools
import types
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import prune
from torch.utils.checkpoint import checkpoint

import ntkscope as ns
from ntkscope.core import UsageError
from ntkscope.core.copies import Identity, duplicate, shared
from ntkscope.core.types import Part
from strategies.networks import noise

X = noise(6, 4).float()
GLOBAL = nn.Parameter(torch.tensor([0.7, -1.3, 2.1]))
HELD: dict[str, Any] = {}


def net() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3))


class Adapted(nn.Module):
    """A network with a scale that `use` brings in."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.scale = net(), nn.Parameter(torch.tensor([0.7, -1.3, 2.1]))
        self.use: Any = None

    def forward(self, x: Tensor) -> Tensor:
        return self.body(x) if self.use is None else self.use(self.body(x))


def closure() -> nn.Module:
    model = Adapted()
    model.use = lambda h: h * model.scale
    return model


def default() -> nn.Module:
    model = Adapted()
    model.use = lambda h, scale=model.scale: h * scale
    return model


def partial() -> nn.Module:
    model = Adapted()
    model.use = functools.partial(torch.mul, model.scale)
    return model


def nested() -> nn.Module:
    model = Adapted()
    scales = {"one": [model.scale]}

    def inner() -> Tensor:
        return scales["one"][0]

    model.use = lambda h: h * inner()
    return model


def hook() -> nn.Module:
    model = Adapted()
    model.body.register_forward_hook(lambda module, args, output: output * model.scale)
    return model


def pre_hook() -> nn.Module:
    model = Adapted()
    model.body[2].register_forward_pre_hook(lambda module, args: (args[0] * model.scale.sum(),))
    return model


def bound_forward() -> nn.Module:
    model = Adapted()
    plain = model.forward

    def forward(self: Adapted, x: Tensor) -> Tensor:
        return plain(x) * self.scale

    model.forward = types.MethodType(forward, model)  # type: ignore[method-assign]
    return model


def gradient_hook() -> nn.Module:
    model = Adapted()
    model.use = lambda h: h * model.scale
    model.scale.register_hook(lambda grad: 3 * grad)
    return model


def attribute_of_a_parameter() -> nn.Module:
    model = Adapted()
    model.scale.power = 2  # type: ignore[attr-defined]
    model.use = lambda h: h * model.scale**model.scale.power  # type: ignore[attr-defined]
    return model


def in_a_dict() -> nn.Module:
    model = Adapted()
    model.table = {"scale": model.scale}  # type: ignore[assignment]
    model.use = lambda h: h * model.table["scale"]  # type: ignore[index]
    return model


def pruned() -> nn.Module:
    model = net()
    prune.random_unstructured(model[0], "weight", 0.3)  # type: ignore[index]
    return model


def weight_normed() -> nn.Module:
    model = net()
    with pytest.warns(FutureWarning):
        torch.nn.utils.weight_norm(model[0])  # type: ignore[index]
    return model


class ReadsGlobal(Adapted):
    def forward(self, x: Tensor) -> Tensor:
        return self.body(x) * GLOBAL


def global_parameter() -> nn.Module:
    model = ReadsGlobal()
    model.scale = GLOBAL
    return model


def global_holder() -> nn.Module:
    model = Adapted()
    HELD["scale"] = model.scale
    model.use = lambda h: h * HELD["scale"]
    return model


def weak_reference() -> nn.Module:
    model = Adapted()
    whole = weakref.ref(model)
    model.use = lambda h: h * whole().scale  # type: ignore[union-attr]
    return model


def kept_graph() -> nn.Module:
    model = Adapted()
    doubled = 2 * model.scale
    model.use = lambda h: h * doubled
    return model


def only_for_some_inputs() -> nn.Module:
    model = Adapted()
    HELD["scale"] = model.scale
    scale = vars(types.SimpleNamespace(held=HELD))

    def use(h: Tensor) -> Tensor:
        return h * (scale["held"]["scale"] if len(h) else 1.0)

    model.use = use
    return model


COPIED = [closure, default, partial, nested, hook, pre_hook, bound_forward, gradient_hook, attribute_of_a_parameter]
COPIED += [in_a_dict, pruned, weight_normed, only_for_some_inputs]
REFUSED = [global_parameter, global_holder, weak_reference, kept_graph]


def gram(model: nn.Module, x: Tensor = X) -> Tensor:
    """The trace-NTK by plain autograd on the model as it is."""
    rows = []
    leaves = [p for p in model.parameters() if p.requires_grad]
    for sample in x:
        outputs = model(sample[None])[0]
        for k in range(len(outputs)):
            grads = torch.autograd.grad(outputs[k], leaves, retain_graph=True, allow_unused=True)
            rows.append(torch.cat([(torch.zeros_like(p) if g is None else g).flatten() for p, g in zip(leaves, grads)]))
    features = torch.stack(rows).double().unflatten(0, (len(x), -1))
    return torch.einsum("icp,jcp->ij", features, features)


def holds(kernel: Any, model: nn.Module) -> None:
    expected = gram(model)
    torch.testing.assert_close(kernel.dense().double(), expected, rtol=0, atol=1e-5 * float(expected.abs().max()))


@pytest.mark.parametrize("make", COPIED, ids=lambda f: f.__name__)
def test_another_dtype_is_the_same_model(make: Callable[[], nn.Module]) -> None:
    model = make()
    kernel = ns.kernel("trntk0", model, X, dtype=torch.float64)
    holds(kernel, model)
    assert kernel.certificate.model.startswith(f"a copy of {type(model).__name__} in float64")


@pytest.mark.parametrize("make", REFUSED, ids=lambda f: f.__name__)
def test_what_cannot_be_copied_is_refused_by_name(make: Callable[[], nn.Module]) -> None:
    model = make()
    holds(ns.kernel("trntk0", model, X), model)
    with pytest.raises(UsageError, match="scale|graph"):
        ns.kernel("trntk0", model, X, dtype=torch.float64)
    if make is not kept_graph:
        with pytest.raises(UsageError, match="scale"):
            ns.linearize(model)
    else:
        with pytest.raises(UsageError, match="graph"):
            ns.linearize(model)(X)
