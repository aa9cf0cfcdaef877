"""From a tree of `nn.Module`s to layers: one rule per kind of module, and refusals that name the nearest supported thing."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, TypeAlias, TypeVar

import torch
from torch import nn

from ntkscope.core import UsageError
from ntkscope.core.checked import Count, renamed
from ntkscope.core.errors import DuplicateName
from ntkscope.infinite.disguises import refuse_disguise
from ntkscope.infinite.layer import Layer, Nonlinearity

INITS = ("checked", "default", "measured")
Init: TypeAlias = Annotated[str, INITS]
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
    weight, bias = module.weight, module.bias
    law = math.sqrt(1 / 3), math.sqrt(1 / (3 * fan_in))
    found = _rms(weight) * math.sqrt(fan_in), 0.0 if bias is None else _rms(bias)
    if init == "checked":
        for what, values, is_now, expected in (
            ("weights", weight, found[0], law[0]),
            ("biases", bias, found[1], law[1]),
        ):
            if values is None:
                continue
            allowed = STANDARD_ERRORS * math.sqrt(0.8 / values.numel())  # a uniform variable's square spreads by 2/√5
            if is_now == 0 or abs((is_now / expected) ** 2 - 1) > allowed:
                raise UsageError(
                    f"the {what} of {type(module).__name__} (at {path!r}) have scale {is_now:.3g}; PyTorch's default"
                    f' initialisation gives {expected:.3g}. Say which is meant: init="measured" takes the scales of the'
                    ' weights as they are, init="default" those of the default initialisation'
                )
    used = found if init == "measured" else law
    return Scales(
        used[0],
        0.0 if bias is None else used[1],
        bool(weight.requires_grad),
        bias is not None and bool(bias.requires_grad),
        bias is not None,
    )


def ntk_factors(module: Any, init: str, path: str) -> tuple[float, float]:
    """The root mean square of weights and biases whose law is the standard normal one; "checked" refuses others."""
    parts = [("weights", module.weight), ("biases", module.bias)]
    found = [0.0 if values is None else _rms(values) for _, values in parts]
    if init == "measured":
        return found[0], found[1]
    for (what, values), is_now in zip(parts, found):
        if init != "checked" or values is None:
            continue
        if is_now == 0 or abs(is_now**2 - 1) > STANDARD_ERRORS * math.sqrt(2 / values.numel()):
            raise UsageError(
                f"the {what} of {type(module).__name__} (at {path!r}) have scale {is_now:.3g}; its initialisation gives 1."
                ' Say which is meant: init="measured" takes the scales of the weights as they are, init="default" those of'
                " the initialisation"
            )
    return 1.0, 1.0


def _rms(values: torch.Tensor) -> float:
    return float(values.detach().double().square().mean().sqrt())


Sides: TypeAlias = Count | tuple[Count, ...]


def whole(value: int | float | Sequence[int], dimensions: int) -> tuple[int, ...]:
    """One number per dimension."""
    if isinstance(value, Sequence) and len(value) != dimensions:
        raise UsageError(f"got {value} for images of {dimensions} dimensions; expected as many numbers")
    return tuple(value) if isinstance(value, Sequence) else (int(value),) * dimensions
