"""Outputs of named modules, watched for the length of one call."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from torch import Tensor, nn

from ntkscope.core import UsageError
from ntkscope.tangent.model.state import ours


def tensor_in(value: Any) -> Tensor | None:
    """The tensor a module's output stands for: itself, the hidden state it carries, or its first member."""
    if isinstance(value, Tensor):
        return value
    hidden = getattr(value, "last_hidden_state", None)
    if isinstance(hidden, Tensor):
        return hidden
    if isinstance(value, tuple | list) and value:
        return tensor_in(value[0])
    if isinstance(value, Mapping) and value:
        return tensor_in(next(iter(value.values())))
    return None


@contextlib.contextmanager
def outputs_of(model: nn.Module, names: Sequence[str] | None = None) -> Iterator[dict[str, list[Tensor | None]]]:
    """While open, every call of the named modules (all when None) adds a copy of its output, in order of calls."""
    modules = dict(model.named_modules())
    unknown = [name for name in names or () if name not in modules]
    if unknown:
        known = ", ".join(name for name in modules if name) or "(none)"
        raise UsageError(f"no module called {', '.join(map(repr, unknown))}; there are: {known}")
    seen: dict[str, list[Tensor | None]] = {}
    handles = []
    for name in names if names is not None else [name for name in modules if name]:

        def keep(module: nn.Module, args: Any, output: Any, name: str = name) -> None:
            value = tensor_in(output)
            seen.setdefault(name, []).append(
                None if value is None else value.detach().clone()
            )  # what follows may work in place

        handles.append(modules[name].register_forward_hook(ours(keep)))
    try:
        yield seen
    finally:
        for handle in handles:
            handle.remove()
