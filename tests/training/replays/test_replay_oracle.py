"""Replays of recorded trainings against autograd through the whole training, written out plainly, on drawn set-ups."""

from __future__ import annotations

import random
import tempfile
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import ntkscope as ns
from ntkscope.core import Part, derive_seed, generator
from ntkscope.training import Cosine, CrossEntropy, Translate, Triangular, fit, replay
from ntkscope.training.batches import BatchOrder
from ntkscope.training.modes import MODES, phase_starts, trainable
from oracles.unrolled import LOSSES, Optimizer, Training, derivatives

ROUNDING = 1e-9  # of a derivative's norm: 2e-16 a step and operation, magnified by Adam's 1 / (√v + ε) and by ten steps


class Named(nn.Module):
    """Two inputs by name, a layer that is used twice, and one whose weight is tied to another's."""

    def __init__(self) -> None:
        super().__init__()
        self.enter, self.twice, self.leave = nn.Linear(5, 4), nn.Linear(4, 4), nn.Linear(4, 3)
        self.again = nn.Linear(4, 4)
        self.again.weight = self.twice.weight
        self.scale = nn.Parameter(torch.ones(4))

    def forward(self, left: Tensor, right: dict[str, Tensor]) -> Tensor:
        hidden = self.twice(self.enter(left).tanh()).tanh() + self.enter(right["more"]).sin()
        return self.leave(self.again(self.twice(hidden).tanh()) * self.scale)


def build(kind: str) -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(3)
        if kind == "named":
            return Named().double()
        if kind == "images":
            layers = [
                nn.Conv2d(2, 3, 3),
                nn.GELU(),
                nn.AvgPool2d(2),
                nn.Flatten(),
                nn.GroupNorm(2, 12),
                nn.Linear(12, 3),
            ]
            return nn.Sequential(*layers).double()
        dropout = [nn.Dropout(0.3)] if kind == "dropout" else []
        model = nn.Sequential(
            nn.Linear(5, 6), nn.Tanh(), *dropout, nn.Linear(6, 4), nn.Softplus(), nn.Linear(4, 3)
        ).double()
        if kind == "frozen":
            model[2].requires_grad_(False)
        return model


def inputs(kind: str, n: int) -> Any:
    draw = generator(0, "inputs")
    if kind == "images":
        return torch.randn(n, 2, 6, 6, generator=draw, dtype=torch.float64)
    x = torch.randn(2, n, 5, generator=draw, dtype=torch.float64)
    return {"left": x[0], "right": {"more": x[1]}} if kind == "named" else x[0]


def noisy(x: Tensor, draw: torch.Generator) -> Tensor:
    return x + 0.1 * torch.randn(x.shape, generator=draw, dtype=x.dtype)


def written_out(model: nn.Module, part: Part, loss: str, options: dict[str, Any]) -> Training:
    """What `fit` promises to do with these options, from its documentation."""
    size, seed, n = options["batch_size"] or len(part), options["seed"], len(part)
    order = BatchOrder(n, size, seed, options.get("drop_last", False))
    schedule, augment = options.get("schedule"), options.get("augment")
    phases = MODES[options.get("mode", "reg")]()
    starts = phase_starts(phases, order.per_epoch)
    batches, learning, factors = [], [], []
    for step in range(options["steps"]):
        epoch, rows = step // order.per_epoch, order.indices(step)
        own = part
        if isinstance(augment, Translate):
            own = ns.data.translate(part, augment.max_shift, derive_seed(seed, "augment"), epoch=epoch)
        batch = own.take(rows)
        x = batch.x
        if augment is noisy:
            x = noisy(x, torch.Generator().manual_seed(derive_seed(seed, "augment", step)))
        batches.append((rows, x, batch.y))
        phase = phases[max(i for i, start in enumerate(starts) if start <= step)]
        wanted = {name for name, p in model.named_parameters() if p.requires_grad}
        learning.append(trainable(model, phase) & wanted)
        if schedule is None:
            factors.append(1.0)
        elif isinstance(schedule, dict):
            factors.append(schedule[1] if epoch >= 1 else 1.0)
        else:
            factors.append(schedule.factor(step, order.per_epoch, options["steps"]))
    return Training(
        model, batches, factors, learning, LOSSES[loss], options.get("weights"), derive_seed(seed, "forward")
    )


