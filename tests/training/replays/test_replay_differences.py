"""Derivatives of replays against whole retrainings by `fit`: central differences, and items that are really left out."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from ntkscope.core import Part, generator
from ntkscope.training import Cosine, CrossEntropy, Translate, Triangular, fit, replay

N, STEPS, SIZE = 12, 20, 2e-5
ALLOWED = 1e-5  # of the norm: SIZE² / 6 of a third derivative, and 1e-16 / SIZE of rounding, magnified by twenty steps


def vectors(n: int = N, dtype: torch.dtype = torch.float64) -> Part:
    draw = generator(0, "differences")
    x = torch.randn(n, 5, generator=draw, dtype=dtype)
    return Part(x, (x @ torch.randn(5, 3, generator=draw, dtype=dtype)).argmax(1))


def images() -> Part:
    return Part(torch.randn(N, 1, 6, 6, generator=generator(0, "images"), dtype=torch.float64), torch.arange(N) % 3)


def network(
    *, image: bool = False, dropout: float = 0.0, relu: bool = False, dtype: torch.dtype = torch.float64
) -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        if image:
            layers = [nn.Conv2d(1, 3, 3), nn.Tanh(), nn.AvgPool2d(2), nn.Flatten(), nn.Linear(12, 3)]
            return nn.Sequential(*layers).to(dtype)
        bend = nn.ReLU if relu else nn.Tanh
        return nn.Sequential(
            nn.Linear(5, 16), bend(), nn.Dropout(dropout), nn.Linear(16, 8), bend(), nn.Linear(8, 3)
        ).to(dtype)


def noisy(x: Tensor, draw: torch.Generator) -> Tensor:
    return x + 0.1 * torch.randn(x.shape, generator=draw, dtype=x.dtype)


# Adam's first step is g / (|g| + ε), a kink for all but the smallest differences unless ε is of the size of a gradient.
SMOOTH = {"lr": 0.02, "optimizer_options": {"eps": 1e-2}}
SETUPS: dict[str, dict[str, Any]] = {
    "gradient descent": {"optimizer": "gd", "batch_size": None, "lr": 0.3},
    "sgd, cosine": {"schedule": Cosine(warmup=0.2)},
    "momentum, decay, steps": {"momentum": 0.9, "lr": 0.03, "weight_decay": 0.01, "schedule": {3: 0.3}},
    "nesterov, triangular": {"momentum": 0.9, "nesterov": True, "lr": 0.03, "schedule": Triangular()},
    "dampening, a short batch": {"momentum": 0.8, "optimizer_options": {"dampening": 0.4}, "batch_size": 5},
    "adam, cosine": {"optimizer": "adam", **SMOOTH, "weight_decay": 0.01, "schedule": Cosine()},
    "adamw, triangular": {"optimizer": "adamw", **SMOOTH, "weight_decay": 0.1, "schedule": Triangular(start=0.1)},
    "translated images": {"augment": Translate(2), "momentum": 0.5},
    "adamw, noise, item weights": {
        "optimizer": "adamw",
        **SMOOTH,
        "augment": noisy,
        "weights": torch.linspace(0.01, 0.2, N).double(),
    },
    "dropout, smoothed labels": {"dropout": 0.3, "loss": CrossEntropy(0.1), "momentum": 0.9, "lr": 0.05},
    "the first layer stops": {"mode": "stop-first", "optimizer": "adam", **SMOOTH, "drop_last": True, "batch_size": 5},
}


def trained(setup: dict[str, Any], change: Callable[[nn.Module], None] | None = None, **more: Any) -> Any:
    options = {"lr": 0.2, "batch_size": 4, "steps": STEPS, "seed": 3, "measure": False, **setup, **more}
    image = isinstance(options.get("augment"), Translate)
    model = network(image=image, dropout=options.pop("dropout", 0.0))
    if change is not None:
        change(model)
    return fit(model, images() if image else vectors(), **options)


def outputs(model: nn.Module) -> Tensor:
    image = isinstance(next(model.children()), nn.Conv2d)
    return model(images().x[:4] + 0.1 if image else vectors().x[:4] + 0.1).flatten()


def after(trajectory: Any) -> Tensor:
    trajectory.final()
    with torch.no_grad():
        return outputs(trajectory.run.model.eval())


def central(run: Callable[[float], Any]) -> Tensor:
    return (after(run(SIZE)) - after(run(-SIZE))) / (2 * SIZE)


@pytest.mark.guard
@pytest.mark.parametrize("name", SETUPS)
@pytest.mark.parametrize("share", [1.0, 0.5])
def test_against_central_differences_of_retrainings(name: str, share: float, tmp_path: Path) -> None:
    setup = SETUPS[name]
    recorded = trained(setup, store=tmp_path)
    recorded.final()
    found = replay(recorded, outputs, at=share, directions=0)
    own = setup.get("weights", torch.full((N,), 1 / N, dtype=torch.float64))
    rest = {key: value for key, value in setup.items() if key != "weights"}
    factor, decay = recorded.run.settings.rate.factor, rest.pop("weight_decay", 0.0)
    per_epoch = recorded.run.per_epoch

    def again(by: Tensor | float = 0.0, *, late: float = 0.0, more: float = 0.0, change: Any = None) -> Any:
        def schedule(step: int) -> float:
            return float(factor(step, per_epoch, STEPS)) * (math.exp(late) if step == 7 else 1.0)

        given = {**rest, "weights": own * (share + by), "schedule": schedule, "weight_decay": decay + more}
        return trained(given, change=change)

    one = torch.eye(N, dtype=torch.float64)

    def weighted(item: int) -> Callable[[float], Any]:
        return lambda h: again(h * one[item])

    measured = {"weights": torch.stack([central(weighted(item)) for item in range(N)], 1)}
    measured["rate"] = central(lambda h: again(late=h))
    draw = generator(2, "start")
    push = {
        key: torch.randn(value.shape[1:], generator=draw, dtype=torch.float64) for key, value in found.initial.items()
    }

    def pushed(h: float) -> Callable[[nn.Module], None]:
        def change(model: nn.Module) -> None:
            for key, p in model.named_parameters():
                p.data.add_(h * push[key])

        return change

    measured["initial"] = central(lambda h: again(change=pushed(h)))
    predicted = {"weights": found.weights, "rate": found.rate[:, 7]}
    predicted["initial"] = sum(
        (value.flatten(1) @ push[key].flatten() for key, value in found.initial.items()), torch.zeros(())
    )
    if decay:  # 0 cannot be stepped below
        measured["decay"], predicted["decay"] = central(lambda h: again(more=h)), found.decay
    errors = {key: float((predicted[key] - value).norm() / value.norm()) for key, value in measured.items()}
    print(f"\n| {name}, at {share:g} | " + " | ".join(f"{key} {error:.1e}" for key, error in errors.items()) + " |")
    assert max(errors.values()) <= ALLOWED, errors
    assert min(float(value.norm()) for value in measured.values()) > 1e-3  # there is something to compare


def margins(model: nn.Module) -> Tensor:
    part = vectors(40)
    logits = model(part.x[:8].to(next(model.parameters()).dtype) + 0.2)
    return logits[:, 0] - logits[:, 1:].logsumexp(1)


def left_out(weights: Tensor, options: dict[str, Any], dtype: torch.dtype) -> Tensor:
    trajectory = fit(network(relu=True, dtype=dtype), vectors(40, dtype), weights=weights / 40, **options)
    trajectory.final()
    with torch.no_grad():
        return margins(trajectory.run.model.eval())


@pytest.mark.guard
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("together", [1, 2])
def test_relu_networks_and_items_that_are_left_out(dtype: torch.dtype, together: int, tmp_path: Path) -> None:
    """An item that leaves moves some units over their kinks, and a removal is more than a derivative."""
    options: dict[str, Any] = {
        "lr": 0.02,
        "momentum": 0.9,
        "weight_decay": 1e-3,
        "steps": 40,
        "batch_size": 8,
        "seed": 3,
        "measure": False,
    }
    recorded = fit(network(relu=True, dtype=dtype), vectors(40, dtype), store=tmp_path, **options)
    recorded.final()
    found = replay(recorded, margins, directions=0)
    everything = torch.ones(40, dtype=dtype)
    base = left_out(everything, options, dtype)
    torch.testing.assert_close(found.values, base, rtol=1e-4, atol=1e-5)
    groups = [torch.tensor([(7 * i + j) % 40 for j in range(together)]) for i in range(0, 40, together)]
    real = torch.stack([left_out(everything.index_fill(0, group, 0.0), options, dtype) - base for group in groups], 1)
    predicted = torch.stack([-found.weights[:, group].sum(1) for group in groups], 1)
    correlation = float(torch.corrcoef(torch.stack([predicted.flatten(), real.flatten()]))[0, 1])
    print(f"\n| ReLU, {dtype}, {together} left out | correlation {correlation:.4f} |")
    assert correlation >= 0.99
