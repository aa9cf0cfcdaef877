"""Wide networks beside their limit: empirical kernels of many draws, training to convergence, slopes against width."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional

from ntkscope.core import NumericalError, UsageError, numpy_generator
from ntkscope.infinite import Dense, Relu, finite, serial
from ntkscope.infinite.layer import Layer
from ntkscope.infinite.rules.conv import NTKConv
from ntkscope.models import NTKLinear
from ntkscope_papers.framework.intervals import estimate

RESAMPLED = 1000


def relu_network(inputs: int, hidden: int) -> Layer:
    """The fully connected ReLU network of Arora et al. (2019): `hidden` layers, no biases, first layer not divided by √d."""
    return serial(Dense(inputs**0.5), *[Relu(normalize=True), Dense()] * hidden)


def on_sphere(x: Float[Tensor, " n *s"]) -> Float[Tensor, "n d"]:
    """Inputs in double precision scaled to norm √d."""
    x = x.flatten(1).double()
    return x / x.norm(dim=1, keepdim=True) * math.sqrt(x.shape[1])


def dense_ntk(model: nn.Module, x: Float[Tensor, "n d"]) -> Float[Tensor, "n n"]:
    """The empirical NTK of a fully connected network with one output in the NTK parametrisation; float64 sums.

    Σ_l (s_l² a_l·a_l′ + σ_b²) (b_l·b_l′), with a_l what layer l sees, b_l the derivative behind it and s_l its scale. One
    forward and one backward pass, so that many networks can be drawn; a test checks it against `ns.kernel("trntk0", …)`.

    >>> from ntkscope.infinite import finite
    >>> dense_ntk(finite(Dense(2.0), (4,), 8), torch.ones(1, 4)).item()
    4.0
    """
    seen: list[tuple[NTKLinear, Tensor, Tensor]] = []
    hooks = [
        layer.register_forward_hook(lambda module, given, out: seen.append((module, given[0], out)))
        for layer in model.modules()
        if isinstance(layer, NTKLinear)
    ]
    try:
        with torch.enable_grad():
            behind = torch.autograd.grad(model(x).sum(), [z for _, _, z in seen])
    finally:
        for hook in hooks:
            hook.remove()
    K = torch.zeros(len(x), len(x), dtype=torch.float64, device=x.device)
    for (layer, given, _), cotangent in zip(seen, behind):
        a, b = given.detach().double(), cotangent.double()
        bias = 0.0 if layer.bias is None else float(layer.sigma_b) ** 2
        K += (layer.weight_scale**2 * (a @ a.T) + bias) * (b @ b.T)
    return K


def sample_ntk(model: nn.Module, x: Float[Tensor, " n *s"]) -> Float[Tensor, "n n"]:
    """The empirical NTK of few inputs to a network with one output: the gradients themselves, one backward pass per input."""
    parameters = [p for p in model.parameters() if p.requires_grad]
    rows = [torch.autograd.grad(model(one[None]).sum(), parameters) for one in x]
    K = torch.zeros(len(x), len(x), dtype=torch.float64, device=x.device)
    for parts in zip(*rows):
        J = torch.stack([part.flatten() for part in parts])
        K += (J @ J.T).double()
    return K


def descend(
    model: nn.Module,
    x: Float[Tensor, "n d"],
    y: Float[Tensor, " n"],
    *,
    lr: float,
    kappa: float = 1.0,
    tolerance: float = 1e-3,
    steps: int = 5000,
) -> dict[str, Any]:
    """Full-batch gradient descent of κ f on ½ Σ (κ f − y)² until no residual exceeds `tolerance`; changes `model`.

    The step is halved whenever the loss rises: a network that moves far enough becomes sharper during training.
    """
    parameters = [p for p in model.parameters() if p.requires_grad]
    worst = before = float("inf")
    for step in range(steps + 1):
        residual = kappa * model(x)[:, 0] - y
        worst = float(residual.detach().abs().max())
        if worst < tolerance:
            return {"steps": step, "residual": worst}
        if not np.isfinite(worst):
            break
        loss = residual.square().sum() / 2
        lr, before = lr / 2 if float(loss.detach()) > before else lr, float(loss.detach())
        gradients = torch.autograd.grad(loss, parameters)
        with torch.no_grad():
            for p, g in zip(parameters, gradients):
                p.sub_(g, alpha=lr)
    raise NumericalError(
        f"a residual of {worst:.3g} was left after {step} steps of {lr:.3g}; expected less than {tolerance:g}:"
        " take a smaller learning rate, or a wider network"
    )


def width_slope(
    widths: Sequence[int], values: Sequence[Sequence[float]] | np.ndarray, *, power: int = 1
) -> dict[str, float]:
    """The slope of log mean against log width by least squares, with a 95 % bootstrap interval over draws.

    `values`: those of every draw, one sequence per width. `power=2` takes the root of the mean square.

    >>> found = width_slope([4, 16, 64], [[2.0, 2.0], [1.0, 1.0], [0.5, 0.5]])
    >>> [round(found[key], 3) for key in ("slope", "low", "high")]
    [-0.5, -0.5, -0.5]
    """
    if len(widths) < 2:
        raise UsageError(f"got {len(widths)} width(s); expected at least two for a slope")
    at = np.log(np.asarray(widths, dtype=np.float64))
    draw = numpy_generator(0, "slope")
    columns = [np.asarray(v, dtype=np.float64) ** power for v in values]
    mean = np.log([[column.mean()] for column in columns]) / power
    again = [column[draw.integers(0, len(column), (RESAMPLED, len(column)))].mean(1) for column in columns]
    slopes = np.polyfit(at, np.log(np.stack(again)) / power, 1)[0]
    low, high = np.quantile(slopes, [0.025, 0.975])
    return {"slope": float(np.polyfit(at, mean, 1)[0, 0]), "low": float(low), "high": float(high)}


def interval(found: dict[str, float]) -> dict[str, Any]:
    """Slope and interval, as records show them."""
    return estimate(found["slope"], found["low"], found["high"], digits=3)


class Convolution(nn.Module):
    """A convolution of the NTK parametrisation with its scale on the input: the engine's rule for convolutions applies."""

    def __init__(self, inner: NTKConv) -> None:
        super().__init__()
        if inner.bias is not None or inner.kind.circular:
            raise UsageError(f"got {inner.kind}; expected zero padding and no bias")
        self.inner = inner

    def forward(self, x: Float[Tensor, "n c h w"]) -> Float[Tensor, "n k h2 w2"]:
        edges: list[int] = []
        for length, t in reversed(list(zip(self.inner.spatial, self.inner.taps))):
            edges += [t.before, (t.output - 1) * t.stride + (t.size - 1) * t.dilation + 1 - t.before - length]
        padded = functional.pad(self.inner.weight_scale * x, edges)
        return functional.conv2d(padded, self.inner.weight, stride=[t.stride for t in self.inner.taps])


def convolutional_network(net: Layer, shape: tuple[int, ...], channels: int, seed: int) -> nn.Module:
    """`finite(net, …)` with one output, the same function of the same parameters in a form the engine is fast for."""
    model = finite(net, shape, channels, seed=seed)
    assert isinstance(model, nn.Sequential)
    inside = [part for each in model for part in (each if isinstance(each, nn.Sequential) else [each])]
    return nn.Sequential(*(Convolution(part) if isinstance(part, NTKConv) else part for part in inside))
