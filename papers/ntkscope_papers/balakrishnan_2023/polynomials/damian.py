"""The algorithm of Damian, Lee and Soltanolkotabi, "Neural networks can learn representations with gradient descent" (2022).

From a symmetric start, whose output is exactly 0: one large gradient step on the first layer with a weight decay of one over
its rate, so that the start is forgotten; then fresh biases, and ridge regression on the units. Targets lose their mean and
their linear part before. Inputs are standardised: the paper's are N(0, I).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from jaxtyping import Float64
from torch import Tensor, nn

from ntkscope import models
from ntkscope.core import generator

STEPS = (0.5, 1.0, 2.0, 4.0)  # sizes of the step: root mean square of the units' inputs after it
RIDGES = tuple(10.0**k for k in range(-8, 3))  # over the mean square of the units' outputs


@dataclass(frozen=True, eq=False)
class Start:
    """Units in pairs: weights (m, d) whose second half repeats the first, signs (m,) whose second half is opposite."""

    weight: Float64[Tensor, "m d"]
    readout: Float64[Tensor, " m"]

    @classmethod
    def draw(cls, width: int, dimension: int, seed: int, device: torch.device) -> Start:
        """w ~ N(0, I / d), a = ± 1, biases 0."""
        random = generator(seed, "damian")
        half = torch.randn(width // 2, dimension, generator=random, dtype=torch.float64) / math.sqrt(dimension)
        signs = torch.where(torch.rand(width // 2, generator=random, dtype=torch.float64) < 0.5, 1.0, -1.0).double()
        return cls(torch.cat([half, half]).to(device), torch.cat([signs, -signs]).to(device))

    def outputs(self, z: Float64[Tensor, "n d"]) -> Float64[Tensor, " n"]:
        """The halves one after the other, so that the second is minus the first to the last digit and the sum exactly 0."""
        half = len(self.readout) // 2
        first, second = (
            torch.relu(z @ self.weight[part].contiguous().T) @ self.readout[part]
            for part in (slice(0, half), slice(half, None))
        )
        return first + second


@dataclass(frozen=True, eq=False)
class Learned:
    """`f(z) = mean + slope·z + readout·relu(W z + b)`, step and ridge chosen on validation items."""

    mean: float
    slope: Float64[Tensor, " d"]
    weight: Float64[Tensor, "m d"]
    bias: Float64[Tensor, " m"]
    readout: Float64[Tensor, " m"]
    step: float
    ridge: float
    start: float
    """The largest |output| at the start."""

    def linear(self, z: Float64[Tensor, "n d"]) -> Float64[Tensor, " n"]:
        """What was taken off the targets."""
        return self.mean + z @ self.slope

    def __call__(self, z: Float64[Tensor, "n d"]) -> Float64[Tensor, " n"]:
        return self.linear(z) + torch.relu(z @ self.weight.T + self.bias) @ self.readout

    def network(self) -> nn.Module:
        """The network without the linear part, in double precision."""
        model = models.build("mlp", in_features=self.weight.shape[1], widths=[len(self.weight)]).double()
        values = (self.weight, self.bias, self.readout[None], torch.zeros(1, dtype=torch.float64))
        with torch.no_grad():
            for parameter, value in zip(model.parameters(), values):
                parameter.copy_(value)
        return model.to(self.weight.device).eval()


def first_step(start: Start, z: Float64[Tensor, "n d"], y: Float64[Tensor, " n"]) -> Float64[Tensor, "m d"]:
    """Minus the gradient of the mean squared error by the first layer's weights, where the outputs are 0.

    `2/n Σ_i y_i a_j 1[w_j·z_i > 0] z_i`: what one step of rate η with weight decay 1/η leaves, over η.
    """
    active = (z @ start.weight.T > 0).to(z.dtype)
    return 2 / len(y) * start.readout[:, None] * (active.T @ (y[:, None] * z))


def learn(
    z: Mapping[str, Float64[Tensor, "n d"]],
    y: Mapping[str, Float64[Tensor, " n"]],
    width: int,
    seed: int,
) -> Learned:
    """The algorithm on standardised inputs and targets by part; step and ridge by the MSE of validation items."""
    train, held = z["train"], z["validation"]
    mean = float(y["train"].mean())
    slope = ((y["train"] - mean)[:, None] * train).mean(0)
    rest, rest_held = (y[name] - mean - z[name] @ slope for name in ("train", "validation"))
    start = Start.draw(width, train.shape[1], seed, train.device)
    moved = first_step(start, train, rest)
    unit = float((train @ moved.T).square().mean().sqrt())
    bias = torch.randn(width, generator=generator(seed, "damian", "biases"), dtype=torch.float64).to(train.device)
    best, found = math.inf, None
    for step in STEPS:
        weight = moved * (step / unit)
        units, units_held = torch.relu(train @ weight.T + bias), torch.relu(held @ weight.T + bias)
        gram, right = units.T @ units / len(units), units.T @ rest / len(units)
        values, vectors = torch.linalg.eigh(gram)
        scale, turned, seen = float(values.mean()), vectors.T @ right, units_held @ vectors
        for ridge in RIDGES:
            solution = turned / (values.clamp_min(0) + ridge * scale)
            error = float((seen @ solution - rest_held).square().mean())
            if error < best:
                best = error
                found = weight, vectors @ solution, step, ridge
    assert found is not None
    largest = float(start.outputs(train).abs().max())
    weight, readout, step, ridge = found
    return Learned(mean, slope, weight, bias, readout, step, ridge, largest)
