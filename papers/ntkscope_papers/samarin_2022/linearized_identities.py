"""Equations 1 to 3 of Samarin, Roth & Belius (2022) on a small LeNet in float64, each against a form written out."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from ntkscope import models
from ntkscope.core import generator
from ntkscope.kernels import kernel
from ntkscope.surrogates import linearize

ITEMS, OUTPUTS = 6, 10
SIZES = (1e-4, 5e-5, 2.5e-5, 1.25e-5)  # of u, each half of the one before; so small that no ReLU changes sides


def identities(seed: int) -> dict[str, Any]:
    """The largest relative deviations, and the factors by which the error of Eq. 2 falls when u is halved."""
    draw = generator(seed, "identities")
    model = models.build("lenet", width=0.5, seed=seed).double().eval()
    x = torch.randn(ITEMS, 1, 28, 28, generator=draw, dtype=torch.float64)
    y = torch.nn.functional.one_hot(torch.randint(0, OUTPUTS, (ITEMS,), generator=draw), OUTPUTS).double()
    jacobian = explicit_jacobian(model, x)  # (n, c, p)
    flat = jacobian.flatten(0, 1)
    gram = kernel("entk", model, x, dtype=torch.float64).dense()
    linear = linearize(model)
    with torch.no_grad():
        outputs, start = model(x), linear(x)
    direction = torch.randn(flat.shape[1], generator=draw, dtype=torch.float64)
    direction /= direction.norm()
    errors, bent = [], []
    for size in SIZES:
        _set(linear, size * direction)
        with torch.no_grad():
            moved = linear(x)
            errors.append(float((linear.network()(x) - moved).norm()))
        expected = outputs + size * (jacobian @ direction)
        bent.append(_deviation(moved, expected))
    _set(linear, 0.1 * direction)
    loss = (linear(x) - y).square().sum()
    loss.backward()
    with torch.no_grad():
        residual = linear(x) - y
    formula = 2 * (flat.T @ residual.flatten())
    own = torch.cat([p.grad.flatten() for p in linear.parameters() if p.grad is not None])
    random = torch.randn(1000, OUTPUTS, generator=draw, dtype=torch.float64)
    near = torch.cdist(random, torch.eye(OUTPUTS, dtype=torch.float64)).argmin(1)
    return {
        "eq1": _deviation(gram, flat @ flat.T),
        "eq2 start": _deviation(start, outputs),
        "eq2 linear": max(bent),
        "eq2 factors": [round(a / b, 3) for a, b in pairwise(errors)],
        "eq3": _deviation(own, formula),
        "nearest": float((near == random.argmax(1)).double().mean()),
        "outputs": OUTPUTS,
    }


def explicit_jacobian(model: torch.nn.Module, x: Tensor) -> Tensor:
    """(n, c, p): one backward pass for every output of every item."""
    parameters = list(model.parameters())
    rows = [
        torch.cat([g.flatten() for g in torch.autograd.grad(value, parameters, retain_graph=True)])
        for value in model(x).flatten()
    ]
    return torch.stack(rows).unflatten(0, (len(x), -1))


def _set(linear: Any, u: Tensor) -> None:
    own = list(linear.parameters())
    with torch.no_grad():
        for parameter, piece in zip(own, u.split([p.numel() for p in own])):
            parameter.copy_(piece.reshape(parameter.shape))


def _deviation(found: Tensor, expected: Tensor) -> float:
    return float((found - expected).abs().max() / expected.abs().max())
