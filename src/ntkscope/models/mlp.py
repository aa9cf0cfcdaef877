"""The fully connected network, in the standard or the NTK parametrisation, with the papers' initialisations."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Annotated, Any, TypeAlias

import torch
from torch import Tensor, nn

from ntkscope.core import UsageError
from ntkscope.core.checked import Count, CountOrZero, NonNegative, Number
from ntkscope.models._init import seeded
from ntkscope.models._layers import NTKLinear
from ntkscope.models._layers import activation as make_activation
from ntkscope.models.registry import MODELS

Law: TypeAlias = Annotated[str, ("normal", "uniform", "sign", "cauchy")]


class MLP(nn.Sequential):
    """flatten, then `layer1 act1 layer2 act2 …` and `readout`, called one after the other."""

    def __init__(self, affine: Sequence[nn.Module], activation: str | nn.Module) -> None:
        super().__init__()
        self.flatten = nn.Flatten()
        for i, layer in enumerate(affine[:-1], start=1):
            self.add_module(f"layer{i}", layer)
            self.add_module(f"act{i}", make_activation(activation))
        self.readout = affine[-1]


@MODELS.register("mlp")
def mlp(
    in_features: Count,
    classes: Count = 1,
    *,
    widths: Count | Sequence[Count] = 128,
    depth: CountOrZero | None = None,
    bias: bool = True,
    activation: str | nn.Module = "relu",
    ntk: bool = False,
    sigma_w: NonNegative | Sequence[NonNegative] | None = None,
    sigma_b: NonNegative | Sequence[NonNegative] | None = None,
    law: Law | Sequence[Law] = "normal",
    init_scale: Number | Sequence[Number] = 1.0,
    symmetric: bool = False,
    seed: int | None = 0,
) -> MLP:
    """z⁽ˡ⁾ = σ(W⁽ˡ⁾ z⁽ˡ⁻¹⁾ + b⁽ˡ⁾) for each hidden layer, then an affine readout; inputs are flattened.

    `widths` lists the hidden layers, or is one width used `depth` times (default 2). The initialisation options
    are one value, or a list with one value per affine layer, readout included:

    - `sigma_w=None`, `ntk=False`: PyTorch's default for `nn.Linear`.
    - `sigma_w` given, `ntk=False`: W = σ_w / √fan_in · ξ, b ~ N(0, σ_b²), σ_b = 0 unless given.
    - `ntk=True`: the layer is σ_w W x / √fan_in + σ_b b with W = ξ, b ~ N(0, 1); both 1 unless given. The same random
      function as the line above, with the scales outside the parameters.

    ξ follows `law`: normal, uniform on [−1, 1], sign (±1) or cauchy. `init_scale` multiplies the weights once they are
    drawn (the s_ℓ of the feature-ansatz paper, a variance, is its square). `symmetric=True` pairs the units of the last
    hidden layer with opposite readouts, so that the network starts as the zero function.

    The MNIST2 network in the public code of Engel et al. (2024) divides each hidden pre-activation by √100:
    `mlp(784, 1, widths=100, depth=3, ntk=True, sigma_w=[2.8, 1, 1, 10], sigma_b=[0.1, 0.1, 0.1, 1])`.

    Examples:
        >>> net = mlp(1, widths=128, depth=3, activation="tanh")
        >>> sum(p.numel() for p in net.parameters())
        33409
    """
    sizes = [in_features, *_hidden(widths, depth), classes]
    if not ntk and sigma_w is None and (sigma_b is not None or law != "normal"):
        raise UsageError(
            "got sigma_b or law without sigma_w, which means PyTorch's default weights; give sigma_w as well"
        )
    count = len(sizes) - 1
    with seeded(seed, "mlp"):
        affine = [
            _affine(fan_in, fan_out, bias, ntk, s_w, s_b, kind, factor)
            for fan_in, fan_out, s_w, s_b, kind, factor in zip(
                sizes[:-1],
                sizes[1:],
                _per_layer("sigma_w", sigma_w, count),
                _per_layer("sigma_b", sigma_b, count),
                _per_layer("law", law, count),
                _per_layer("init_scale", init_scale, count),
                strict=True,
            )
        ]
    if symmetric:
        _pair_units(affine)
    return MLP(affine, activation)


def _hidden(widths: int | Sequence[int], depth: int | None) -> list[int]:
    """The hidden widths as a list."""
    hidden = [widths] * (2 if depth is None else depth) if isinstance(widths, int) else list(widths)
    if depth is not None and len(hidden) != depth:
        raise UsageError(f"widths {hidden} with depth {depth}; give one width and a depth, or a list of widths alone")
    return hidden


def _per_layer(name: str, value: Any, count: int) -> list[Any]:
    """`value` for each of `count` affine layers; a list is taken as it is."""
    if isinstance(value, str) or not isinstance(value, Sequence):
        return [value] * count
    if len(value) != count:
        raise UsageError(f"{name} has {len(value)} values; expected one, or {count}: hidden layers and readout")
    return list(value)


def _affine(
    fan_in: int,
    fan_out: int,
    bias: bool,
    ntk: bool,
    sigma_w: float | None,
    sigma_b: float | None,
    law: Law,
    init_scale: float,
) -> nn.Linear | NTKLinear:
    """One affine layer with its initial weights."""
    layer: nn.Linear | NTKLinear
    if ntk:
        layer = NTKLinear(
            fan_in, fan_out, bias, 1.0 if sigma_w is None else sigma_w, 1.0 if sigma_b is None else sigma_b
        )
        _draw_(layer.weight, law, init_scale)
        return layer
    layer = nn.Linear(fan_in, fan_out, bias)
    if sigma_w is None:
        with torch.no_grad():
            layer.weight.mul_(init_scale)
        return layer
    _draw_(layer.weight, law, init_scale * sigma_w / math.sqrt(fan_in))
    if bias:
        nn.init.normal_(layer.bias, std=sigma_b or 0.0)
    return layer


def _draw_(weight: Tensor, law: Law, scale: float) -> None:
    """Fill `weight` with `scale` times independent draws of `law`."""
    with torch.no_grad():
        match law:
            case "normal":
                weight.normal_()
            case "uniform":
                weight.uniform_(-1, 1)
            case "sign":
                weight.bernoulli_(0.5).mul_(2).sub_(1)
            case "cauchy":
                weight.cauchy_()
        weight.mul_(scale)


def _pair_units(affine: Sequence[nn.Linear | NTKLinear]) -> None:
    """Make unit i + m/2 of the last hidden layer a copy of unit i with the opposite readout: f = 0 at the start."""
    *_, last, readout = [None, *affine]
    if last is None or last.out_features % 2:
        units = "no hidden layer" if last is None else f"{last.out_features} units in the last hidden layer"
        raise UsageError(f"got symmetric initialisation with {units}; expected an even number of units")
    half = last.out_features // 2
    with torch.no_grad():
        last.weight[half:] = last.weight[:half]
        if last.bias is not None:
            last.bias[half:] = last.bias[:half]
        readout.weight[:, half:] = -readout.weight[:, :half]
        if readout.bias is not None:
            readout.bias.zero_()
