"""Fully connected layers: `Dense`, `nn.Linear`, and the linear layer of the NTK parametrisation."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, final

import torch
from torch import Tensor, nn

from ntkscope.core import UsageError
from ntkscope.core.checked import Count, NonNegative
from ntkscope.infinite.field import Field, Values
from ntkscope.infinite.layer import Context, Layer, Need, Shape, Weighted
from ntkscope.infinite.registry import Affine, Translator, affine_scales, layer, module_rule, ntk_factors
from ntkscope.models._layers import NTKLinear


@layer
@final
@dataclass(frozen=True)
class Dense(Weighted):
    """z = σ_w W g / √fan_in + σ_b b with W, b standard normal.

    Σ′ = σ_w² Σ + σ_b², and Θ′ = σ_w² Θ + Σ′ in the NTK parametrisation. In the standard one, where the scales are in the
    parameters, Θ′ = σ_w² Θ + fan_in Σ + 1 (without the 1 if there is no bias); it needs the fan-in, so `width` has to be
    given for hidden layers. O(nm). Jacot et al. (2018), Proposition 1; Lee et al. (2019), appendix E.

    Examples:
        >>> Dense(W_std=2.0, b_std=1.0)
        Dense(W_std=2, b_std=1)
    """

    W_std: NonNegative = 1.0
    b_std: NonNegative = 0.0
    width: Count | None = None
    train_weight: bool = True
    train_bias: bool = True
    module: Affine | None = None
    """What else a module says about itself, if the layer was made from one."""

    def __repr__(self) -> str:
        return f"Dense({scales_shown(self)})"

    def shape(self, given: Shape, path: str) -> Shape:
        if given.spatial:
            raise UsageError(
                f"{self} (at {path!r}) follows images {given}; expected vectors: put Flatten() or GlobalAvgPool()"
                " before it, or use Conv(1)"
            )
        check_fan_in(self, given, path)
        return Shape(self.width, gaussian=True)

    def follows_shifts(self, wrap: bool) -> bool:
        return True

    def propagate(self, given: Field, context: Context, path: str, need: Need) -> Field | None:
        weights, biases = gradient_scales(self, context, path, 1)
        scale, offset = float(self.W_std) ** 2, float(self.b_std) ** 2
        nngp = plus(offset, given.nngp, scale)
        ntk = None
        if context.tangent and (weights, biases) == (scale, offset):
            ntk = nngp if given.ntk is None else plus(nngp, given.ntk, scale)
        elif context.tangent:
            ntk = plus(biases, given.nngp, weights)
            ntk = ntk if given.ntk is None else plus(ntk, given.ntk, scale)
        return replace(given, nngp=nngp, ntk=ntk)

    def finite(self, given: Shape, width: int, outputs: int | None) -> nn.Module:
        if given.features is None:
            raise UsageError(f"{self} follows an unknown number of features; give the input's shape")
        return NTKLinear(
            given.features, outputs or self.width or width, self.b_std != 0, float(self.W_std), float(self.b_std)
        )


def plus(first: Values | float, values: Values, scale: float) -> Values:
    """first + scale · values, in one pass over memory."""
    if not isinstance(values, Tensor):
        return values * scale + first
    start = first if isinstance(first, Tensor) else torch.full((), first, dtype=values.dtype, device=values.device)
    return torch.add(start, values, alpha=scale)


def scales_shown(kind: Any) -> str:
    """The scales of an affine layer to the last digit, and what else tells its kernel from another's."""
    shown = [f"W_std={_number(kind.W_std)}", f"b_std={_number(kind.b_std)}"]
    if kind.width is not None:
        shown.append(f"width={kind.width}")
    shown += [f"{name}=False" for name in ("train_weight", "train_bias") if not getattr(kind, name)]
    if kind.module is not None:
        shown.append(f"module={kind.module}")
    return ", ".join(shown)


def _number(value: float | int) -> str:
    return repr(float(value)).removesuffix(".0")


def check_fan_in(kind: Any, given: Shape, path: str) -> None:
    """Raise an error if a module would refuse what comes before it."""
    expected = None if kind.module is None else kind.module.fan_in
    if expected is not None and given.features is not None and given.features != expected:
        raise UsageError(
            f"{type(kind).__name__} (at {path!r}) takes {expected} features but gets {given.features}; expected a"
            " network that PyTorch runs on these inputs"
        )


def gradient_scales(kind: Any, context: Context, path: str, taps: int) -> tuple[float, float]:
    """What the squared gradients of weights and biases are of: (σ_w², σ_b²), or (fan-in, 1) in the standard parametrisation.

    A module says itself whether it has a bias, and a layer in the NTK parametrisation which scales stand outside.
    """
    W_std, b_std = float(kind.W_std), float(kind.b_std)
    module = kind.module
    has_bias = b_std != 0 if module is None else module.has_bias
    if module is not None and module.outside is not None:
        W_std, b_std = module.outside
    elif module is not None and context.tangent and not context.standard:
        for what, scale, trained in (("weights", W_std, kind.train_weight), ("biases", b_std, kind.train_bias)):
            if scale == 0 and trained:
                raise UsageError(
                    f"the {what} of {type(kind).__name__} (at {path!r}) are zero and trained, so their values do not say by"
                    ' which scale the NTK parametrisation multiplies their gradients; expected parametrization="standard",'
                    ' init="default", or them frozen with requires_grad_(False)'
                )
    weights, biases = W_std**2, b_std**2
    if context.standard and context.tangent:
        features = context.fan_in.get(path)
        if features is None:
            raise UsageError(
                f"{kind} (at {path!r}) in the standard parametrisation follows a layer of unknown width; give that"
                ' layer width=…, or use parametrization="ntk"'
            )
        weights, biases = float(features * taps), float(has_bias)
    trained = kind.train_weight, kind.train_bias
    return weights * trained[0], biases * trained[1]


@module_rule(nn.Linear)
def linear(module: nn.Linear, translate: Translator, path: str) -> Layer:
    """With the scales of PyTorch's initialisation, or as `init` says."""
    scales = affine_scales(module, module.in_features, translate.init, path)
    return Dense(
        scales.weight,
        scales.bias,
        module.out_features,
        scales.train_weight,
        scales.train_bias,
        Affine(module.in_features, scales.has_bias),
    )


@module_rule(NTKLinear)
def ntk_linear(module: NTKLinear, translate: Translator, path: str) -> Layer:
    """It carries its scales, which are those of the gradients; "measured" are the values they multiply."""
    bias = module.bias
    sigma_w, sigma_b = float(module.sigma_w), 0.0 if bias is None else float(module.sigma_b)
    factors = ntk_factors(module, translate.init, path)
    return Dense(
        sigma_w * factors[0],
        sigma_b * factors[1],
        module.out_features,
        bool(module.weight.requires_grad),
        bias is not None and bool(bias.requires_grad),
        Affine(module.in_features, bias is not None, (sigma_w, sigma_b)),
    )
