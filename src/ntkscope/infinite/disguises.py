"""Modules that compute something other than their class says: hooks, patched methods, overrides, parametrisations."""

from __future__ import annotations

from torch import nn
from torch.nn.utils import parametrize

from ntkscope.core import UsageError

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
REMEDY = "remove it, or write a rule for a module of your own: see docs/howto/add-an-infinite-rule.md"


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
        raise UsageError(f"{type(module).__name__}{where} has {disguise}, which may change what it computes; {REMEDY}")


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
