"""From a tree of `nn.Module`s to layers: one rule per kind of module, and refusals that name the nearest supported thing."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, TypeAlias, TypeVar

import torch
from torch import nn
from torch.nn.utils import parametrize

from ntkscope.core import UsageError
from ntkscope.core.checked import Count, renamed
from ntkscope.core.errors import DuplicateName
from ntkscope.infinite.layer import Layer, Nonlinearity

INITS = ("checked", "default", "measured")
Init: TypeAlias = Annotated[str, INITS]
# Methods and attributes a translation relies on; a subclass that replaces one of them is another layer.
RELIED_ON = (
    "forward",
    "_conv_forward",
    "__call__",
    "_call_impl",
    "_wrapped_call_impl",
    "__getattr__",
    "__getattribute__",
    "__iter__",
    "weight",
    "bias",
)
DISGUISED = "remove it, or write a rule for a module of your own: see docs/howto/add-an-infinite-rule.md"
STANDARD_ERRORS = 6.0  # beyond which weights are not draws of the law they are checked against


@dataclass(frozen=True)
class Translator:
    """Turns modules into layers; `init` says where the scales of their weights come from.

    `steps` says which module every layer stands for, in the order of translation, so that it can be checked against the
    network itself.
    """

    init: str = "checked"
    steps: list[Step] = field(default_factory=list)
    _met: dict[int, tuple[Any, str]] = field(default_factory=dict)

    def __call__(self, module: nn.Module, path: str = "") -> Layer:
        """The layer of `module`, which sits at `path` of the whole network."""
        for kind in type(module).__mro__:
            rule = MODULES.get(kind)
            if rule is None:
                continue
            if getattr(kind, "forward", None) is not type(module).forward:
                break
            refuse_disguise(module, kind, path)
            self._refuse_second_use(module, path)
            made = rule(module, self, path)
            self.steps.append(Step(path, module, made))
            return made
        raise UsageError(_refusal(module, path))

    def _refuse_second_use(self, module: nn.Module, path: str) -> None:
        """Refuse weights that are used twice: they are correlated with themselves, and have another limit."""
        for name, parameter in module.named_parameters(recurse=False):
            before = self._met.setdefault(id(parameter), (parameter, f"{path}.{name}" if path else name))[1]
            here = f"{path}.{name}" if path else name
            if before != here or any(step.module is module for step in self.steps):
                raise UsageError(
                    f"{type(module).__name__} (at {path!r}) uses the parameter of {before!r} a second time: tied weights have"
                    " another limit, for which there is no rule; expected weights of its own"
                )


@dataclass(frozen=True)
class Step:
    """One module of a translation and the layer it became."""

    path: str
    module: nn.Module
    layer: Layer


Rule = Callable[[Any, Translator, str], Layer]
MODULES: dict[type[nn.Module], Rule] = {}
LAYERS: dict[str, type[Layer]] = {}
R = TypeVar("R", bound=Rule)
L = TypeVar("L", bound=type[Layer])

NEAREST: dict[str, str] = {
    "BatchNorm": "LayerNorm; the statistics of a batch have no limit that depends on two inputs alone",
    "SyncBatchNorm": "LayerNorm",
    "InstanceNorm": "LayerNorm",
    "GroupNorm": "LayerNorm, which is GroupNorm with one group",
    "MaxPool": "average pooling (nn.AvgPool2d, AvgPool); a maximum of correlated Gaussians has no closed form",
    "AdaptiveMaxPool": "nn.AdaptiveAvgPool2d(1), GlobalAvgPool",
    "AdaptiveAvgPool": "nn.AdaptiveAvgPool2d(1), GlobalAvgPool",
    "Dropout": "the network in evaluation mode: model.eval()",
    "Embedding": "Dense on one-hot inputs",
    "MultiheadAttention": "Dense, Conv and LayerNorm",
    "Softmax": "the network without it: kernels are of logits",
    "LogSoftmax": "the network without it: kernels are of logits",
    "PReLU": "LeakyRelu with a fixed slope",
    "ConvTranspose": "Conv",
}


def module_rule(*kinds: type[nn.Module]) -> Callable[[R], R]:
    """Register how modules of `kinds` become a layer: `rule(module, translate, path) -> Layer`.

    A container of your own needs one, since its `forward` cannot be read: build the layer from
    `translate(child, f"{path}.child")` and the vocabulary. A subclass is served too, unless it overrides `forward`.

    Examples:
        >>> from ntkscope.infinite import Relu, kernel
        >>> class Rectifier(nn.Module):
        ...     def forward(self, x):
        ...         return x.clamp(min=0)
        >>> @module_rule(Rectifier)
        ... def rectifier(module, translate, path):
        ...     return Relu()
        >>> kernel(nn.Sequential(nn.Linear(2, 8), Rectifier(), nn.Linear(8, 1)), torch.eye(2), init="default").shape
        (2, 2)
    """

    def register(rule: R) -> R:
        for kind in kinds:
            if kind in MODULES:
                raise DuplicateName(f"{kind.__name__} has two infinite-width rules: {MODULES[kind]!r} and {rule!r}")
            MODULES[kind] = rule
        return rule

    return register


def layer(kind: L) -> L:
    """Register a layer of the vocabulary under its name."""
    if kind.__name__ in LAYERS:
        raise DuplicateName(f"two layers are called {kind.__name__}: {LAYERS[kind.__name__]!r} and {kind!r}")
    LAYERS[kind.__name__] = kind
    return renamed(normalise="normalize")(kind) if issubclass(kind, Nonlinearity) else kind


def _refusal(module: nn.Module, path: str) -> str:
    name = type(module).__name__
    nearest = next((text for start, text in NEAREST.items() if name.startswith(start)), None)
    known = ", ".join(sorted(kind.__name__ for kind in MODULES))
    where = f" (at {path!r})" if path else ""
    remedy = (
        f"the nearest supported thing is {nearest}"
        if nearest
        else "a container of your own needs a rule: see docs/howto/add-an-infinite-rule.md"
    )
    return f"no infinite-width rule for {name}{where}; {remedy}; rules exist for: {known}"


def refuse_disguise(module: nn.Module, kind: type[nn.Module], path: str) -> None:
    """Raise an error if `module`, translated by the rule of `kind`, would not run that kind's own forward pass.

    >>> layer = nn.Linear(2, 2)
    >>> refuse_disguise(layer, nn.Linear, "0")
    >>> _ = layer.register_forward_hook(lambda *_: None)
    >>> refuse_disguise(layer, nn.Linear, "0")
    Traceback (most recent call last):
    ...
    ntkscope.core.errors.UsageError: Linear (at '0') has a forward hook, which may change what it computes; ...
    """
    disguise = disguise_of(module, kind)
    if disguise is not None:
        where = f" (at {path!r})" if path else ""
        raise UsageError(
            f"{type(module).__name__}{where} has {disguise}, which may change what it computes; {DISGUISED}"
        )


def disguise_of(module: nn.Module, kind: type[nn.Module]) -> str | None:
    """What makes `module` compute something other than `kind` does, in words; None if nothing is found."""
    if parametrize.is_parametrized(module):
        names = ", ".join(sorted(map(str, getattr(module, "parametrizations", {}))))
        return f"a parametrisation of its {names}"
    if module._forward_pre_hooks:
        return "a forward pre-hook"
    if module._forward_hooks:
        return "a forward hook"
    patched = next((name for name in vars(module) if name in RELIED_ON and callable(vars(module)[name])), None)
    if patched is None:
        shadowed = (name for name in vars(module) if callable(vars(kind).get(name)))
        patched = next(shadowed, None)
    if patched is not None:
        return f"a {patched} of its own, set on the instance"
    for name in RELIED_ON:
        if getattr(type(module), name, None) is not getattr(kind, name, None):
            return f"a {name} that replaces {kind.__name__}.{name}"
    return None


@dataclass(frozen=True)
class Scales:
    """σ_w and σ_b of an affine module, which of its parameters are trained, and whether it has a bias at all."""

    weight: float
    bias: float
    train_weight: bool
    train_bias: bool
    has_bias: bool


@dataclass(frozen=True)
class Affine:
    """What an affine module says about itself: its fan-in, whether it has a bias, and the scales outside its parameters."""

    fan_in: int
    has_bias: bool
    outside: tuple[float, float] | None = None
    """σ_w and σ_b of a layer in the NTK parametrisation; None where they are in the parameters."""


def affine_scales(module: Any, fan_in: int, init: str, path: str) -> Scales:
    """The scales of a module whose default law is PyTorch's: weights and biases uniform on ±1/√fan_in.

    "default": that law, σ_w = 1/√3 and σ_b = 1/√(3 fan_in), whatever the values are. "measured": the root mean square of
    the values, √fan_in times it for weights. "checked": the default law, refused when the values do not look like it.
    """
    law = math.sqrt(1 / 3), math.sqrt(1 / (3 * fan_in))
    spread = 0.8  # of a uniform variable's square, relative to its mean
    weight, bias = _measured(module, init, path, (math.sqrt(fan_in), 1.0), law, spread)
    return Scales(
        weight,
        bias,
        bool(module.weight.requires_grad),
        module.bias is not None and bool(module.bias.requires_grad),
        module.bias is not None,
    )


def ntk_factors(module: Any, init: str, path: str) -> tuple[float, float]:
    """The root mean square of weights and biases whose law is the standard normal one; "checked" refuses others."""
    return _measured(module, init, path, (1.0, 1.0), (1.0, 1.0), 2.0)


def _measured(
    module: Any, init: str, path: str, units: tuple[float, float], law: tuple[float, float], spread: float
) -> tuple[float, float]:
    """The scales of weights and biases: their root mean squares times `units` if "measured", else those of the `law`."""
    scales = []
    for what, values, unit, expected in zip(("weights", "biases"), (module.weight, module.bias), units, law):
        found = 0.0 if values is None else _rms(values) * unit
        if init == "checked" and values is not None:
            allowed = STANDARD_ERRORS * math.sqrt(spread / values.numel())
            if found == 0 or abs((found / expected) ** 2 - 1) > allowed:
                raise UsageError(
                    f"the {what} of {type(module).__name__} (at {path!r}) have scale {found:.3g}; its initialisation gives"
                    f' {expected:.3g}. Say which is meant: init="measured" takes the scales of the weights as they are,'
                    ' init="default" those of the initialisation'
                )
        scales.append(found if init == "measured" else 0.0 if values is None else expected)
    return scales[0], scales[1]


def _rms(values: torch.Tensor) -> float:
    return float(values.detach().double().square().mean().sqrt())


Sides: TypeAlias = Count | tuple[Count, ...]


def whole(value: int | float | Sequence[int], dimensions: int) -> tuple[int, ...]:
    """One number per dimension."""
    if isinstance(value, Sequence) and len(value) != dimensions:
        raise UsageError(f"got {value} for images of {dimensions} dimensions; expected as many numbers")
    return tuple(value) if isinstance(value, Sequence) else (int(value),) * dimensions
