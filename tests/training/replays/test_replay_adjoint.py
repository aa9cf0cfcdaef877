"""The adjoint of an update against autograd through the whole of it, for all functions at once, in float64."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from contracts.training_problems import classes_part
from ntkscope.core import Params, Snapshot, generator
from ntkscope.training import Loop
from ntkscope.training.replays.adjoint import Adjoint, _through_update
from ntkscope.training.replays.products import Products
from ntkscope.training.replays.updates import updated

PART = classes_part(12, dtype=torch.float64)
FUNCTIONS = 4
ROUNDING = 1e-12  # of the norm; single numbers of Adam are differences of larger ones
OPTIMIZERS: dict[str, Callable[[Any], torch.optim.Optimizer]] = {
    "plain": lambda groups: torch.optim.SGD(groups, lr=0.1),
    "decay": lambda groups: torch.optim.SGD(groups, lr=0.1, weight_decay=0.05),
    "momentum": lambda groups: torch.optim.SGD(groups, lr=0.1, momentum=0.9, weight_decay=0.01),
    "dampening": lambda groups: torch.optim.SGD(groups, lr=0.1, momentum=0.8, dampening=0.3),
    "nesterov": lambda groups: torch.optim.SGD(groups, lr=0.1, momentum=0.9, nesterov=True, weight_decay=0.01),
    "adam": lambda groups: torch.optim.Adam(groups, lr=0.01, betas=(0.8, 0.95), weight_decay=0.01),
    "adamw": lambda groups: torch.optim.AdamW(groups, lr=0.01, weight_decay=0.1),
}


class Partly(Loop):
    """The first layer's bias learns in even steps alone."""

    def __init__(self, name: str, clip: float | None) -> None:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(1)
            model = nn.Sequential(nn.Linear(5, 6), nn.Tanh(), nn.Linear(6, 3)).double()
        groups = [
            {"params": list(model[0].parameters()), "lr": 0.03},
            {"params": list(model[2].parameters()), "weight_decay": 0.2},
        ]
        super().__init__(model, OPTIMIZERS[name](groups), items=12, steps=4)
        self.clip = clip

    def batch(self, step: int) -> tuple[Tensor, Tensor, Tensor]:
        rows = torch.arange(4) + step
        x = PART.x[rows].clone()
        x[:, 2] = 0  # weights that no gradient ever reaches
        return rows, x, PART.y[rows]

    def losses(self, outputs: Tensor, targets: Tensor) -> Tensor:
        return nn.functional.cross_entropy(outputs, targets, reduction="none")

    def rate(self, step: int) -> float:
        return 1 / (1 + step)

    def learning(self, step: int) -> set[str]:
        return self.trained - ({"0.bias"} if step % 2 else set())


def plainly(
    loop: Loop, state: Snapshot, gradient: Params, adjoint: Adjoint
) -> tuple[Params, Params, Params, Tensor, Tensor]:
    """Autograd through clipping and update together: adjoints of gradients, parameters, moments, rate and decay."""
    params = {name: value.clone().requires_grad_() for name, value in state.params.items()}
    gradient = {name: value.clone().requires_grad_() for name, value in gradient.items()}
    moments = {
        name: {key: v.clone().requires_grad_(key != "step") for key, v in one.items()}
        for name, one in state.optimizer.items()
    }
    pace, decay = (torch.tensor(v, dtype=torch.float64, requires_grad=True) for v in (1.0, 0.0))
    factors = dict.fromkeys(gradient, pace * loop.factor(state.step))
    new, made = updated(loop.rules, params, loop.clipped(gradient), moments, factors, dict.fromkeys(gradient, decay))
    ends = adjoint.params | adjoint.moments
    every = new | {f"{name}/{key}": v for name, one in made.items() for key, v in one.items()}
    total = torch.stack(
        [sum(((every[n] * v[i]).sum() for n, v in ends.items()), torch.zeros(())) for i in range(FUNCTIONS)]
    )
    flat = {f"{name}/{key}": v for name, one in moments.items() for key, v in one.items() if v.requires_grad}
    inputs = [*params.values(), *gradient.values(), *flat.values(), pace, decay]
    rows = [
        torch.autograd.grad(value, inputs, retain_graph=True, allow_unused=True, materialize_grads=True)
        for value in total
    ]
    parts = iter(torch.stack(part) for part in zip(*rows))
    by_params, by_gradient, by_moments = ({name: next(parts) for name in one} for one in (params, gradient, flat))
    return by_gradient, by_params, by_moments, next(parts), next(parts)


@pytest.mark.parametrize("clip", [None, 0.2, 1e3])
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_the_adjoint_of_an_update(name: str, clip: float | None) -> None:
    loop = Partly(name, clip)
    weights = torch.linspace(0.2, 2, 12, dtype=torch.float64)
    states = [loop.start, *loop.path(loop.start, loop.steps, weights)]
    draw = generator(0, "adjoint")
    for state, after in pairwise(states):
        batch = loop.batch(state.step)
        gradient = Products(loop, 1).gradient(state, batch, weights[batch[0]], sorted(loop.learning(state.step)))
        moments = {f"{n}/{key}": v for n, one in after.optimizer.items() for key, v in one.items() if key != "step"}
        adjoint = Adjoint(
            *(
                {n: torch.randn(FUNCTIONS, *v.shape, generator=draw, dtype=torch.float64) for n, v in one.items()}
                for one in (after.params, moments if after.step < loop.steps else {})
            )
        )
        by_gradient, by_params, by_moments, rate, decay = plainly(loop, state, gradient, adjoint)
        cotangents, before, own_rate, own_decay = _through_update(loop, state, after, gradient, adjoint)
        assert_same(cotangents, by_gradient)
        assert_same(before.params, by_params)
        missing = {n: torch.zeros_like(v) for n, v in by_moments.items() if n not in before.moments}
        assert_same(before.moments | missing, by_moments)
        assert_same({"rate": own_rate, "decay": own_decay}, {"rate": rate, "decay": decay})


def assert_same(one: Params, other: Params) -> None:
    assert one.keys() == other.keys()
    for name, value in other.items():
        assert one[name].shape == value.shape
        assert float((one[name] - value).norm()) <= ROUNDING * float(value.norm()), name
