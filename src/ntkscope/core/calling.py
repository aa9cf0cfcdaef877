"""How a model is called: which inputs go by position, which by name, and which tensor of its result holds the outputs."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn

from ntkscope.core.errors import UsageError
from ntkscope.core.tree import Inputs

LABEL_KEYS = ("label", "labels", "label_ids", "target", "targets", "y")


def arguments(model: nn.Module, x: Inputs) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """What `model` is called with: a tuple goes by position, anything but a mapping as the only argument.

    A mapping goes by name when `model.forward` takes those names, else it is passed whole. Its labels (`LABEL_KEYS`) are
    dropped unless `forward` takes them.

    >>> arguments(nn.Bilinear(1, 1, 1), {"input1": 1, "input2": 2, "labels": 3})
    ((), {'input1': 1, 'input2': 2})
    """
    if isinstance(x, Mapping):
        named, anything = names_taken(model)
        values = {str(key): value for key, value in x.items() if key not in LABEL_KEYS or anything or str(key) in named}
        return ((), values) if anything or all(key in named for key in values) else ((values,), {})
    return (x if isinstance(x, tuple) else (x,)), {}


def call(model: nn.Module, x: Inputs) -> Tensor:
    """The outputs of `model` for the inputs `x`."""
    args, kwargs = arguments(model, x)
    return logits(model(*args, **kwargs))


def logits(value: Any) -> Tensor:
    """The tensor of outputs in whatever a model returned: a tensor, or something that carries `logits`."""
    if isinstance(value, Tensor):
        return value
    found = value.get("logits") if isinstance(value, Mapping) else getattr(value, "logits", None)
    if isinstance(found, Tensor):
        return found
    raise UsageError(
        f"the model returned {type(value).__name__}; expected a tensor of shape (n, c), or an object with .logits;"
        " wrap the model in a module whose forward returns the outputs alone"
    )


def names_taken(model: nn.Module) -> tuple[set[str], bool]:
    """The names `model.forward` takes, and whether it takes any."""
    parameters = inspect.signature(model.forward).parameters
    return set(parameters), any(p.kind is p.VAR_KEYWORD for p in parameters.values())


def positions_required(model: nn.Module) -> int:
    """How many positional arguments `model.forward` requires."""
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return sum(p.kind in kinds and p.default is p.empty for p in inspect.signature(model.forward).parameters.values())