def compare(kind: str, loss: str, optimizer: Optimizer, at: Any, **options: Any) -> None:
    n = 11
    x, draw = inputs(kind, n), generator(1, "targets")
    y = torch.arange(n) % 3 if loss != "bce" else torch.rand(n, 3, generator=draw, dtype=torch.float64)
    part, model = Part(x, y), build(kind)
    rule: Any = {"smoothed": CrossEntropy(0.1), "function": LOSSES["function"]}.get(loss, loss)
    extra: dict[str, Any] = {}
    if optimizer.kind == "sgd":
        extra = {"momentum": optimizer.momentum, "nesterov": optimizer.nesterov}
        extra["optimizer_options"] = {"dampening": optimizer.dampening} if optimizer.dampening else {}
    else:
        extra["optimizer_options"] = {"betas": optimizer.betas}
    name = "gd" if optimizer.kind == "sgd" and options["batch_size"] is None else optimizer.kind
    asked = part.take(torch.arange(4))

    def of(network: Any) -> Tensor:
        outputs = network(**asked.x) if isinstance(asked.x, dict) else network(asked.x)
        return torch.cat([outputs[:, 0], outputs.square().sum()[None]])

    with tempfile.TemporaryDirectory() as folder:
        keywords: dict[str, Any] = {"lr": optimizer.lr, "weight_decay": optimizer.weight_decay, **extra, **options}
        training = fit(model, part, optimizer=name, loss=rule, store=Path(folder), measure=False, **keywords)
        recorded = training.final()
        found = replay(training, of, at=at, directions=0)
    weights = torch.as_tensor(at, dtype=torch.float64).expand(n)
    true = derivatives(written_out(build(kind), part, loss, options), optimizer, of, weights)
    if at == 1.0:
        assert found.certificate.reproduced
        for key, value in true["end"].items():
            torch.testing.assert_close(recorded.params[key], value, rtol=1e-9, atol=1e-10)
    pairs = {key: (getattr(found, key), true[key]) for key in ("weights", "values", "rate", "decay")}
    pairs |= {f"initial {key}": (value, true["initial"][key]) for key, value in found.initial.items()}
    assert found.initial.keys() == true["initial"].keys()
    for key, (one, other) in pairs.items():
        assert one.shape == other.shape, key
        apart = float((one - other).norm())
        assert apart <= ROUNDING * (float(other.norm()) + 1e-3), f"{key} is {apart:.2g} apart of {other.norm():.2g}"


GD = Optimizer("sgd", 0.2)
OPTIMIZERS = {
    "plain": GD,
    "decay": replace(GD, weight_decay=0.05),
    "momentum": replace(GD, lr=0.05, momentum=0.9, weight_decay=0.01),
    "dampened": replace(GD, momentum=0.8, dampening=0.3),
    "nesterov": replace(GD, lr=0.05, momentum=0.9, nesterov=True, weight_decay=0.01),
    "adam": Optimizer("adam", 0.02, weight_decay=0.01),
    "adamw": Optimizer("adamw", 0.02, weight_decay=0.1, betas=(0.8, 0.95)),
}
SCHEDULES = {"constant": None, "steps": {1: 0.3}, "cosine": Cosine(warmup=0.3), "triangular": Triangular(start=0.1)}
HALF = [0.5, 1.0, 0.0, 2.0, 0.7, 1.0, 0.0, 1.0, 1.0, 0.3, 1.0]  # two items are removed


def _slow(values: Iterable[Any], mark: str) -> list[Any]:
    return [pytest.param(value, marks=getattr(pytest.mark, mark)) for value in values]


@pytest.mark.parametrize("name", OPTIMIZERS)
@pytest.mark.parametrize("at", ["items", *_slow([1.0, 0.5], "guard")])
def test_every_optimizer(name: str, at: Any) -> None:
    compare("plain", "cross_entropy", OPTIMIZERS[name], HALF if at == "items" else at, steps=8, batch_size=4, seed=1)


@pytest.mark.parametrize("kind", ["named", "images", "dropout", "frozen"])
@pytest.mark.parametrize("name", ["adam", *_slow(["momentum"], "guard")])
def test_every_network(kind: str, name: str) -> None:
    compare(kind, "cross_entropy", OPTIMIZERS[name], HALF, steps=7, batch_size=4, seed=2)


def drawn(number: int) -> tuple[str, str, Optimizer, Any, dict[str, Any]]:
    """One of many set-ups."""
    draw = random.Random(number)
    kind = draw.choice(["plain", "named", "images", "dropout", "frozen"])
    options: dict[str, Any] = {
        "steps": draw.randint(1, 9),
        "batch_size": draw.choice([None, 1, 3, 4, 10]),
        "seed": draw.randint(0, 9),
        "schedule": SCHEDULES[draw.choice(sorted(SCHEDULES))],
        "drop_last": draw.random() < 0.5,
        "mode": draw.choice(["reg", "stop-first", "first-last"]),
    }
    if draw.random() < 0.5:
        options["weights"] = torch.linspace(0, 0.2, 11, dtype=torch.float64)
    if kind != "named" and draw.random() < 0.5:
        options["augment"] = Translate(2) if kind == "images" else noisy
    optimizer = OPTIMIZERS[draw.choice(sorted(OPTIMIZERS))]
    return kind, draw.choice(sorted(LOSSES)), optimizer, draw.choice([1.0, 0.5, HALF]), options


@pytest.mark.parametrize("number", [0, 1, 2, 3, *_slow(range(4, 50), "guard"), *_slow(range(50, 400), "nightly")])
def test_drawn_trainings(number: int) -> None:
    kind, loss, optimizer, at, options = drawn(number)
    compare(kind, loss, optimizer, at, **options)


def test_the_comparison_can_fail(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(
        LOSSES, "cross_entropy", lambda o, y: nn.functional.cross_entropy(o, y, reduction="none") * (1 + 1e-7)
    )
    with pytest.raises(AssertionError, match=r"weights is .* apart"):
        compare("plain", "cross_entropy", OPTIMIZERS["momentum"], HALF, steps=5, batch_size=4, seed=1)
