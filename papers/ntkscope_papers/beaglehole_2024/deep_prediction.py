"""Beaglehole et al., Figure 6: the start of the centred correlation with two hidden layers, and its first-order prediction."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from ntkscope import data, models
from ntkscope.core import Claim, Record
from ntkscope.data._quadratic_form import spectrum
from ntkscope.infinite import Relu
from ntkscope.measures import early_time as early
from ntkscope_papers.beaglehole_2024.deep_claims import PUBLISHED, draw, read
from ntkscope_papers.beaglehole_2024.layer_views import layer_view
from ntkscope_papers.framework.claims import Published, verdicts
from ntkscope_papers.framework.experiment import Experiment, Run
from ntkscope_papers.framework.legs import Leg, run_legs

NAME = "deep-prediction"


@dataclass(frozen=True)
class DeepPrediction(Experiment):
    """Beaglehole et al., Figure 6, App. C: two hidden layers, quadratic and ReLU, by decay of the data's spectrum.

    `decays` are the α of the data's eigenvalues 1/(1 + k^α); their grid is not published.
    """

    name = NAME
    free = ["seeds"]

    tasks: tuple[str, ...] = ("chain-monomial", "high-rank-polynomial")
    activations: tuple[str, ...] = ("quadratic", "relu")
    widths: tuple[int, ...] = (128, 1024)
    items: int = 128
    dimension: int = 128
    decays: tuple[float, ...] = (0.0, 0.25, 0.5, 0.75, 1.0, 1.25, 1.5, 1.75, 2.0, 3.0, 5.0, 10.0)
    seeds: int = 10

    smoke = {
        "widths": (16, 64),
        "items": 16,
        "dimension": 16,
        "decays": (0.0, 1.0, 2.0, 10.0),
        "seeds": 2,
    }

    def measure(self, run: Run) -> None:
        run_legs(run.record, legs(self, run.seed, run.device), self.legs, progress=run.progress)

    @classmethod
    def published(cls) -> tuple[Published, ...]:
        return tuple(PUBLISHED.values())

    def judge(self, record: Record, difference: str) -> Iterator[Claim]:
        return verdicts(self.name, PUBLISHED, read(), self, record, difference)

    def draw(self, record: Record) -> Mapping[str, Any]:
        return draw(record)


def linear_slope(cov: Tensor, q1: Tensor, q2: Tensor) -> tuple[Tensor, Tensor]:
    """ReLU with only the constant and linear part of its slope: E[φ̇φ̇] = 1/4 + cos θ / 2π, the first terms of (π - θ) / 2π."""
    values, _ = Relu().covariances(cov, q1, q2, False)
    return values, 0.25 + cov / (q1 * q2).sqrt().clamp(min=1e-300) / (2 * math.pi)


def one_decay(
    config: DeepPrediction, task: str, activation: str, width: int, decay: float, seed: int, device: torch.device
) -> dict[str, float]:
    """ρ(ẆᵀẆ, ẆᵀKẆ) of the first layer of one network, with the labels and with its residuals; predictions."""
    options: dict[str, Any] = {
        "dimension": config.dimension,
        "decay": decay,
        "train": config.items,
        "test": 1,
        "dtype": "float64",
    }
    part = data.load(task, seed=seed, **options).train
    x, y = part.x.to(device), part.y.to(device)
    model = models.build(
        "mlp",
        in_features=config.dimension,
        widths=width,
        depth=2,
        bias=False,
        sigma_w=1.0,
        activation=activation,
        seed=seed,
    )
    model = model.double().to(device)
    view = layer_view(model, model.get_submodule("layer1"), x)
    tangents, outputs = view.tangents[:, 0], view.outputs[:, 0]
    network: dict[str, Any] = {"activation": activation, "depth": 2}
    found = {
        "observed": early.feature_derivatives(x, tangents, y).correlation,
        "observed, residuals": early.feature_derivatives(x, tangents, y - outputs).correlation,
        "predicted": early.first_order_prediction(x, y, **network).correlation,
    }
    if activation == "quadratic":
        found["predicted, this width"] = early.first_order_prediction(x, y, width=width, **network).correlation
    else:
        found["predicted, linear slope"] = early.first_order_prediction(
            x, y, activation=linear_slope, depth=2
        ).correlation
    return found


def one_network(
    config: DeepPrediction, task: str, activation: str, width: int, seed: int, device: torch.device
) -> dict[str, Any]:
    found = {f"{a:g}": one_decay(config, task, activation, width, a, seed, device) for a in config.decays}
    return {"decays": found}


def limits(dimension: int) -> dict[str, Any]:
    """The data's eigenvalues at both ends of α, k from 1, and from 0."""
    flat, steep = spectrum(dimension, 0), spectrum(dimension, float("inf"))
    from_zero = 1 / (1 + torch.arange(dimension, dtype=torch.float64) ** 60.0)
    return {
        "alpha 0": [float(flat.min()), float(flat.max())],
        "alpha infinite": [float(steep[0]), float(steep[1:].max())],
        "alpha 60, k from 0": from_zero[:3].tolist(),
    }


def legs(config: DeepPrediction, seed: int, device: torch.device) -> list[Leg]:
    found = [Leg("spectrum", partial(limits, config.dimension))]
    for task in config.tasks:
        for activation in config.activations:
            for width in config.widths:
                found += [
                    Leg(
                        f"{task}/{activation}/{width}/{s - seed}",
                        partial(one_network, config, task, activation, width, s, device),
                    )
                    for s in range(seed, seed + config.seeds)
                ]
    return found
